"""The reports of a round, opened one by one and combined on a separate thread into the run's next state; none
of them is damaged."""

import asyncio
import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar, overload

from fedserver.coordinator.repair import damage
from fedserver.coordinator.repair.damage import DamagedReports
from fedserver.store.content.blobs import Blobs
from fedserver.store.records import ReportRecord
from fedserver.store.store import Storage
from shoal.core.algorithm import Report, ServerHalf, State
from shoal.core.errors import DiskFull, NotFound, StorageFault, TooManyFiles
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import decode
from shoal.core.exchange.tensors import check_finite
from shoal.core.server_kit.aggregation.parallel import AT_ONCE, Maker, made_by, spread_over
from shoal.core.server_kit.history.figures import Figures, figures_of
from shoal.core.types import DeviceId, RunId
from shoal.shell import crash
from shoal.shell.disk import NO_DESCRIPTORS

log = logging.getLogger("shoal.run")

T = TypeVar("T")
RETRY_SECONDS = 1.0
"""Seconds after which reports whose files could not be opened are combined again."""


@dataclass(frozen=True)
class Combination:
    """What is to be combined. devices: those whose reports count. tasks: of all that were asked. state: that
    the round began with. known: gets what reports say of the models, and the next state, on any thread."""

    run: RunId
    round: int
    devices: Sequence[DeviceId]
    tasks: Mapping[DeviceId, Message]
    server_half: ServerHalf
    state: State
    known: Callable[[Mapping[DeviceId, Figures], State], None]


class StoredReports(Sequence[Report]):
    """The reports of a round, each read from its record and its blobs when it is accessed.

    figures: by device, what the reports that were accessed say of the models.
    """

    def __init__(
        self, records: Sequence[ReportRecord], tasks: Mapping[DeviceId, Message], blobs: Blobs
    ) -> None:
        self._records, self._tasks, self._blobs = records, tasks, blobs
        self.figures: dict[DeviceId, Figures] = {}

    @overload
    def __getitem__(self, index: int) -> Report: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Report]: ...
    def __getitem__(self, index: int | slice) -> Report | Sequence[Report]:
        if isinstance(index, slice):
            return StoredReports(self._records[index], self._tasks, self._blobs)
        record = self._records[index]
        task = self._tasks[record.device]
        size = sum(weights.blob.size for weights in record.payload.weights())
        opened = partial(self._blobs.reported, together=len(self._records) * size)
        message = decode(record.payload, {task.reply.kind: task.reply}, opened)
        self.figures[record.device] = figures_of(task, message)
        return Report(record.device, message)

    def __len__(self) -> int:
        return len(self._records)


async def combined(what: Combination, storage: Storage) -> State:
    """The next state of a run. It is computed again as long as the files of the reports cannot be opened, or
    a damaged one cannot be restored for now.

    Raises DamagedReports if the disk changed or lost reports that count, LostTensors if it lost a model that
    is needed, StorageFault, and whatever the algorithm raises.
    """
    while True:
        try:
            return await _combined(what, storage)
        except DiskFull as fault:
            log.warning("run %s: its reports are combined again in a moment: %s", what.run, fault)
            await asyncio.sleep(RETRY_SECONDS)


async def _combined(what: Combination, storage: Storage) -> State:
    records = await storage.call(storage.reports.of_round, what.run, what.round)
    counted = [record for record in records if record.device in what.devices]
    reports = StoredReports(counted, what.tasks, storage.blobs)
    crash.point("server.reducing")
    try:
        if len(counted) < len(what.devices):
            raise NotFound("reports that counted are not stored")
        following = await in_thread(lambda: reduce(what, reports, storage.blobs.make))
    except (StorageFault, asyncio.CancelledError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
            # Code may load a module when it first needs it, as numpy does.
            raise TooManyFiles(str(error), "close other connections and files") from error
        if lost := await damage.lost_reports(storage, counted, what.devices):
            raise DamagedReports(lost) from None
        raise
    crash.point("server.reduced")
    return following


def reduce(what: Combination, reports: StoredReports, maker: Maker) -> State:
    """The next state. maker: of the new models; if the disk is too full for it, they stay in memory.

    The models are checked to be finite: those in the reports are, but sums can overflow.
    """
    count = min(os.cpu_count() or 1, AT_ONCE)
    with ThreadPoolExecutor(count, "sums") as threads, spread_over(threads):
        try:
            with made_by(maker):
                following: State = what.server_half.reduce(what.state, reports)
        except TooManyFiles:  # which memory does not help
            raise
        except DiskFull:
            following = what.server_half.reduce(what.state, reports)
    for key, model in following.models.items():
        check_finite(model, f"the combined model {key}")
    what.known(reports.figures, following)
    return following


async def in_thread(work: Callable[[], T]) -> T:
    """Run long work on a daemon thread, which does not keep a stopping process alive: the next start
    repeats it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def body() -> None:
        result, error = None, None
        try:
            result = work()
        except Exception as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop was closed, so nothing waits for the result
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=body, daemon=True, name="reduce").start()
    return await future
