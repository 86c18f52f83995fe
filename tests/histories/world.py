"""One history: a server and its devices, started again by supervisors whenever they end, and watched."""

import asyncio
import functools
import hashlib
import shutil
import tempfile
import traceback
import warnings
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from fedserver.coordinator.coordinator import Coordinator
from fedserver.store.identities.audit import verify
from shoal.core import algorithm
from shoal.core.errors import Refused, ShoalError, StorageFault
from tests.histories.database import Looked
from tests.histories.devices import KEPT, Worker, model_of, serve
from tests.histories.disk import Disk
from tests.histories.identity import Identities
from tests.histories.invariants import Invariants, Violation, check
from tests.histories.loop import SimLoop
from tests.histories.nemesis import Nemesis
from tests.histories.network import Network
from tests.histories.plan import Plan, plan_of
from tests.histories.processes import SERVER, Process
from tests.histories.server import Server
from tests.histories.system import simulated
from tests.quiet import quiet

LONGEST = 300.0, 200.0
"""Seconds in which the runs must end once faults have stopped: in any case, and for each exchange."""
SHOWN = 400
"""Lines of the trace that a failing history shows."""


class World:
    """What happens in it follows from the plan. trace: the last lines; digest: of all of them.

    bugs: what did not hold. gone: devices that never return. rotten: whether a bit was flipped. equalled:
    runs whose bits were compared with those of a run without faults.
    """

    def __init__(self, plan: Plan, folder: Path, verbose: bool, url: str = "") -> None:
        self.plan, self.verbose = plan, verbose
        self.trace: deque[str] = deque(maxlen=None if verbose else SHOWN)
        self.digest = hashlib.sha256()
        self.steps = self.equalled = 0
        self.loop = SimLoop(self.chance("loop"), plan.stall)
        self.network = Network(self.chance("network"), plan.weather)
        self.machines = [SERVER, *self.devices(), *(f"{device}-twin" for device in self.devices())]
        self.folders = {machine: folder / machine for machine in self.machines}
        self.disks = {
            machine: Disk(path, self.chance(f"disk {machine}")) for machine, path in self.folders.items()
        }
        for path in self.folders.values():
            path.mkdir()
        self.initial = model_of(plan.values) if plan.initial else None
        self.identities = Identities(self.devices()) if "revoke" in plan.troubles else None
        self.looked = self._looked(url)
        self.invariants = Invariants(plan, self.looked, self.initial)
        self.loop.after_work = self.look
        self.processes: dict[str, Process] = {}
        self.server = Server(self)
        self.bugs: list[str] = []
        self.calm = self.rotten = False
        self.gone: set[str] = set()
        self._base = f"{folder}/"
        self._lives: dict[str, int] = {}

    def _looked(self, url: str) -> Looked:
        if not url:
            return Looked(self.folders[SERVER])
        from tests.histories.postgresql import OnPostgresql  # psycopg is optional

        return OnPostgresql(url, self.folders[SERVER])

    def devices(self) -> list[str]:
        return [f"d{number}" for number in range(self.plan.devices)]

    def spares_one(self) -> bool:
        """Whether every run can do without one of the devices."""
        return all(run.policy.minimum < self.plan.devices for run in self.plan.runs)

    def chance(self, what: str) -> Random:
        return Random(f"{self.plan.seed} {what}")

    def say(self, who: str, what: str, detail: str = "") -> None:
        detail = detail.replace(self._base, "")  # its name is another each time
        line = f"{self.loop.now:10.4f} {who:9} {what} {detail}".rstrip()
        self.digest.update(line.encode())
        self.trace.append(line)
        self.steps += 1

    def bug(self, text: str) -> None:
        self.say("world", "bug", text)
        self.bugs.append(text)

    def look(self) -> None:
        try:
            self.invariants.look()
        except Violation as violation:
            self.bug(str(violation))

    def observe(self, path: str, device: str, request: bytes, response: Any) -> None:
        try:
            self.invariants.answered(path, device, request, response)
        except Violation as violation:
            self.bug(str(violation))

    # -- processes --------------------------------------------------------------------------------------

    async def keep(self, machine: str, identity: str, main: Callable[[Process], Awaitable[None]]) -> None:
        """Start a process again whenever it has ended, unless it is gone for good."""
        chance = self.chance(f"supervisor {machine}")
        if self.identities is not None and identity:
            await self.identities.joined[identity].wait()
        while True:
            process = self.processes[machine] = Process(machine, identity, chance, self.say)
            over: asyncio.Future[None] = self.loop.create_future()
            process.on_death.append(lambda over=over: over.done() or over.set_result(None))  # type: ignore[misc]
            work = process.spawn(main(process))  # type: ignore[arg-type]
            work.add_done_callback(lambda _, over=over: over.done() or over.set_result(None))  # type: ignore[misc]
            try:
                await over
            finally:
                ended_by_itself = work.done() and process.alive and not work.cancelled()
                if ended_by_itself and (error := work.exception()) is not None:
                    self._ended_with(machine, error)
                process.alive = False
                await process.reaped()
            if process.power:
                self.say(machine, "what was not synced is lost")
                self.disks[machine].lose_power()
            if identity in self.gone:
                return
            await asyncio.sleep(chance.uniform(0.1, 5.0))

    def _ended_with(self, machine: str, error: BaseException) -> None:
        """A process ended with an error: only a disk that failed is a reason."""
        self.say(machine, "ended", f"{type(error).__name__}: {error}")
        if self.identities is not None and isinstance(error, Refused):
            check(machine.removesuffix("-twin") in self.identities.ending, f"{machine} was refused: {error}")
        elif not (isinstance(error, StorageFault | OSError) and self.disk_may_fail(machine)):
            self.bug(f"{machine} ended with {type(error).__name__}: {error}")

    def disk_may_fail(self, machine: str) -> bool:
        return ("server disk" if machine == SERVER else "device disk") in self.plan.troubles

    def device(self, machine: str, number: int) -> Callable[[Process], Awaitable[None]]:
        plan = self.plan

        async def main(process: Process) -> None:
            life = self._lives[machine] = self._lives.get(machine, 0) + 1
            chance = self.chance(f"{machine} {life}")

            def make(store: Any) -> Worker:
                return Worker(
                    number,
                    store,
                    chance,
                    self.invariants.performed,
                    seconds=plan.work,
                    failing=lambda: 0.0 if self.calm else plan.failing,
                    fresh=plan.fresh,
                    values=plan.values,
                )

            says = lambda text: self.say(machine, "says", text)  # noqa: E731
            await serve(self.folders[machine], number, chance, make, says, plan.inline)

        return main

    # -- the history ------------------------------------------------------------------------------------

    async def history(self) -> None:
        keeping = [asyncio.create_task(self.keep(SERVER, "", self.server.main))]
        for number, name in enumerate(self.devices()):
            keeping.append(asyncio.create_task(self.keep(name, name, self.device(name, number))))
        try:
            await self._rage_and_rest(keeping)
        finally:
            for task in keeping:
                task.cancel()
            await asyncio.gather(*keeping, return_exceptions=True)
        if not self.bugs:
            await self.rest()

    async def _rage_and_rest(self, keeping: "list[asyncio.Task[None]]") -> None:
        """Faults for a while, then none until everything is over."""
        nemesis = Nemesis(self)
        await nemesis.rage(self.plan.calm)
        await nemesis.end()
        self.calm = True
        self.say("world", "faults have stopped")
        longest = LONGEST[0] + LONGEST[1] * self.plan.exchanges
        since = self.loop.now
        while not self.over() and not self.bugs:
            for ended in [task for task in keeping if task.done()]:
                ended.result()
            if self.loop.now - since > longest:
                waits = self.server.waits_for()
                self.bug(f"I6: {longest:.0f} s after the last fault it is not over: {waits}")
                break
            await asyncio.sleep(1.0)
        await asyncio.sleep(20.0)  # time to bring what is late, and to learn so

    def over(self) -> bool:
        runs = self.invariants.runs
        return len(runs) == len(self.plan.runs) and all(run.standing != "active" for run in runs.values())

    async def rest(self) -> None:
        """The server starts once more, and everything is in its place."""
        opening = Coordinator.open(self.folders[SERVER], self.plan.settings, self.looked.elsewhere)
        coordinator = await opening
        while coordinator.recovery.pending:  # noqa: ASYNC110 - what is waited for is a thread
            await asyncio.sleep(0.1)
        await coordinator.caretaker.check()  # what rotted last was not used yet
        ends = {run.run: (run.standing.value, run.reason) for run in coordinator.runs.values()}
        sound = all(end == "finished" or self.invariants.gave_up(run) for run, (end, _) in ends.items())
        check(sound, f"I6: {ends}")
        await coordinator.close()
        if self.identities is not None:
            verdict = verify(self.folders[SERVER], table=self.looked.table)
            check(not verdict.wrong, f"I8: the audit log: {verdict.wrong}")
        folders = {name: self.folders[name] for name in self.devices()}
        self.invariants.rest(folders, KEPT)
        self.equalled = self.invariants.compare_with_simulation()


