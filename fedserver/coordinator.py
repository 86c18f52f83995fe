"""All runs and devices of a server. One thing happens at a time, and what is decided is on disk first.

A device's calls come through `link`, an operator's through `fedserver.desk`; neither knows of the network.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fedcore.admit import Limits
from fedcore.algorithm import State
from fedcore.errors import NotFound, ShoalError, StorageFault, Unavailable
from fedcore.events import Event, Heard, Joined, Left
from fedcore.link import Idle, Task
from fedcore.rounds import Stage
from fedcore.types import DeviceId, RunId
from fedserver.kept import Kept
from fedserver.recipe import Recipe, recipe_of
from fedserver.records import RunRecord, Standing
from fedserver.runs import Lease, Run
from fedserver.settings import Settings
from fedserver.signals import Signal
from fedserver.storage import Storage
from fedserver.store import Store
from fedserver.traffic import Meter
from fedserver.visitor import Visitor

T = TypeVar("T")
log = logging.getLogger("shoal.server")

RETURNS, FURTHEST = 25.0, 45.0
"""Devices that are to come back in a second when all have lost the server at once; the seconds that this may
take at most."""
NOTES = 5.0
"""Seconds between writing down who was seen and how much was moved; a crash loses no more than that."""


class Coordinator:
    """Made by `open`. broken: why the process must start anew, such as a decision that the disk refused.

    unreadable: runs whose state this version cannot read, and why. known: how many devices were here before
    the start. barred: devices that were revoked since the start: what they reported and has not counted yet
    will not count.
    """

    def __init__(self, storage: Storage, settings: Settings) -> None:
        self.storage, self.settings = storage, settings
        self.limits = Limits(model=settings.model)
        self.runs: dict[RunId, Run] = {}
        self.unreadable: dict[RunId, tuple[RunRecord, str]] = {}
        self.visitors: dict[DeviceId, Visitor] = {}
        self.known = 0
        self.barred: set[DeviceId] = set()
        self.meter = Meter()
        self.changed = Signal()
        self.stopping = self.closed = False
        self.broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._turn = asyncio.Lock()
        self._ticking: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, state: Path, settings: Settings) -> "Coordinator":
        """Take a state folder and go on where it stopped. Raises ConfigError or StorageFault."""
        storage = Storage(state)
        await storage.open()
        coordinator = cls(storage, settings)
        try:
            if found := await storage(Store.scrub):
                log.info(found)
            coordinator.known = len(await storage(Store.devices))
            for record in await storage(Store.runs):
                await coordinator._restore(record)
        except BaseException:
            await storage.close()
            raise
        coordinator._ticking = asyncio.create_task(coordinator._tick())
        coordinator._ticking.add_done_callback(coordinator._time_stands_still)
        return coordinator

    async def close(self) -> None:
        """Answer whoever waits, let a running reduction finish, and write everything down."""
        self.stop_serving()
        await asyncio.gather(*(run.settle(self.settings.grace) for run in self.active()))
        if self._ticking is not None:
            self._ticking.cancel()
            await asyncio.wait([self._ticking])
        async with self._turn:
            self.closed = True
            with suppress(StorageFault):
                await self.write_notes()
            await self.storage.close()

    def stop_serving(self) -> None:
        """From here on devices are told to try again later."""
        self.stopping = True
        for visitor in self.visitors.values():
            visitor.changed.fire()
        for run in self.runs.values():
            run.changed.fire()

    def check_serving(self) -> None:
        if self.stopping:
            raise Unavailable("the server is stopping", "try again in a minute", (1.0, 1.0 + self.spread()))

    async def in_turn(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this when nothing else is going on, and to the end, even if the caller goes away."""
        return await asyncio.shield(asyncio.create_task(self._alone(work)))

    async def _alone(self, work: Coroutine[Any, Any, T]) -> T:
        async with self._turn:
            if self.closed or self.broken.done():  # what a disk that failed has taken, only a restart knows
                work.close()
                raise Unavailable("the server has stopped", "try again in a minute")
            try:
                return await work
            except StorageFault as fault:
                self._break(fault)
                raise

    def _break(self, reason: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_result(reason)

    # -- runs -----------------------------------------------------------------------------------------------

    def active(self) -> list[Run]:
        """Runs that go on, oldest first."""
        return [run for run in self.runs.values() if run.active]

    def run(self, run: RunId) -> Run:
        """Raises NotFound."""
        if run not in self.runs:
            if run in self.unreadable:
                raise NotFound(f"run {run!r} cannot be read: {self.unreadable[run][1]}")
            raise NotFound(f"there is no run {run!r}", f"known: {', '.join(self.runs) or 'none'}")
        return self.runs[run]

    async def add(self, record: RunRecord, recipe: Recipe, state: State, kept: Kept) -> None:
        """A run that is new, or that a restart found."""
        reports = await self.storage(Store.reports, record.run, record.round) if record.asked else []
        run = Run(
            record,
            recipe,
            state,
            [report.device for report in reports],
            self.storage,
            kept,
            self._wake,
            self.in_turn,
        )
        self.runs[run.run] = run
        await run.advance()
        for visitor in self.visitors.values():
            visitor.told = False
            visitor.changed.fire()
        self.changed.fire()

    async def _restore(self, record: RunRecord) -> None:
        kept = Kept(record.run)
        try:
            recipe = await asyncio.to_thread(recipe_of, record.spec)
            state = await self.storage(kept.load_state, recipe.state)
        except (ShoalError, TypeError) as error:
            log.error("run %s cannot be read: %s", record.run, error)
            self.unreadable[record.run] = (record, str(error))
            return
        if record.standing is Standing.ACTIVE:
            log.info("run %s goes on in round %d", record.run, record.round)
        await self.in_turn(self.add(record, recipe, state, kept))

    # -- devices --------------------------------------------------------------------------------------------

    def visitor(self, device: DeviceId) -> Visitor:
        return self.visitors.setdefault(device, Visitor(device))

    def spread(self) -> float:
        """Seconds over which devices are to spread their return from a lost connection."""
        return min(max(1.0, max(self.known, len(self.visitors)) / RETURNS), FURTHEST)

    def heard(self, visitor: Visitor) -> None:
        """A device showed that it lives."""
        visitor.seen()
        for run in self.active():
            if run.present(visitor.device):
                run.engine.feed(Heard(visitor.device))

    async def join(self, visitor: Visitor) -> None:
        """A device is ready to work: it takes part in every run that goes on."""
        self.heard(visitor)
        for run in self.active():
            if run.run not in visitor.joined or not run.present(visitor.device):
                await self.in_turn(self._join(run, visitor))

    async def _join(self, run: Run, visitor: Visitor) -> None:
        if visitor.session and (run.run not in visitor.joined or not run.present(visitor.device)):
            visitor.joined.add(run.run)
            await run.advance(Joined(visitor.device))

    async def leave(self, visitor: Visitor) -> None:
        visitor.end()
        for run in self.active():
            await self.in_turn(self._tell_if_present(run, visitor.device, Left(visitor.device)))

    async def _tell_if_present(self, run: Run, device: DeviceId, event: Event) -> None:
        if run.present(device):
            await run.advance(event)

    def task_for(self, device: DeviceId) -> Task | None:
        """The task that is leased to a device: of the oldest run that has one for it."""
        for run in self.active():
            if lease := run.lease(device):
                return lease.task
        return None

    def leases(self, visitor: Visitor) -> list[Lease]:
        """The tasks of a device: the one that it was given last, and then those that still wait for it."""
        runs = sorted(self.active(), key=lambda run: run.run != visitor.given)
        return [lease for run in runs if (lease := run.lease(visitor.device))]

    def idle(self) -> Idle:
        """What a device is told that has no task."""
        active = self.active()
        if active:
            return Idle(f"run {active[0].run}: {active[0].engine.waiting().text}", 0.0, 1.0)
        if self.runs:
            return Idle("every run is over", 1.0, 5.0, finished=True)
        return Idle("no run was started yet", 0.0, 1.0)

    def _wake(self, device: DeviceId) -> None:
        if device in self.visitors:
            self.visitors[device].changed.fire()

    # -- time -----------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Look at the clock, for deadlines and for devices that fell silent."""
        noted = time.monotonic()
        while True:
            await asyncio.sleep(self.settings.tick)
            for visitor in self.visitors.values():
                if visitor.polling:
                    self.heard(visitor)
            for run in self.active():
                if run.engine.stage is not Stage.REDUCING:
                    await self.in_turn(run.advance())
            if time.monotonic() - noted > NOTES:
                await self.in_turn(self.write_notes())
                noted = time.monotonic()

    def _time_stands_still(self, ticking: "asyncio.Task[None]") -> None:
        """Without ticks no deadline would ever come."""
        if not ticking.cancelled() and (error := ticking.exception()) is not None:
            self._break(error)

    async def write_notes(self) -> None:
        """Who was seen, and how much was moved."""
        seen = [visitor for visitor in self.visitors.values() if not visitor.noted]
        if seen:
            for visitor in seen:
                visitor.noted = True
            await self.storage(Store.note_devices, [visitor.record() for visitor in seen])
        if traffic := self.meter.take():
            await self.storage(Store.add_traffic, traffic)
