"""A process that is started again whenever it ends, as an init system would, until it is stopped."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals

from tests.waiting import HANG

MARK = "SHOAL_CHAOS_FLEET"
"""In the environment of whatever belongs to a fleet: so what it leaves behind is known."""
LOOK = 0.01
"""Seconds from one look at a process or a file to the next."""


@dataclass(frozen=True)
class End:
    """How a process ended. code: its exit code, below 0 by a signal. at: seconds of the monotonic clock."""

    code: int
    at: float


@dataclass
class Program:
    """A program of the fleet. line: what Python is to run. log: its standard error, over all its lives.

    pause: seconds from an end to the next start.
    """

    name: str
    line: Sequence[str]
    log: Path
    mark: str
    environment: Mapping[str, str] = field(default_factory=dict)
    pause: float = 0.2
    ends: list[End] = field(default_factory=list)
    began: float = 0.0

    def __post_init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._rest = asyncio.Event()
        self._within: Sequence[str] = ()
        self._once: tuple[Mapping[str, str], Sequence[str]] = ({}, ())

    @property
    def pid(self) -> int | None:
        """Of the program itself, also when it runs under another; None while it does not run."""
        process = self._process
        if process is None or process.returncode is not None:
            return None
        if self._within:
            return next(iter(children(process.pid)), None)
        return process.pid

    async def start(self) -> None:
        """Run it, and keep it running."""
        self._rest.clear()
        await self._spawn()
        self._keeping = asyncio.create_task(self._keep())

    async def stop(self) -> int:
        """End it in the orderly way; its exit code, which is not among `ends`. It does not start again."""
        self._rest.set()
        assert self._keeping is not None
        if self.pid is not None:
            self.send(Signals.SIGCONT)
            self.send(Signals.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(self._keeping), HANG)
        except TimeoutError:
            self.send(Signals.SIGKILL)
            await self._keeping
        self._keeping = None
        return self.ends.pop().code

    async def alive(self, after: float = 0.0) -> None:
        """Wait until it runs, in a life that began later than `after`."""
        while self.began <= after or self.pid is None:  # noqa: ASYNC110 - nothing notifies us of processes
            await asyncio.sleep(LOOK)

    async def restart(self, environment: Mapping[str, str] = {}, within: Sequence[str] = ()) -> None:
        """End it in the orderly way, and give its next life, and no later one, these.

        within: what stands in front of the command, such as `strace` with its options.
        """
        life, self._once = self.began, (environment, within)
        self.send(Signals.SIGTERM)
        await self.alive(after=life)

    def send(self, number: Signals) -> bool:
        """Whether there was a process to get it."""
        if (pid := self.pid) is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
            return True
        return False

    def send_to_children(self, number: Signals) -> bool:
        """Whether its own processes were there to get it."""
        found = children(self.pid) if self.pid is not None else []
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return bool(found)

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            code = await self._process.wait()
            self.ends.append(End(code, time.monotonic()))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._rest.wait(), 0.0 if self._rest.is_set() else self.pause)
            if self._rest.is_set():
                return
            await self._spawn()

    async def _spawn(self) -> None:
        (more, self._within), self._once = self._once, ({}, ())
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", MARK: self.mark, **self.environment, **more}
        with self.log.open("ab") as log:
            self.began = time.monotonic()
            self._process = await asyncio.create_subprocess_exec(
                *(*self._within, sys.executable, *self.line),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
            )


async def once(
    line: Sequence[str], log: Path, mark: str, environment: Mapping[str, str] = {}, given: str = ""
) -> int:
    """Run Python with `line` to its end; its exit code, below 0 by a signal. given: what it reads."""
    surroundings = {**os.environ, MARK: mark, **environment}
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, *line),
            stdin=asyncio.subprocess.PIPE,
            stdout=out,
            stderr=out,
            env=surroundings,
        )
        await asyncio.wait_for(process.communicate(given.encode()), HANG)
    assert process.returncode is not None
    return process.returncode


def children(pid: int) -> list[int]:
    """The processes that a process started."""
    try:
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def marked(mark: str) -> list[int]:
    """Processes of a fleet that run now, zombies apart."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            environment = (folder / "environ").read_bytes().split(b"\0")
            if f"{MARK}={mark}".encode() in environment:
                found.append(int(folder.name))
    return found