def play(seed: int, verbose: bool = False, url: str = "") -> World:
    """One history to its end. Raises nothing: what went wrong is in `bugs`.

    url: a database of PostgreSQL, whose contents are lost; "" for SQLite.
    """
    shm = Path("/dev/shm")
    base = Path(tempfile.mkdtemp(prefix="shoal-history-", dir=shm if shm.is_dir() else None))
    world = World(plan_of(seed), base, verbose, url)
    world.loop.set_exception_handler(lambda _, context: _unheard(world, context))
    try:
        roots = {world.folders[machine]: disk for machine, disk in world.disks.items()}
        # What is installed does not change; to ask for it takes longer than most histories' rounds.
        installed = patch("shoal.core.algorithm.discover", functools.cache(algorithm.discover))
        names, chunk, channel = world.chance("names"), world.plan.chunk, world.network.channel
        with (
            quiet(),
            warnings.catch_warnings(),
            installed,
            world.looked.used_by(world.disks[SERVER]),
            simulated(world.loop, roots, names, chunk, channel),
        ):
            # those of processes that were killed
            warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
            world.loop.run_until_complete(world.history())
            world.loop.run_until_complete(world.loop.shutdown_asyncgens())
    except Exception as error:
        world.bug("".join(traceback.format_exception(error)))
    finally:
        world.invariants.close()
        world.loop.close()
        shutil.rmtree(base, ignore_errors=True)
    return world


def _unheard(world: World, context: dict[str, Any]) -> None:
    """An error that no one heard: one of ours was for a caller that had left; all others are bugs."""
    if not isinstance(context.get("exception"), ShoalError):
        world.bug(f"{context.get('message')}: {context.get('exception')!r}")
