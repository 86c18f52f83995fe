"""Who performs a device's tasks: a process of its own, which can be killed, or this one, for tests."""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from fedclient.config import WorkConfig
from fedclient.faults import WorkerDied
from fedclient.work.framing import LENGTH, framed, length_of
from shoal.core.errors import BadPayload, ConfigError, DataFault, DeviceFault, LearnerFault, ShoalError
from shoal.core.exchange.link import Failure, Task
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import payload_from_bytes, report_from_bytes, task_to_bytes

if TYPE_CHECKING:
    from fedclient.work.runtime import Runtime


@dataclass(frozen=True)
class Facts:
    """What a device has. examples: all of them, tests apart. device: where it computes.

    findings: what a full trial found, as JSON has it; see `fedclient/work/selfcheck.py`.
    """

    examples: int
    labelled: bool
    device: str
    findings: Mapping[str, Any] = field(default_factory=dict)


class Executor(Protocol):
    """One task at a time."""

    async def start(self) -> Facts:
        """Load learner and data, unless they are loaded, and say what there is.

        Raises ConfigError, DataFault or LearnerFault: whose fault it is.
        """
        ...

    async def perform(self, task: Task) -> Payload | Failure:
        """Do a task whose blobs are in the store. Raises nothing. Cancelled, it gives the work up."""
        ...

    async def stop(self) -> None:
        """Give everything up; `start` begins anew."""
        ...


class InProcess:
    """Performs in a thread of this process. Work that is given up goes on to its end, unheard."""

    def __init__(self, workshop: "Runtime") -> None:
        self._workshop = workshop
        self._turn = threading.Lock()

    async def start(self) -> Facts:
        return self._workshop.facts

    async def perform(self, task: Task) -> Payload | Failure:
        return await asyncio.to_thread(self._in_turn, task)

    async def stop(self) -> None:
        pass

    def _in_turn(self, task: Task) -> Payload | Failure:
        with self._turn:
            return self._workshop.perform(task)


class Spawned:
    """Performs in a process of its own, spawned and never forked: what befalls it leaves the agent alive."""

    def __init__(self, config: WorkConfig) -> None:
        self._config = config
        self._process: Process | None = None
        self._facts: Facts | None = None

    async def start(self) -> Facts:
        if self._facts is not None:
            return self._facts
        try:
            self._process = await self._spawn()
            settings = json.dumps(asdict(self._config), default=str).encode()
            answer = payload_from_bytes(await self._ask(self._process, settings))
        except BaseException:
            await self.stop()
            raise
        parts: Mapping[str, Any] = answer.parts
        if answer.kind == "fault":
            await self.stop()
            raise _fault(**parts)
        self._facts = Facts(**json.loads(parts["facts"]))
        return self._facts

    async def perform(self, task: Task) -> Payload | Failure:
        try:
            await self.start()
            assert self._process is not None
            return report_from_bytes(await self._ask(self._process, task_to_bytes(task))).result
        except ShoalError as error:
            await self.stop()
            return Failure(error.code, str(error), getattr(error, "details", ""))
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        process, self._process, self._facts = self._process, None, None
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a group: the author's own helpers go too
        await process.wait()

    async def _spawn(self) -> Process:
        """It finds the modules that this process finds, and hears no Ctrl-C that is meant for this one."""
        threads = str(self._config.compute.threads)
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "fedclient.work.worker"),
            stdin=PIPE,
            stdout=PIPE,
            env={**os.environ, **dict.fromkeys(names, threads), "PYTHONPATH": path},
            start_new_session=True,
        )

    async def _ask(self, process: Process, data: bytes) -> bytes:
        """Send one message, read one. Raises WorkerDied."""
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(framed(data))
            await process.stdin.drain()
            header = await process.stdout.readexactly(LENGTH)
            return await process.stdout.readexactly(length_of(header))
        except (asyncio.IncompleteReadError, ConnectionError):
            raise _death(await process.wait()) from None


def _death(code: int) -> WorkerDied:
    if code >= 0:
        return WorkerDied(f"the training process ended with exit code {code}", "look at what it printed")
    name = signal.Signals(-code).name
    hints = {"SIGKILL": "was the memory full? use smaller batches or a smaller model"}
    hint = hints.get(name, "look at what it printed; native code has failed")
    return WorkerDied(f"the training process was ended by {name}", hint)


def _fault(code: str, message: str, hint: str, details: str) -> ShoalError:
    """What the training process could not start for, as it was raised there."""
    if code == LearnerFault.code:
        return LearnerFault(message, hint, details)
    classes: list[type[ShoalError]] = [ConfigError, DataFault, DeviceFault, BadPayload]
    return next((cls for cls in classes if cls.code == code), ShoalError)(message, hint)
