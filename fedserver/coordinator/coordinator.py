"""All runs and devices of a server. Decisions are made one at a time, and are on disk before anyone sees
them.

Devices call through `fedserver.coordinator.device_api`, operators through
`fedserver.coordinator.operator_api`; neither depends on the network.
"""

import asyncio
import itertools
import logging
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from fedserver.config import Settings
from fedserver.coordinator.answers import NOTHING_NEW, UNKNOWN
from fedserver.coordinator.clock import Clock
from fedserver.coordinator.history.meter import Meter
from fedserver.coordinator.known_runs import KnownRuns
from fedserver.coordinator.published import Published
from fedserver.coordinator.recipe import Recipe, recipe_of
from fedserver.coordinator.repair.caretaker import Caretaker
from fedserver.coordinator.repair.damage import lost_blob
from fedserver.coordinator.repair.recovery import Recovery
from fedserver.coordinator.rollouts import Rollouts
from fedserver.coordinator.runs import Lease, Run
from fedserver.coordinator.series import Series
from fedserver.coordinator.starting import Starting
from fedserver.coordinator.status import DEPOSED, problems, shared, summary_of
from fedserver.coordinator.status_types import RunSummary
from fedserver.coordinator.visits import cadence
from fedserver.coordinator.visits.counting import Counting
from fedserver.coordinator.visits.visitor import Quota, Signal, Visitor, unlabeled
from fedserver.coordinator.withdrawal import Withdrawals
from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.disk_space import wait_for
from fedserver.store.engines import Elsewhere
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.records import RunRecord, RunSpec
from fedserver.store.store import Storage
from shoal.core.algorithm import State
from shoal.core.engine.events import Event, Joined, Left
from shoal.core.engine.rounds import Stage
from shoal.core.errors import ConfigError, DiskFull, InDoubt, NotFound, ServerFull, StorageFault, Unavailable
from shoal.core.exchange.link import Idle, Task
from shoal.core.exchange.tensors import nbytes
from shoal.core.privacy.secure.cohort import Unsigned, Verifier
from shoal.core.types import DeviceId, RunId
from shoal.shell import crash

T = TypeVar("T")
log = logging.getLogger("shoal.server")

JOURNAL_INTERVAL = 5.0
"""Seconds between two updates of devices and traffic in the journal. A crash loses at most that much."""


