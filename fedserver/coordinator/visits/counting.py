"""Counting reports: those that wait for their turn at the same time share one commit.

A report that was checked waits here for its turn. While one group is written to the disk, the next one
gathers, so a group is as large as the disk is slow, and no report waits for others to come.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fedserver.coordinator.runs import Run
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.records import ReportRecord
from fedserver.store.reports import Arrival
from fedserver.store.store import Storage
from shoal.core.engine.events import Reported
from shoal.core.errors import DiskFull, NotFound, ShoalError, StaleReport, Taken, Unavailable
from shoal.core.exchange.link import Outcome, Receipt
from shoal.core.types import DeviceId
from shoal.shell import crash

log = logging.getLogger("shoal.server")

MAX_GROUP = 64
"""Reports of one group: 64 small models have 16 MiB."""


@dataclass(eq=False)
class _Waiting:
    """A report that waits for its turn. receipt: what became of it; None if it does not count, for a reason
    that the caller has to find out."""

    run: Run
    arrival: Arrival
    receipt: "asyncio.Future[Receipt | None]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )

    @property
    def record(self) -> ReportRecord:
        return self.arrival.record


class Counting:
    """barred: the devices whose reports do not count any more. in_turn: of the coordinator."""

    def __init__(
        self,
        storage: Storage,
        in_turn: Callable[[Coroutine[Any, Any, None]], Awaitable[None]],
        barred: Collection[DeviceId],
    ) -> None:
        self._storage, self._in_turn, self._barred = storage, in_turn, barred
        self._waiting: list[_Waiting] = []
        self._groups = set[asyncio.Task[None]]()

    async def count(self, run: Run, arrival: Arrival) -> Receipt | None:
        """Store a report that was checked, and count it. None: it is not expected any more.

        Raises NotFound if its blobs are gone, Unavailable if it cannot be stored now.
        """
        waiting = _Waiting(run, arrival)
        self._waiting.append(waiting)
        if len(self._waiting) == 1:
            self._begin()
        return await asyncio.shield(waiting.receipt)

    def _begin(self) -> None:
        group = asyncio.create_task(self._next_group())
        self._groups.add(group)
        group.add_done_callback(self._groups.discard)

    async def _next_group(self) -> None:
        try:
            await self._in_turn(self._count_group())
        except Exception as error:  # the server stops, or its disk has failed: no turn comes any more
            waiting, self._waiting = self._waiting, []
            for each in waiting:
                _settle(each, error)

    async def _count_group(self) -> None:
        """In turn: count those that are expected. The others hear so, or wait for the next turn."""
        now, self._waiting = self._waiting[:MAX_GROUP], self._waiting[MAX_GROUP:]
        group = list[_Waiting]()
        try:
            for each in now:
                if not self._is_expected(each):
                    _settle(each, None)
                elif self._fits(each, group):
                    group.append(each)
                else:
                    self._waiting.append(each)
            await self._store(group)
        except Exception as error:
            for each in now:
                if each not in self._waiting:
                    _settle(each, error)
            raise
        finally:
            if self._waiting:
                self._begin()

    def _is_expected(self, each: _Waiting) -> bool:
        record = each.record
        if not each.run.active or record.device in self._barred:
            return False
        try:
            each.run.engine.expects(record.device, record.round, record.attempt)
        except StaleReport:
            return False
        return True

    def _fits(self, each: _Waiting, group: Sequence[_Waiting]) -> bool:
        """Whether a report counts together with those of the group: the last one that a round lacks closes
        it, and of two reports of one device only one counts. A round that lacks none but is still open, as in
        a pause after a restart, takes one at a time."""
        same = [other for other in group if other.run is each.run]
        others = {other.record.device for other in same}
        return each.record.device not in others and len(same) < max(1, each.run.engine.lacks)

    async def _store(self, group: Sequence[_Waiting]) -> None:
        if not group:
            return
        crash.point("server.report-checked")
        try:
            mark = await self._storage.call(self._added, [each.arrival for each in group])
        except (NotFound, Taken, DiskFull) as fault:
            if len(group) > 1:  # one of them cannot be stored, which the others do not have to pay for
                for each in group:
                    if self._is_expected(each):  # the deadline may have come with the one before it
                        await self._store([each])
                    else:
                        _settle(each, None)
                return
            _settle(group[0], _meaning(fault, group[0].record.device))
            return
        crash.point("server.report-stored")
        for run in dict.fromkeys(each.run for each in group):
            records = [each.record for each in group if each.run is run]
            await run.advance(*(Reported(each.device, each.round, each.attempt) for each in records))
        crash.point("server.report-counted")
        for each in group:
            _settle(each, Receipt(Outcome.ACCEPTED, mark=mark))

    def _added(self, arrivals: Sequence[Arrival]) -> str:
        """On the store's thread: store reports. Returns the mark of the history that has them; "" if it
        cannot be read, which must not keep them from being counted."""
        self._storage.reports.add(arrivals)
        with suppress(DamagedRow):
            return self._storage.history.mark()
        return ""


def _meaning(fault: ShoalError, device: DeviceId) -> ShoalError | None:
    """What a device gets to know of a fault of the store."""
    if isinstance(fault, Taken):
        return None
    if isinstance(fault, DiskFull):
        return not_now(device, fault)
    return fault


def not_now(device: DeviceId, fault: DiskFull) -> Unavailable:
    """What a device gets to know if its report cannot be stored."""
    log.warning("a report of device %s cannot be stored: %s", device, fault)
    return Unavailable("the server cannot store the report at the moment", "send it again")


def _settle(each: _Waiting, outcome: Receipt | Exception | None) -> None:
    if each.receipt.done():
        return
    if isinstance(outcome, Exception):
        each.receipt.set_exception(outcome)
        each.receipt.exception()  # the caller may be gone
    else:
        each.receipt.set_result(outcome)
