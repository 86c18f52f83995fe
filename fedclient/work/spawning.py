"""Processes beside the agent: they find the same modules, and get no Ctrl-C that is meant for it."""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence

from fedclient.faults import WorkerDied
from fedclient.work.pipes import LENGTH, framed, length_of
from shoal.core.engine.timeouts import MOMENT

FRUGAL = {"MALLOC_ARENA_MAX": "2", "MALLOC_TRIM_THRESHOLD_": str(1 << 17)}
"""For devices with little memory: threads share what the C library keeps for them, and it keeps little."""
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
HINTS = {
    "SIGKILL": "it may have run out of memory; use smaller batches or a smaller model",
    "SIGILL": "PyTorch or ONNX Runtime needs a newer processor; install an earlier version",
}
"""What to do where a process was ended by a signal."""


class Child:
    """A process that answers messages (`fedclient/work/pipes.py`). what: names it, for errors."""

    def __init__(self, process: Process, what: str) -> None:
        self.process, self._what = process, what

    @classmethod
    async def start(
        cls, module: str, what: str, threads: int, frugal: bool, files: Sequence[int] = ()
    ) -> "Child":
        """See `spawn`. Raises WorkerDied where the system has no room for another process."""
        try:
            return cls(await spawn(module, threads, frugal, files), what)
        except OSError as error:
            hint = "end other programs, or give the machine more memory"
            raise WorkerDied(f"{what} could not be started: {error.strerror or error}", hint) from None

    async def ask(self, *messages: bytes, within: float | None = None) -> bytes:
        """Send these, and read a message. Raises WorkerDied, also where none comes within these seconds."""
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):  # then there is nothing to read, either
            self.process.stdin.write(b"".join(map(framed, messages)))
            await self.process.stdin.drain()
        return await self.read(within)

    async def read(self, within: float | None = None) -> bytes:
        """The next message. Raises WorkerDied."""
        assert self.process.stdout is not None
        try:
            async with asyncio.timeout(within):
                header = await self.process.stdout.readexactly(LENGTH)
                return await self.process.stdout.readexactly(length_of(header))
        except (asyncio.IncompleteReadError, ConnectionError):
            with contextlib.suppress(TimeoutError):  # a process that is ending is to end on its own
                await asyncio.wait_for(self.process.wait(), MOMENT)
        except TimeoutError:
            pass
        raise self._death(await self.end()) from None

    async def end(self) -> int:
        """Kill it with all that it started, unless it has ended. Returns its exit code."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        return await self.process.wait()

    def _death(self, code: int) -> WorkerDied:
        if code >= 0:
            return WorkerDied(f"{self._what} ended with exit code {code}", "look at what it printed")
        name = signal.Signals(-code).name
        hint = HINTS.get(name, "native code failed; look at what it printed")
        return WorkerDied(f"{self._what} was ended by {name}", hint)


async def spawn(module: str, threads: int, frugal: bool, files: Sequence[int] = ()) -> Process:
    """Start `python -m module` with pipes to its input and output.

    threads: of numerical libraries. frugal: whether to save memory. files: open ones that it gets, too. It is
    spawned and never forked: the threads of PyTorch and gRPC do not survive a fork.
    """
    path = os.pathsep.join(entry or os.getcwd() for entry in sys.path)
    limits = dict.fromkeys(THREADS, str(threads))
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", module),
        stdin=PIPE,
        stdout=PIPE,
        env={**os.environ, **limits, **(FRUGAL if frugal else {}), "PYTHONPATH": path},
        pass_fds=tuple(files),
        start_new_session=True,
    )
