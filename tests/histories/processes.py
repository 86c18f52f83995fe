"""A process of the simulated world: what runs in it dies with it, at once and at any step."""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from random import Random
from typing import Any

_CURRENT: ContextVar["Process | None"] = ContextVar("process", default=None)

SERVER = "server"
"""The machine that the server runs on; the others have their devices' names."""
YEAR = 365.0 * 86400.0


class Crashed(asyncio.CancelledError):
    """The end of a process, as the code in it sees it. It may tidy up; nothing of that has an effect."""


class Process:
    """One life of a server or a device.

    machine: whose disk it uses. identity: the device it says it is. fuse: steps until it dies, 0 for none;
    fuse_on: the only steps that count, "" for all.
    clock_error: seconds that its clock is off; the server's is right, for certificates need it.
    power: whether the machine loses its power with it. says: called with what happens, for the trace.
    open: files and databases that the operating system closes at its end.
    """

    def __init__(
        self, machine: str, identity: str, chance: Random, says: Callable[[str, str, str], None]
    ) -> None:
        self.machine, self.identity = machine, identity
        self.clock_error = 0.0 if machine == SERVER else chance.choice((0.0, chance.uniform(-YEAR, YEAR)))
        self.uptime = chance.uniform(0.0, 1e6)
        self.alive, self.paused, self.power, self.fuse, self.fuse_on = True, False, False, 0, ""
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.held: list[asyncio.Handle] = []
        self.on_death: list[Callable[[], None]] = []
        self.open: list[Any] = []
        self._says = says
        self._context = copy_context()
        self._context.run(_CURRENT.set, self)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        return asyncio.get_running_loop().create_task(work, context=self._context.copy())

    def step(self, what: str, detail: str = "") -> None:
        """A point at which the process may die. Raises Crashed when it does, or is dead already."""
        if not self.alive:
            raise Crashed
        self._says(self.machine, what, detail)
        if self.fuse and self.fuse_on in ("", what):
            self.fuse -= 1
            if not self.fuse:
                self.kill()
                raise Crashed

    def kill(self) -> None:
        """Nothing that the process does from here on has an effect."""
        if not self.alive:
            return
        self._says(self.machine, "power cut" if self.power else "killed", "")
        self.alive, self.paused = False, False
        for task in list(self.tasks):
            task.cancel()
        for each in self.on_death:
            each()

    async def reaped(self) -> None:
        """Wait until nothing of a process that ended runs any more."""
        for _ in range(1000):
            pending = [task for task in self.tasks if not task.done()]
            if not pending:
                break
            for task in pending:
                task.cancel()
            await asyncio.sleep(0)
        else:
            raise AssertionError(f"{self.machine}: tasks that cannot be ended: {pending}")
        for each in self.open:
            each.close()


def current() -> Process | None:
    """The process that runs now; None for the world around them."""
    return _CURRENT.get()


def process_of(context: Context) -> Process | None:
    return context.get(_CURRENT)
