"""For a device that asks again and again: a process tries models only if something has changed."""

import asyncio
from collections.abc import Callable

from fedclient.work.executor import Executor
from fedclient.work.pipes import WorkerInfo
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import work_key

OPEN = "open"
RETRY = 3600.0
"""Seconds after which what failed is tried again: memory that was missing may be there then."""


class Remembering:
    """Starts `executor` for a task with another graph, question or data than last time, and stops it after.

    data: the state of the device's data, which differs once they were changed; None if that is not known.
    Only what stays on the device is remembered, which is a choice among models: of everything else, the
    owner's ledger and consent decide each time.
    """

    def __init__(self, executor: Executor, data: Callable[[], object | None]) -> None:
        self._executor, self._data = executor, data
        self._info: WorkerInfo | None = None
        self._graph: Task | None = None
        self._loaded = False
        self._done: dict[str, tuple[object, float, Payload | Failure]] = {}

    async def start(self) -> WorkerInfo:
        """Load the data once, so that their faults show at the beginning."""
        if self._info is None:
            self._info = await self._executor.start()
        return self._info

    async def perform(self, task: Task) -> Payload | Failure:
        kind, data = task.payload.kind, self._data()
        if kind == OPEN:
            self._graph = task
            self._loaded = False
        graph = None if self._graph is None else work_key(self._graph)
        key, now = (graph, work_key(task), data), asyncio.get_running_loop().time()
        if data is not None and kind in self._done:
            known, since, result = self._done[kind]
            if known == key and (isinstance(result, Payload) or now - since < RETRY):
                return result
        result = await self._performed(task)
        if kind in (OPEN, ChooseCompact.kind):
            self._done[kind] = key, now, result
        return result

    async def _performed(self, task: Task) -> Payload | Failure:
        """The process may not be there yet, and then it has no graph."""
        if task is self._graph:
            result = await self._executor.perform(task)
            self._loaded = isinstance(result, Payload)
            if not self._loaded:  # no question follows, after which the process would be stopped
                await self.stop()
            return result
        try:
            if self._graph is not None and not self._loaded:
                opened = await self._executor.perform(self._graph)
                if isinstance(opened, Failure):
                    return opened
            return await self._executor.perform(task)
        finally:
            await self.stop()

    async def stop(self) -> None:
        self._loaded = False
        await self._executor.stop()
