"""Where a device's tasks run: in a process of its own, which can be killed.

The agent and the training process exchange messages over pipes: see `fedclient/work/pipes.py`.
"""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Any, Protocol

from fedclient.config import WorkConfig
from fedclient.faults import TaskFailed
from fedclient.work.pipes import WorkerInfo
from fedclient.work.spawning import Child
from shoal.core.errors import BadPayload, ConfigError, DataFault, DeviceFault, LearnerFault, ShoalError
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import payload_from_bytes, report_from_bytes, task_to_bytes


class Executor(Protocol):
    """One task at a time."""

    async def start(self) -> WorkerInfo:
        """Load the learner and the data, unless they are loaded.

        Raises ConfigError, DataFault, DeviceFault or LearnerFault, by what is at fault.
        """
        ...

    async def perform(self, task: Task) -> Payload | Failure:
        """Do a task whose blobs are in the store. Never raises; if canceled, the work is given up."""
        ...

    async def stop(self) -> None:
        """Give everything up. A later `start` loads everything again."""
        ...


@asynccontextmanager
async def stopped_after(*executors: Executor) -> AsyncIterator[None]:
    """Around their use: stops them, however it ends."""
    try:
        yield
    finally:
        for each in executors:
            await each.stop()


async def performed(executor: Executor, task: Task) -> Payload:
    """What came of a task. Raises TaskFailed."""
    result = await executor.perform(task)
    if isinstance(result, Failure):
        raise TaskFailed(result)
    return result


class Spawned:
    """Performs tasks in a process of its own, so that a crash there leaves the agent alive."""

    def __init__(self, config: WorkConfig) -> None:
        self._config = config
        self._process: Child | None = None
        self._info: WorkerInfo | None = None

    async def start(self) -> WorkerInfo:
        if self._info is not None:
            return self._info
        try:
            threads, light = self._config.compute.threads, self._config.learner is None
            what = "the working process"
            self._process = await Child.start("fedclient.work.worker", what, threads, frugal=light)
            settings = json.dumps(asdict(self._config), default=str).encode()
            answer = payload_from_bytes(await self._process.ask(settings))
        except BaseException:
            await self.stop()
            raise
        parts: Mapping[str, Any] = answer.parts
        if answer.kind == "fault":
            await self.stop()
            raise _fault(**parts)
        self._info = WorkerInfo(**json.loads(parts["info"]))
        return self._info

    async def perform(self, task: Task) -> Payload | Failure:
        try:
            await self.start()
            assert self._process is not None
            return report_from_bytes(await self._process.ask(task_to_bytes(task))).result
        except ShoalError as error:
            await self.stop()
            return Failure(error.code, str(error), getattr(error, "details", ""))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        process, self._process, self._info = self._process, None, None
        if process is not None:
            await process.end()


def _fault(code: str, message: str, hint: str, details: str) -> ShoalError:
    """The error that kept the training process from starting, as it was raised there."""
    if code == LearnerFault.code:
        return LearnerFault(message, hint, details)
    classes: list[type[ShoalError]] = [ConfigError, DataFault, DeviceFault, BadPayload]
    return next((cls for cls in classes if cls.code == code), ShoalError)(message, hint)
