"""All runs and devices of a server. One thing happens at a time, and what is decided is on disk first.

A device's calls come through `link`, an operator's through `fedserver.coordinator.operator_api`; neither
knows of the network.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fedserver.config import Settings
from fedserver.coordinator.recovery import Recovery
from fedserver.coordinator.runs import Lease, Recipe, Run
from fedserver.coordinator.status import summary_of
from fedserver.coordinator.status_types import RunSummary
from fedserver.coordinator.visitor import Signal, Visitor
from fedserver.store.journal import Meter
from fedserver.store.records import RunRecord
from fedserver.store.store import BlobCacheCalls, Storage
from shoal.core.algorithm import State
from shoal.core.engine.events import Event, Heard, Joined, Left
from shoal.core.engine.rounds import Stage
from shoal.core.errors import DiskFull, InDoubt, NotFound, ServerFull, StorageFault, Unavailable
from shoal.core.exchange.admit import Limits
from shoal.core.exchange.link import Idle, Task
from shoal.core.types import DeviceId, RunId
from shoal.shell import crash

T = TypeVar("T")
log = logging.getLogger("shoal.server")

RETURNS, FURTHEST = 25.0, 45.0
"""Devices that are to come back in a second when all have lost the server at once; the seconds that this may
take at most."""
NOTES = 5.0
"""Seconds between writing down who was seen and how much was moved; a crash loses no more than that."""


NAMED = 3
"""How many devices that have seen another history are named in a notice."""


class Coordinator:
    """Made by `open`. broken: why the process must start anew, such as a decision that the disk refused.

    conflicts: what devices have seen of a history that is not this server's, see `fedserver.store.history`.
    recovery: the runs that are not back yet after the start, and those that cannot be read.
    known: how many devices were here before the start. barred: devices that were revoked since the start:
    what they reported and has not counted yet will not count.
    """

    def __init__(self, storage: Storage, settings: Settings) -> None:
        self.storage, self.settings = storage, settings
        self.limits = Limits(model=settings.model)
        self.runs: dict[RunId, Run] = {}
        self.conflicts: dict[DeviceId, str] = {}
        self.recovery = Recovery(storage, lambda *found: self.in_turn(self.add(*found)))
        self.visitors: dict[DeviceId, Visitor] = {}
        self.known = 0
        self.barred: set[DeviceId] = set()
        self.meter = Meter()
        self.changed = Signal()
        self.stopping = self.closed = False
        self.broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self._turn = asyncio.Lock()
        self._background: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, state: Path, settings: Settings) -> "Coordinator":
        """Take a state folder and go on where it stopped. Raises ConfigError or StorageFault."""
        storage = await Storage.open(state)
        coordinator = cls(storage, settings)
        try:
            await storage.history.begin_start.when_space()
            crash.point("server.booted")
            coordinator.conflicts = await storage.history.conflicts()
            if found := await storage.clean_up():
                log.info(found)
            coordinator.known = len(await storage.journal.devices())
            crash.point("server.scrubbed")
            coordinator._background.append(await coordinator.recovery.begin())
        except BaseException:
            await storage.close()
            raise
        await asyncio.to_thread(storage.space.hold, coordinator.low_water())
        coordinator._background.append(asyncio.create_task(coordinator._tick()))
        for task in coordinator._background:
            task.add_done_callback(coordinator._ended_early)
        return coordinator

    async def close(self) -> None:
        """Answer whoever waits, let a running reduction finish, and write everything down."""
        self.stop_serving()
        self.storage.stop_waiting()
        await asyncio.gather(*(run.settle(self.settings.grace) for run in self.active()))
        for task in self._background:
            task.cancel()
            await asyncio.wait([task])
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

    def check_deciding(self) -> None:
        """Raises ServerFull while what was decided last waits for room on the disk, InDoubt while an operator
        must say which history holds."""
        if self.conflicts:
            raise InDoubt(
                "the server state is older than what devices have seen; new work is refused",
                "the server's operator has to decide; try again later",
            )
        if self.storage.full:
            raise ServerFull(
                f"the server's disk is full: {self.storage.full.message}",
                "its operator can free some; try again in a minute",
            )

    def low_water(self) -> int:
        """Bytes that are to stay free: a round's end stores models before it removes older ones."""
        models = (model for run in self.active() for model in run.engine.state.models.values())
        size = sum(array.nbytes for model in models for array in model.values())
        return max(self.settings.low_water, 2 * size)

    def summary(self, run: Run, known: Iterable[DeviceId] = ()) -> RunSummary:
        """A run for people, with what it waits for. known: devices that may take part in it."""
        found = summary_of(run, known)
        if found.over or not (self.storage.full or self.conflicts):
            return found
        what = "space on the server's disk" if self.storage.full else "an operator: see `fedserver status`"
        return replace(found, waiting_for=what, waiting_devices=(), time_left=None)

    def notices(self) -> tuple[str, ...]:
        """What keeps the server from its work and needs a person."""
        if self.conflicts:
            named = ", ".join(f"{device} saw {mark}" for device, mark in list(self.conflicts.items())[:NAMED])
            return (
                f"the server state is older than what devices have seen; new work is refused: {named}. To go"
                " on from this state, stop the server and run: fedserver recover --accept",
            )
        if self.storage.full:
            return (f"the disk is full, and all runs wait for space: {self.storage.full}",)
        if lacking := self.storage.space.lacks(self.low_water()):
            return (f"uploads are refused: the disk lacks {lacking} bytes; free some",)
        return ()

    async def check_mark(self, device: DeviceId, mark: str) -> None:
        """Look at the mark that a device brought. From the first one on that is not of this history nothing
        new is begun; what was begun may end."""
        if mark and (why := await self.storage.history.check_mark(device, mark)):
            if device not in self.conflicts:
                log.error("device %s has seen %s; from now on new work is refused", device, why)
            self.conflicts[device] = why
            for run in self.active():
                run.held = True

    async def in_turn(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this when nothing else is going on, and to the end, even if the caller goes away."""
        return await asyncio.shield(asyncio.create_task(self._in_order(work)))

    async def at_once(self, work: Coroutine[Any, Any, T]) -> T:
        """Do this beside whatever is going on, and to the end, even if the caller goes away."""
        return await asyncio.shield(asyncio.create_task(self._unless_broken(work)))

    async def _in_order(self, work: Coroutine[Any, Any, T]) -> T:
        async with self._turn:
            return await self._unless_broken(work)

    async def _unless_broken(self, work: Coroutine[Any, Any, T]) -> T:
        if self.closed or self.broken.done():  # what a disk that failed has taken, only a restart knows
            work.close()
            raise Unavailable("the server has stopped", "try again in a minute")
        try:
            return await work
        except DiskFull:  # nothing was decided, see `fedserver.store.disk_space`
            raise
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
        """Raises NotFound, or Unavailable for one that is not back yet after a start."""
        if run not in self.runs:
            self.check_recovered(run)
            if run in self.recovery.unreadable:
                raise NotFound(f"run {run!r} cannot be read: {self.recovery.unreadable[run][1]}")
            raise NotFound(f"there is no run {run!r}", f"known: {', '.join(self.runs) or 'none'}")
        return self.runs[run]

    def check_recovered(self, run: RunId) -> None:
        """Raises Unavailable while the files of this run are being checked after a start."""
        if run in self.recovery.pending:
            raise Unavailable(f"run {run} is being checked after a start", "try again in a moment")

    async def add(self, record: RunRecord, recipe: Recipe, state: State, blobs: BlobCacheCalls) -> None:
        """A run that is new, or that a restart found."""
        reports = await self.storage.reports.of_round(record.run, record.round) if record.asked else []
        run = Run(
            record,
            recipe,
            state,
            [report.device for report in reports],
            self.storage,
            blobs,
            self._wake,
            self.in_turn,
        )
        self.runs[run.run] = run
        self.runs = dict(sorted(self.runs.items(), key=lambda item: self.recovery.age(item[0])))
        run.held = bool(self.conflicts)
        await run.advance()
        for visitor in self.visitors.values():
            visitor.sent_finished = False
            visitor.changed.fire()
        self.changed.fire()

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

    def end_visits(self) -> None:
        """Every device is to say hello again, because what it was told then has changed. Its work goes on."""
        for visitor in self.visitors.values():
            visitor.end()

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
        if not active and self.recovery.pending:
            return Idle("the server checks its files after a start", 0.0, 1.0)
        # A run that is not back yet, or cannot be read, may go on one day.
        unknown = self.recovery.pending or self.recovery.unreadable
        going_on = None if unknown else tuple(run.run for run in active)
        if active:
            text = f"run {active[0].run}: {active[0].engine.waiting().text}"
            return Idle(text, 0.0, 1.0, going_on=going_on)
        if self.runs:
            return Idle("every run is over", 1.0, 5.0, True, going_on)
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
                if run.engine.stage is not Stage.REDUCING and not run.held:
                    await self.in_turn(run.advance())
            if time.monotonic() - noted > NOTES:
                await self.in_turn(self.write_notes())
                await asyncio.to_thread(self.storage.space.hold, self.low_water())
                noted = time.monotonic()

    def _ended_early(self, task: "asyncio.Task[None]") -> None:
        """Without ticks no deadline would ever come, and without the recovery not every run."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    async def write_notes(self) -> None:
        """Who was seen, and how much was moved. On a full disk both wait for the next time."""
        seen = [visitor for visitor in self.visitors.values() if not visitor.noted]
        if seen:
            records = [visitor.record() for visitor in seen]
            for visitor in seen:
                visitor.noted = True
            try:
                await self.storage.journal.note_devices(records)
            except DiskFull:
                for visitor in seen:
                    visitor.noted = False
        if traffic := self.meter.take():
            try:
                await self.storage.journal.add_traffic(traffic)
            except DiskFull:
                self.meter.give_back(traffic)
