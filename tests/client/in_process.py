"""Tasks of a device in a thread of this process, where a test needs no process of their own."""

import asyncio
import threading

from fedclient.work.pipes import TaskRunner, WorkerInfo
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.payload import Payload


class InProcess:
    """An executor. Work that is given up runs to its end, and is ignored."""

    def __init__(self, runtime: TaskRunner) -> None:
        self._runtime = runtime
        self._turn = threading.Lock()

    async def start(self) -> WorkerInfo:
        return self._runtime.info

    async def perform(self, task: Task) -> Payload | Failure:
        return await asyncio.to_thread(self._in_turn, task)

    async def stop(self) -> None:
        pass

    def _in_turn(self, task: Task) -> Payload | Failure:
        with self._turn:
            return self._runtime.perform(task)
