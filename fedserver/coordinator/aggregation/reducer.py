"""A reducer: a process on any machine that takes jobs from the database and reads reports from the bucket.

It keeps nothing on a disk, and has neither keys nor rights of the server. While it computes, a thread renews
its lease. A job that it cannot do goes back, and it pauses before it takes the next one, so that a reducer
that does not reach the bucket leaves the jobs to others.
"""

import logging
import os
import secrets
import socket
import threading
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager

import numpy as np

from fedserver.coordinator.aggregation.orders import Cut, Order, job_of, result_of
from fedserver.store.content.ranges import Ranges, ranges_of
from fedserver.store.engines import Elsewhere
from fedserver.store.engines.job_queue import REDUCER, RENEWAL, JobQueue, TakenJob
from shoal.core.errors import StorageFault
from shoal.core.exchange.tensors import DTYPES
from shoal.core.server_kit.aggregation.coordinates import done
from shoal.core.types import Array

log = logging.getLogger("shoal.reducer")

IDLE = 0.25
"""Seconds between two questions for a job."""
AGAIN, LONGEST = 1.0, 60.0
"""Seconds until a reducer tries again after a failure, and at most after many in a row."""
READERS, AHEAD = 16, 32
"""Reads at a time, and how many reports are read ahead of the one that is needed."""


class Stopped(Exception):
    """The reducer has to stop, or has lost its job."""


class Spans:
    """The same range of bytes of many blobs, in their order, read ahead by threads.

    keep: whether a range is needed again. read: a CRC-32 of all ranges in their order, once each was used.
    check: called before each range; what it raises ends the job.
    """

    def __init__(
        self, ranges: Ranges, order: Order, readers: ThreadPoolExecutor, check: Callable[[], None]
    ) -> None:
        self._ranges, self._order, self._readers, self._check = ranges, order, readers, check
        self._keep = len(order.cuts) > 1
        self._reads: list[Future[bytes] | None] = [None] * len(order.places)
        self.read, self._summed = 0, 0

    def get(self, number: int) -> bytes:
        """The range of blob `number`."""
        self._check()
        for each in range(number, min(number + AHEAD, len(self._reads))):
            self._reads[each] = self._reads[each] or self._readers.submit(self._read, each)
        found = self._reads[number]
        assert found is not None
        data = found.result()
        if number == self._summed:
            self.read, self._summed = zlib.crc32(data, self.read), number + 1
        if not self._keep:
            self._reads[number] = None
        return data

    def close(self) -> None:
        for each in self._reads:
            if each is not None:
                each.cancel()

    def _read(self, number: int) -> bytes:
        order = self._order
        return self._ranges.read(order.places[number], order.start, order.stop - order.start)


class SpanTensors(Mapping[str, Array]):
    """The pieces of a job, of one report: see `job_of`. They are read when they are used."""

    def __init__(self, spans: Spans, number: int, cuts: Sequence[Cut]) -> None:
        self._spans, self._number, self._cuts = spans, number, cuts

    def __getitem__(self, name: str) -> Array:
        cut = self._cuts[int(name)]
        at = cut.offset - self._cuts[0].offset
        return np.frombuffer(self._spans.get(self._number), DTYPES[cut.dtype], cut.count, at)

    def __iter__(self) -> Iterator[str]:
        return (str(number) for number in range(len(self._cuts)))

    def __len__(self) -> int:
        return len(self._cuts)


class Reducer:
    """One job at a time, until `stop` is set. name: what servers call it in their logs."""

    def __init__(self, elsewhere: Elsewhere, stop: threading.Event) -> None:
        self._url, self._stop = elsewhere.database, stop
        self._ranges = ranges_of(elsewhere.blobs)
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="read")
        self.name = f"{socket.gethostname()[:64]}-{os.getpid()}-{secrets.token_hex(4)}"

    def serve(self, announce: Callable[[], None]) -> None:
        """Do jobs until `stop`. announce: called once the database was reached for the first time.

        A database or a bucket that is away is waited for.
        """
        failures, said, is_known = 0, "", False
        while not self._stop.is_set():
            try:
                with closing(JobQueue(self._url, REDUCER)) as queue:
                    if not is_known:
                        announce()
                    is_known, said = True, ""
                    while not self._stop.is_set():
                        if (job := queue.take(self.name)) is None:
                            self._stop.wait(IDLE)
                        elif self._do(queue, job):
                            failures = 0
                        else:
                            failures += 1
                            break
                if failures:  # the session has ended, so that no server counts on this reducer meanwhile
                    self._stop.wait(min(AGAIN * 2 ** (failures - 1), LONGEST))
            except StorageFault as fault:
                if str(fault) != said:
                    said = str(fault)
                    log.warning("the reducer waits for the database: %s", said)
                self._stop.wait(AGAIN)

    def close(self) -> None:
        self._readers.shutdown(cancel_futures=True)
        self._ranges.close()

    def _do(self, queue: JobQueue, job: TakenJob) -> bool:
        """Whether this reducer is able to do jobs. Raises StorageFault: the database is away."""
        with self._holding(queue, job) as check:
            try:
                result, sha256, read = self._compute(job, check)
            except Stopped:
                queue.give_back(job, self.name, failed=False)
                return True
            except Exception as error:  # whatever a job is like, the next one may be better
                log.warning("a job goes back to the server: %s", error)
                queue.give_back(job, self.name, failed=True)
                return False
            if not queue.finish(job, self.name, result, sha256, read):
                log.info("a job was taken away before it was done")
        return True

    def _compute(self, job: TakenJob, check: Callable[[], None]) -> tuple[bytes, str, int]:
        order = Order.parse(job.task)
        with closing(Spans(self._ranges, order, self._readers, check)) as spans:
            models = [SpanTensors(spans, number, order.cuts) for number in range(len(order.places))]
            values = done(job_of(order, job.base, models))
            return *result_of(values), spans.read

    @contextmanager
    def _holding(self, queue: JobQueue, job: TakenJob) -> Iterator[Callable[[], None]]:
        """Renew the lease. What comes out raises Stopped once the reducer stops or has lost the job."""
        over, lost = threading.Event(), threading.Event()

        def renew() -> None:
            while not over.wait(RENEWAL):
                try:
                    if not queue.renew(job, self.name):
                        lost.set()
                except StorageFault:  # the session is over, and the lease ends by itself
                    lost.set()

        def check() -> None:
            if lost.is_set() or self._stop.is_set():
                raise Stopped

        renewing = threading.Thread(target=renew, name="lease", daemon=True)
        renewing.start()
        try:
            yield check
        finally:
            over.set()
            renewing.join()
