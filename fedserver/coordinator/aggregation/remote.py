"""Reducers on other machines, as the server that leads sees them: it posts jobs and collects the results.

Nothing waits for a reducer for long. A job that no reducer takes, that reducers give back, or whose reducer
is silent is done here, and so is everything if the database of the jobs is away. A result counts if it is
whole, if the bytes of the reports that it was computed from are those that this server has, and if some of
its values are those that this process computes.
"""

import logging
import secrets
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress

from fedserver.coordinator.aggregation.orders import Order, agrees, base_of, order_of, values_of
from fedserver.coordinator.aggregation.reducers import Reducers
from fedserver.store.content.blobs import Blobs
from fedserver.store.content.mapped import MappedTensors, mapped
from fedserver.store.engines.job_queue import Answer, JobQueue, Standing
from shoal.core.errors import BadPayload, StorageFault
from shoal.core.server_kit.aggregation.coordinates import done
from shoal.core.server_kit.aggregation.pieces import Job
from shoal.core.types import Array

log = logging.getLogger("shoal.server")

LOOK = 0.05
"""Seconds between two looks at jobs that are not done."""
GONE, QUIET, STUCK = 1.0, 10.0, 60.0
"""Seconds without any result after which the server asks whether reducers are there, after which it does the
jobs that none of them holds, and after which it does all."""
WORTH = 1 << 28
"""Bytes that jobs read of all reports together from which on reducers elsewhere are worth their trouble."""
LATELY = 5.0
"""Seconds for which the server believes that as many reducers are there as before."""


class RemoteReducers:
    """The reducers of a database. pool: processes of this machine, which help if there are no others."""

    def __init__(self, url: str, blobs: Blobs, pool: Reducers | None = None) -> None:
        self._url, self._blobs, self._pool = url, blobs, pool
        self._leader, self._is_first = secrets.token_hex(8), True
        self._there, self._looked = 0, float("-inf")
        self._barred: set[str] = set()

    @property
    def count(self) -> int:
        return self._present() or (self._pool.count if self._pool else 0)

    def map(self, jobs: Sequence[Job]) -> list[list[Array]]:
        """What came of the jobs, in their order. Called by the threads that reduce."""
        found: dict[int, list[Array]] = {}
        orders = [order for job in jobs if (order := order_of(job, self._blobs.place))]
        size = sum(len(order.places) * (order.stop - order.start) for order in orders)
        if len(orders) == len(jobs) and size >= WORTH and self._present():
            try:
                self._gather(jobs, orders, found)
            except StorageFault as fault:
                log.warning("the server combines this round itself: %s", fault)
        self._compute(jobs, [number for number in range(len(jobs)) if number not in found], found)
        return [found[number] for number in range(len(jobs))]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()

    def _present(self) -> int:
        """How many reducers are there, as far as is known."""
        if time.monotonic() - self._looked > LATELY:
            before = self._there
            try:
                with closing(JobQueue(self._url)) as queue:
                    self._there = queue.reducers()
            except StorageFault as fault:
                log.warning("the server cannot ask for reducers: %s", fault)
                self._there = 0
            self._looked = time.monotonic()
            if self._there != before:
                log.info("reducers on other machines: %d", self._there)
        return self._there

    def _compute(self, jobs: Sequence[Job], numbers: Sequence[int], found: dict[int, list[Array]]) -> None:
        """Do these jobs here."""
        own = [jobs[number] for number in numbers]
        results = self._pool.map(own) if self._pool and own else [done(job) for job in own]
        found.update(zip(numbers, results, strict=True))

    def _gather(self, jobs: Sequence[Job], orders: Sequence[Order], found: dict[int, list[Array]]) -> None:
        batch = secrets.token_hex(8)
        with closing(JobQueue(self._url)) as queue:
            if self._is_first:
                if left := queue.remove_others(self._leader):
                    log.info("%d jobs of the server that led before are abandoned", left)
                self._is_first = False
            try:
                tasks = ((order.text, base_of(job, order)) for job, order in zip(jobs, orders, strict=True))
                queue.post(self._leader, batch, tasks)
                self._collect(queue, batch, jobs, orders, found)
            finally:
                with suppress(StorageFault):
                    queue.remove_all(batch)

    def _collect(
        self,
        queue: JobQueue,
        batch: str,
        jobs: Sequence[Job],
        orders: Sequence[Order],
        found: dict[int, list[Array]],
    ) -> None:
        heard = time.monotonic()
        checksums: dict[int, int] = {}
        while missing := [number for number in range(len(jobs)) if number not in found]:
            standings = queue.standings(batch)
            silence = time.monotonic() - heard
            brought = [number for number in missing if number in standings and standings[number].is_done]
            if not brought and silence > GONE and not queue.reducers():
                return
            own = left_to_the_server(standings, missing, silence)
            for number in brought:
                answer = queue.answer(batch, number)
                if number not in checksums:
                    checksums[number] = checksum(jobs[number], orders[number])
                queue.remove(batch, [number])  # if it is not used, the server does it
                if answer and (values := self._accepted(jobs[number], answer, checksums[number])):
                    found[number], heard = values, time.monotonic()
            if own:
                some = own[: self._pool.count if self._pool else 1]
                queue.remove(batch, some)
                self._compute(jobs, some, found)
            elif not brought:
                unread = next((number for number in missing if number not in checksums), None)
                if unread is None:
                    time.sleep(LOOK)
                else:  # there is time for it now
                    checksums[unread] = checksum(jobs[unread], orders[unread])

    def _accepted(self, job: Job, answer: Answer, read: int) -> list[Array] | None:
        """The values of an answer; None if they must not be used."""
        try:
            values = values_of(job, answer.result, answer.sha256)
        except BadPayload as error:
            why = str(error)
        else:
            if answer.read != read:
                why = "it has read other bytes than this server has"
            elif answer.holder in self._barred:
                return None
            elif not agrees(job, values, done, secrets.randbits(64)):
                self._barred.add(answer.holder)
                why = "it computes other values than this server, and is not believed any more: end it"
            else:
                return values
        log.error("what the reducer %s brought is not used: %s", answer.holder, why)
        return None


def left_to_the_server(
    standings: Mapping[int, Standing], missing: Sequence[int], silence: float
) -> list[int]:
    """The jobs that the server does itself. silence: seconds in which no reducer has brought a result."""

    def is_left(number: int) -> bool:
        standing = standings.get(number)
        if standing is None or standing.is_given_up:
            return True
        return not standing.is_done and silence > (QUIET if standing.is_free else STUCK)

    return [number for number in missing if is_left(number)]


def checksum(job: Job, order: Order) -> int:
    """The CRC-32 of what a job reads, from the files of this server: it finds what has rotted elsewhere."""
    found = 0
    for part in job.parts:
        assert isinstance(part.model, MappedTensors)
        found = zlib.crc32(mapped(part.model.path)[order.start : order.stop], found)
    return found
