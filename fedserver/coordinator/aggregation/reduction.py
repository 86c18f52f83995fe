"""The reduction of a round: its reports are opened one by one, and combined on a separate thread."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar, overload

from fedserver.store.content.blobs import Blobs
from fedserver.store.records import ReportRecord
from shoal.core.algorithm import Report, ServerHalf, State
from shoal.core.errors import DiskFull, TooManyFiles
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import decode
from shoal.core.exchange.tensors import check_finite
from shoal.core.server_kit.aggregation.parallel import AT_ONCE, Maker, in_memory, made_by, spread_over
from shoal.core.server_kit.history.figures import Figures, figures_of
from shoal.core.types import DeviceId

T = TypeVar("T")


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


def reduce(
    server_half: ServerHalf,
    state: State,
    reports: Sequence[Report],
    maker: Maker = in_memory,
) -> State:
    """The next state. maker: of the new models; if the disk is too full for it, they stay in memory.

    The models are checked to be finite: those in the reports are, but sums can overflow.
    """
    count = min(os.cpu_count() or 1, AT_ONCE)
    with ThreadPoolExecutor(count, "sums") as threads, spread_over(threads):
        try:
            with made_by(maker):
                following: State = server_half.reduce(state, reports)
        except TooManyFiles:  # which memory does not help
            raise
        except DiskFull:
            following = server_half.reduce(state, reports)
    for key, model in following.models.items():
        check_finite(model, f"the combined model {key}")
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