class Coordinator:
    """Coordinates all runs and devices of a server. Created by `open`.

    broken: done when the process has to be restarted; its result is the reason, such as a write that the disk
    refused. conflicts: what devices have seen that is not in this server's history, see
    `fedserver.store.history`. recovery: the runs that have not been restored yet after the start, and those
    that cannot be read. known: how many devices called before the start. barred: devices that were revoked
    since the start; reports of theirs that do not count yet will not count. may_train: whether a device may
    take part in runs; in plain text every device may, and `fedserver.rpc.server.listen` asks its role.
    labels_of: what each device is labeled with; nothing in plain text.
    published: the releases and channels. rollouts: what devices try beside them. starting: how runs begin.
    series: those that start by themselves. withdrawals: of devices whose data are to count no more.
    signatures: checks what devices sign for each other; in plain text they are believed.
    attention: sources of notices. quota: what newcomers may have in a day; in plain text, all.
    """

    def __init__(self, storage: Storage, settings: Settings) -> None:
        self.storage, self.settings = storage, settings
        self.conflicts: dict[DeviceId, str] = {}
        self.recovery = Recovery(storage, lambda *found: self.in_turn(self.add(*found)))
        self.runs = KnownRuns(self.recovery)
        self.published = Published(storage, self.runs)
        self.barred: set[DeviceId] = set()
        self.rollouts = Rollouts(
            storage, self.published, self.in_turn, self.barred, lambda: not self.conflicts
        )
        self.caretaker = Caretaker(
            storage, lambda: list(self.runs.values()), self.in_turn, lambda: bool(self.recovery.pending)
        )
        self.withdrawals = Withdrawals(storage, self.runs, self.in_turn, self.restart)
        self.starting = Starting(
            storage,
            settings.heartbeat,
            self.runs,
            self.published,
            self.withdrawals,
            self.check_beginning,
            self.connected,
            self.add,
        )
        self.series = Series(storage, self.runs, self.in_turn, self.starting)
        self.visitors: dict[DeviceId, Visitor] = {}
        self.known = 0
        self.quota = Quota()
        self.may_train: Callable[[DeviceId], bool] = lambda device: True
        self.labels_of: Callable[[DeviceId], Mapping[str, str]] = unlabeled
        self.signatures: Verifier = Unsigned()
        self.meter = Meter()
        self.attention: list[Callable[[], Iterable[str]]] = []
        self.changed = Signal()
        self.stopping = self.closed = False
        self.broken: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()
        self.counting = Counting(storage, self.in_turn, self.barred)
        self._turn = asyncio.Lock()
        self._background: list[asyncio.Task[None]] = []

    @classmethod
    async def open(cls, state: Path, settings: Settings, elsewhere: Elsewhere | None = None) -> "Coordinator":
        """Open a state folder and continue where the server stopped, or where another one did.

        Raises ConfigError, StorageFault, and NotLeader while another server uses the database elsewhere.
        """
        storage = await Storage.open(state, elsewhere)
        coordinator = cls(storage, settings)
        try:
            coordinator.attention.append(Clock(await storage.call(storage.identities.audit.newest)).notices)
            await storage.when_space(storage.history.begin_start)
            crash.point("server.booted")
            coordinator.conflicts = await storage.call(storage.history.conflicts)
            if found := await storage.call(storage.store.clean_up):
                log.info(found)
            coordinator.known = len(await storage.call(storage.journal.devices))
            crash.point("server.scrubbed")
            coordinator._background.append(await coordinator.recovery.begin())
        except BaseException as error:
            await storage.close()
            if coordinator.broken.done():  # by a run that was restored first, and goes on already
                raise coordinator.broken.result() from error
            raise
        await asyncio.to_thread(storage.space.hold, coordinator.low_water())
        coordinator._background.append(asyncio.create_task(coordinator._tick()))
        coordinator._background.append(asyncio.create_task(coordinator.caretaker.work()))
        for task in coordinator._background:
            task.add_done_callback(coordinator._ended_early)
        return coordinator

    async def close(self) -> None:
        """Answer waiting calls, let running reductions finish, and store everything that is still in
        memory."""
        self.stop_serving()
        self.storage.stop_waiting()
        await asyncio.gather(*(run.settle(self.settings.grace) for run in self.runs.active()))
        for task in self._background:
            task.cancel()
            await asyncio.wait([task])
        async with self._turn:
            self.closed = True
            with suppress(StorageFault):
                await self.write_journal()
            await self.storage.close()

    def stop_serving(self) -> None:
        """From now on, ask devices to try again later."""
        self.stopping = True
        for visitor in self.visitors.values():
            visitor.changed.fire()
        for run in self.runs.values():
            run.changed.fire()

    def check_serving(self) -> None:
        """Raises Unavailable once the server is stopping."""
        if self.stopping:
            window = (1.0, 1.0 + cadence.spread(self.fleet()))
            raise Unavailable("the server is stopping", "try again in a minute", window)

    def check_deciding(self) -> None:
        """Raises ServerFull while the last decision waits for disk space, and InDoubt while an operator has
        to decide which history is valid."""
        if self.conflicts:
            raise InDoubt(
                "the server state is older than what devices have seen; new work is refused",
                "the server's operator has to decide; try again later",
            )
        if self.storage.full:
            raise ServerFull(wait_for(self.storage.full).said, "its operator sees why; try again in a minute")

    def check_beginning(self, spec: RunSpec) -> None:
        """Raises Unavailable, ServerFull or InDoubt while no run may begin, and ConfigError for labels where
        devices have none."""
        self.check_serving()
        self.check_deciding()
        if spec.labels and self.labels_of is unlabeled:
            raise ConfigError("devices have labels only on a server with certificates", "leave them out")

    def low_water(self) -> int:
        """How many bytes should stay free: the end of a round stores new models before it deletes older
        ones."""
        models = (model for run in self.runs.active() for model in run.engine.state.models.values())
        return max(self.settings.low_water, 2 * sum(map(nbytes, models)))

    def summary(self, run: Run, known: Iterable[DeviceId] = ()) -> RunSummary:
        """A run as it is displayed, with what it waits for. known: devices that may take part in it."""
        found, full = summary_of(run, self.able(run, known)), self.storage.full
        found = replace(found, next_run=self.series.time_left(run))
        if found.over or not (full or self.conflicts or run.paused):
            return found
        what = wait_for(full).what if full else "an operator: see `fedserver status`"
        if run.paused and not full and not self.conflicts:
            what = f"an operator: it is paused ({run.paused}); resume it with: fedserver run resume {run.run}"
        return replace(found, waiting_for=what, waiting_devices=(), time_left=None)

    def able(self, run: Run, known: Iterable[DeviceId]) -> list[DeviceId]:
        """Those of these devices that have the labels that a run asks for."""
        wanted = run.spec.labels.items()
        return [each for each in known if wanted <= self.labels_of(each).items()]

    def answers(self, run: Run, known: Iterable[DeviceId]) -> dict[DeviceId, str]:
        """What these devices have answered to a run that goes on, and "" for those that are connected and
        have not answered."""
        here = {*self.connected(run.spec.labels), *run.answers} if run.active else set[DeviceId]()
        return {each: run.answers.get(each, UNKNOWN) for each in self.able(run, known) if each in here}

    def notices(self) -> tuple[str, ...]:
        """What an operator has to know: what keeps the server from working, and what `attention` adds."""
        found = problems(self.storage, self.conflicts, self.low_water())
        found += shared(self.visitors.values()) + self.series.notices()
        return (*found, *(notice for source in self.attention for notice in source()))

    async def check_mark(self, device: DeviceId, mark: str) -> None:
        """Compare the mark that a device shows with the history. After the first conflict the server begins
        nothing new; work that has begun may end."""
        if mark and (why := await self.storage.call(self.storage.history.check_mark, device, mark)):
            if device not in self.conflicts:
                log.error("device %s has seen %s; from now on new work is refused", device, why)
            self.conflicts[device] = why
            for run in self.runs.active():
                run.held = True

    async def in_turn(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` while no other work runs in turn, and to its end even if the caller is canceled."""
        return await _to_the_end(self._in_order(work), work)

    async def at_once(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` at once, beside other work, and to its end even if the caller is canceled."""
        return await _to_the_end(self._unless_broken(work), work)

    async def _in_order(self, work: Coroutine[Any, Any, T]) -> T:
        async with self._turn:
            return await self._unless_broken(work)

    async def _unless_broken(self, work: Coroutine[Any, Any, T]) -> T:
        if self.closed or self.broken.done():  # only a restart can find out what a failed disk has stored
            raise Unavailable("the server has stopped", "try again in a minute")
        try:
            return await work
        except (DiskFull, DamagedRow):  # nothing was decided, see `fedserver.store.disk_space`
            raise
        except StorageFault as fault:
            self._break(fault)
            raise

    def _break(self, reason: BaseException) -> None:
        if not self.broken.done():
            self.broken.set_result(reason)

    # -- runs -----------------------------------------------------------------------------------------------

    async def add(self, record: RunRecord, recipe: Recipe, state: State, blobs: BlobCache) -> None:
        """Add a run that is new, or that was found at the start."""
        reports = (
            await self.storage.call(self.storage.reports.of_round, record.run, record.round)
            if record.asked
            else []
        )
        run = Run(
            record,
            recipe,
            state,
            [report.device for report in reports],
            self.storage,
            blobs,
            self._wake,
            self.in_turn,
            self.meter,
            self.published.of_finished,
        )
        self.runs.enter(run)
        run.held = bool(self.conflicts)
        expected = {*record.memory.fleet, *record.asked, *itertools.chain(*record.stepped_in)}
        for device, standing in (await self.storage.call(self.storage.journal.standings)).items():
            if device in expected and standing.ended and run.active:
                await run.feed(Left(device, f"it was {standing.value}", for_good=True))
        await run.take_up(bool(record.asked))
        for visitor in self.visitors.values():
            visitor.sent_finished = False
            visitor.changed.fire()
        self.changed.fire()

    async def restart(self, run: RunId, why: str) -> None:
        """In turn: let a run that is over go on from its last checkpoint, as a start of the server does."""
        found, storage = self.runs.named(run), self.storage
        names = (await storage.call(storage.runs.checkpoints, run))[0][1]
        if lost := await lost_blob(storage, names):
            raise NotFound(f"the last models of run {run} cannot be used: {lost}", "restore a backup")
        blobs = storage.blob_cache(run)
        state = await storage.call(blobs.load_state, found.state_type)
        recipe = await asyncio.to_thread(recipe_of, found.spec)
        record = await storage.when_space(storage.runs.reactivate, run, why)
        await self.add(record, recipe, state, blobs)
        await self.runs.named(run).note(why)

    # -- devices --------------------------------------------------------------------------------------------

    def visitor(self, device: DeviceId) -> Visitor:
        """The state of a device that says hello, or asks to be placed; a new one for its first call since the
        start."""
        return self.visitors.setdefault(device, Visitor(device))

    def fleet(self) -> int:
        """How many devices there are, as far as is known."""
        return max(self.known, len(self.visitors))

    def connected(
        self, labels: Mapping[str, str] | None = None, *, polling: bool = False
    ) -> tuple[DeviceId, ...]:
        """Devices in a session that may train and have these labels. polling: only those that wait now."""
        found = (each for each in self.visitors.values() if each.session and (each.polling or not polling))
        able, wanted = (each.device for each in found if self.may_train(each.device)), (labels or {}).items()
        return tuple(sorted(each for each in able if wanted <= self.labels_of(each).items()))

    def is_waiting(self, device: DeviceId) -> bool:
        """Whether a device waits for a task at this moment, so that it is here although it does not call."""
        return device in self.visitors and self.visitors[device].polling > 0

    def heard(self, visitor: Visitor) -> None:
        """Note that a device has just called."""
        visitor.seen()
        for run in self.runs.active():
            run.heard(visitor.device)

    async def join(self, visitor: Visitor) -> None:
        """Let a device that is ready to work take part in every active run.

        This is the only place where a device enters a run. A device that may not train never does, whatever
        it calls: a round would ask it, and wait for a report that it must not send.
        """
        self.heard(visitor)
        if not self.may_train(visitor.device):
            return
        labels = self.labels_of(visitor.device).items()
        for run in self.runs.active():
            is_in = run.run in visitor.joined and run.present(visitor.device)
            sits_out = run.answers.get(visitor.device) == NOTHING_NEW
            if not is_in and not sits_out and run.admits(labels):
                await self.in_turn(self._join(run, visitor))

    async def _join(self, run: Run, visitor: Visitor) -> None:
        if visitor.session and (run.run not in (joined := visitor.joined) or not run.present(visitor.device)):
            await run.advance(Joined(visitor.device))
            joined.add(run.run)  # only now: until it has its task, other calls of this session wait here
            visitor.forget_all_but({each.run for each in self.runs.active()})

    async def leave(self, visitor: Visitor) -> None:
        visitor.end()
        for run in self.runs.active():
            await self.in_turn(self._feed_if_present(run, visitor.device, Left(visitor.device)))

    async def revoked(self, device: DeviceId, how: str = "revoked") -> None:
        """A device will not come back: no run waits for it."""
        if visitor := self.visitors.get(device):
            visitor.end()
        for run in self.runs.active():
            await self.in_turn(run.advance(Left(device, f"it was {how}", for_good=True)))

    async def _feed_if_present(self, run: Run, device: DeviceId, event: Event) -> None:
        if run.present(device):
            await run.advance(event)

    def task_for(self, device: DeviceId) -> Task | None:
        """The task that is leased to a device, from the oldest run that has one for it."""
        for run in self.runs.active():
            if lease := run.lease(device):
                return lease.task
        return None

    def leases(self, visitor: Visitor) -> list[Lease]:
        """The tasks of a device: first the one that it was given last, then those that still wait for it."""
        runs = sorted(self.runs.active(), key=lambda run: run.run != visitor.given)
        return [lease for run in runs if (lease := run.lease(visitor.device))]

    def idle(self) -> Idle:
        """The answer to a device for which there is no task."""
        active = self.runs.active()
        if not active and self.recovery.pending:
            return Idle("the server is checking its files after the start", 0.0, 1.0)
        # A run that has not been restored yet, or that cannot be read, may continue later.
        unknown = self.recovery.pending or self.recovery.unreadable
        going_on = None if unknown else tuple(run.run for run in active)
        if active:
            first = next((run for run in active if not run.paused), active[0])
            waiting = "it is paused" if first.paused else first.engine.progress()
            text = f"run {first.run}: {waiting}"
            return Idle(text, 0.0, 1.0, going_on=going_on)
        if self.runs:
            return Idle("every run is over", 1.0, 5.0, True, going_on)
        return Idle("no run has been started yet", 0.0, 1.0)

    def _wake(self, device: DeviceId) -> None:
        if device in self.visitors:
            self.visitors[device].changed.fire()

    # -- time -----------------------------------------------------------------------------------------------

    async def _tick(self) -> None:
        """Check deadlines and the timeouts of devices regularly, and keep the journal up to date."""
        noted, deposed = time.monotonic(), False
        while True:
            await asyncio.sleep(self.settings.tick)
            await self.storage.until_reachable()
            for run in self.runs.active():
                run.hear_those_that(self.is_waiting)
                if run.engine.stage is not Stage.REDUCING and not (run.held or run.paused):
                    await self.in_turn(run.advance())
            await self.series.start_due()
            if time.monotonic() - noted > JOURNAL_INTERVAL:
                await self.in_turn(self.write_journal())
                await asyncio.to_thread(self.storage.space.hold, self.low_water())
                if not deposed and (deposed := await asyncio.to_thread(self.storage.is_deposed)):
                    log.error(DEPOSED)
                noted = time.monotonic()

    def _ended_early(self, task: "asyncio.Task[None]") -> None:
        """End the process: without ticks no deadline is noticed, and without the recovery runs are
        missing."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._break(error)

    async def write_journal(self) -> None:
        """Store which devices called and how much they transferred.

        On a full disk both wait for the next time.
        """
        self.meter.only_of(run.run for run in self.runs.active())
        seen = [visitor for visitor in self.visitors.values() if not visitor.noted]
        if seen:
            records = [visitor.record() for visitor in seen]
            for visitor in seen:
                visitor.noted = True
            try:
                await self.storage.call(self.storage.journal.note_devices, records)
            except DiskFull:
                for visitor in seen:
                    visitor.noted = False
        if traffic := self.meter.take():
            try:
                await self.storage.call(self.storage.journal.add_traffic, traffic)
            except DiskFull:
                self.meter.give_back(traffic)


async def _to_the_end(ordered: Coroutine[Any, Any, T], work: Coroutine[Any, Any, T]) -> T:
    """Run `ordered`, which awaits `work` unless it is canceled or refuses to before it has begun."""
    task = asyncio.create_task(ordered)
    task.add_done_callback(lambda _: work.close())
    return await asyncio.shield(task)
