"""One run: its round engine, and the effects of the engine on the disk and on devices."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fedserver.coordinator import combining, first_graph
from fedserver.coordinator.answers import YES
from fedserver.coordinator.combining import Combination
from fedserver.coordinator.history.meter import Meter
from fedserver.coordinator.history.recorder import Recorder, log_lines
from fedserver.coordinator.recipe import Recipe, terms_of_run, with_rounds_of
from fedserver.coordinator.repair import damage
from fedserver.coordinator.repair.damage import DamagedReports, Repairs
from fedserver.coordinator.visits.visitor import Signal
from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.content.checked import LostTensors
from fedserver.store.identities.audit import by_no_one
from fedserver.store.records import Move, RunRecord, RunSpec, Standing
from fedserver.store.releases import ReleaseRecord
from fedserver.store.store import Storage
from shoal.core.algorithm import State, basis_of
from shoal.core.engine.checkpoint import Structure
from shoal.core.engine.events import (
    Abandon,
    Changed,
    Damaged,
    Effect,
    Event,
    Finished,
    Heard,
    Offer,
    Opened,
    Reduce,
    Reduced,
    Reported,
    RolledBack,
    Save,
    SteppedIn,
    Tick,
    Withdraw,
)
from shoal.core.engine.rollback import rolled_back
from shoal.core.engine.rounds import RoundEngine, Stage
from shoal.core.engine.sessions import Presence
from shoal.core.errors import (
    NotFound,
    Refused,
    ShoalError,
    StaleReport,
    StorageFault,
    Unavailable,
)
from shoal.core.exchange.link import Task
from shoal.core.exchange.messages import Build, Message
from shoal.core.server_kit.history.records import PAUSED, RESUMED, RoundHistory
from shoal.core.server_kit.learned import has_numbers, verdict_of
from shoal.core.types import DeviceId, ModelKey
from shoal.core.verdict import Verdict
from shoal.shell import crash

log = logging.getLogger("shoal.run")

InTurn = Callable[[Coroutine[Any, Any, Any]], Awaitable[Any]]
"""Runs work while no other work runs in turn: see `Coordinator.in_turn`."""
REASON = 2000
"""How many characters of an error a log line has."""
WITHDRAWN = "its report was damaged on the server's disk"


@dataclass(frozen=True)
class Lease:
    """A task that a device has, and the message that it was made from."""

    task: Task
    message: Message


class Run:
    """A run that is active or over. The coordinator makes only one call at a time.

    wake: called with a device for which there may be something new. in_turn: runs the end of a reduction
    while no other work runs in turn. held: if true, no time passes in the run: no round opens, and none ends
    at its deadline. paused: why the same holds until an operator resumes the run, "" if it does not.
    loaded: when it was created or restored, by the monotonic clock. disputed: devices with two different
    reports in a round. refused: by device, the last round of which the audit log says that a report was
    refused. left_open: what is recorded in `fedserver.store.journal.released`. answers: by device, see
    `fedserver.coordinator.answers`.
    """

    def __init__(
        self,
        record: RunRecord,
        recipe: Recipe,
        state: State,
        reported: Sequence[DeviceId],
        storage: Storage,
        blobs: BlobCache,
        wake: Callable[[DeviceId], None],
        in_turn: InTurn,
        meter: Meter,
        released: Callable[["Run"], Awaitable[tuple[ReleaseRecord | None, Move | None, str]]],
    ) -> None:
        self.run, self.spec, self.server_half = record.run, record.spec, recipe.server_half
        self.created, self.standing, self.reason = record.created, record.standing, record.reason
        self.paused, self.ended = record.paused, record.ended
        self._stood_since, self._stood = storage.without_waits(time.monotonic()), 0.0
        elapsed = _elapsed(record)
        self.engine = RoundEngine(
            recipe.server_half,
            record.spec.policy,
            record.spec.seed,
            state,
            round=record.round,
            asked=record.asked,
            stepped_in=record.stepped_in,
            reported=reported,
            elapsed=elapsed,
            abandoned_in_a_row=record.abandoned_in_a_row,
            memory=record.memory,
        )
        self.title, self.terms, self._basis = record.title, terms_of_run(record.spec, state), basis_of(state)
        self._offered: dict[DeviceId, Lease] = {}
        self.answers: dict[DeviceId, str] = {}
        self.changed, self.held = Signal(), False
        self.disputed: set[tuple[DeviceId, int]] = set()
        self.refused: dict[DeviceId, int] = {}
        resumed = record.round if record.asked else 0
        self.repairs = Repairs(blobs, storage, self.note, resumed)
        self.left_open: set[tuple[DeviceId, str]] = set()
        self.blobs = blobs
        self.state_type = recipe.state
        self.recorder, self._meter = Recorder(state, resumed), meter
        self.storage, self._wake, self._in_turn = storage, wake, in_turn
        self._began = self._clock() - elapsed  # when the latest round was opened
        self.loaded = self._opened = time.monotonic()
        self._abandoned = ""
        self._reduction: asyncio.Task[None] | None = None
        self._released = released

    @property
    def active(self) -> bool:
        return self.standing is Standing.ACTIVE

    def present(self, device: DeviceId) -> bool:
        return self.engine.sessions.is_here(device)

    def lease(self, device: DeviceId) -> Lease | None:
        """The task that a device should work on now, if the engine still expects its report."""
        session, lease = self.engine.sessions.get(device), self._offered.get(device)
        if not self.active or session is None or session.presence is not Presence.WORKING:
            return None
        return lease if lease and lease.task.attempt == session.attempt else None

    async def advance(self, *events: Event) -> None:
        """Feed the engine with events and the current time, and carry out its effects.

        Raises StaleReport for a report that no task waits for, and StorageFault if a decision of the engine
        cannot be stored; then the server has to be restarted. On a full disk this waits until there is space
        (`fedserver.store.disk_space`). It does nothing if the run is over.
        """
        still = self.held or self.paused
        for event in events if still else (*events, Tick(self._clock())):
            if self.active:
                await self.feed(event)

    async def take_up(self, is_open: bool) -> None:
        """After a start: what `advance` does; and a round that is open takes reports in a pause, too."""
        if is_open and self.paused and not self.held:
            await self.feed(Tick(self._clock()))
        await self.advance()

    def admits(self, labels: Set[tuple[str, str]]) -> bool:
        """Whether a device with these labels may take part."""
        return self.spec.labels.items() <= labels

    def heard(self, device: DeviceId) -> None:
        """Note that a device has just called, if it takes part."""
        if self.present(device):
            self.engine.feed(Heard(device, self._clock()))

    def hear_those_that(self, are_waiting: Callable[[DeviceId], bool]) -> None:
        """Note of devices that wait for a task that they are still here. Only those are looked at that have
        not called for half of the time after which they would count as gone."""
        now = self._clock()
        for device in self.engine.sessions.silent(now - self.spec.policy.device_timeout / 2):
            if are_waiting(device):
                self.engine.feed(Heard(device, now))

    def _clock(self) -> float:
        """Seconds, without those for which the run was paused."""
        return (self._stood_since if self.paused else self._now()) - self._stood

    def _now(self) -> float:
        """The clock stands while the server can decide nothing, for want of disk space for example."""
        return self.storage.without_waits(time.monotonic())

    async def end(self, standing: Standing, reason: str) -> None:
        """End the run, and withdraw its tasks. Those who ask hear of it once its release is on the disk."""
        release, move, said, now = None, None, "", time.time()
        if standing is Standing.FINISHED:
            release, move, said = await self._released(self)
        ended = (self.run, standing, reason, now, release, move)
        await self.storage.when_space(self.storage.runs.end, *ended)
        crash.point("server.run-ended")
        self.standing, self.reason, self.ended = standing, reason, now
        auxiliary = "was" if standing is Standing.STOPPED else "has"
        if said:
            await self.note(said)
        await self.note(f"the run {auxiliary} {standing.value}: {reason}")
        for device in self.engine.sessions:
            self._wake(device)
        # A server has the runs of years, each with thousands of devices, of which no one asks any more.
        self.engine, self.recorder = self.engine.without_devices(), Recorder(self.engine.state)
        self._offered, self.left_open, self.answers = {}, set(), {}
        self.disputed, self.refused = set(), {}
        self.changed.fire()

    async def pause(self, reason: str) -> None:
        """Let no more rounds open, until `go_on`. A round that is open may end."""
        if self.active and not self.paused:
            self.paused, self._stood_since = reason, self._now()
            await self.storage.when_space(self.storage.runs.pause, self.run, reason)
            self.recorder.event(PAUSED, reason)
            await self.note(f"paused: {reason}")
            self.changed.fire()

    async def go_on(self) -> None:
        """End a pause. Time did not pass in it, so the deadline of an open round is later by its length."""
        if self.active and self.paused:
            opened = time.time() - (self._clock() - self._began)
            await self.storage.when_space(self.storage.runs.resume, self.run, opened)
            self._stood += self._now() - self._stood_since
            self.paused = ""
            self.recorder.event(RESUMED, "an operator resumed it")
            await self.note("an operator resumed it")
            await self.advance()
            self.changed.fire()

    async def change(self, spec: RunSpec, state: State) -> None:
        """Change the policy of a run that goes on, and the number of its rounds."""
        checkpoint = await self.storage.when_space(self.blobs.store_state, self.state_type, state)
        await self.storage.when_space(self.storage.runs.change, self.run, spec, self.engine.round, checkpoint)
        self.spec, self.terms, self._basis = spec, terms_of_run(spec, state), basis_of(state)
        await self.feed(Changed(spec.policy, state))
        await self.advance()

    async def roll_back(self, round: int, cluster: ModelKey = "", without: DeviceId = "") -> None:
        """Continue with the models that `round` opened with: see `shoal.core.engine.rollback`.

        without: a device that was withdrawn, of which the state then knows nothing.

        An open round is abandoned. Raises NotFound if the models are not stored, Refused while reports are
        being combined.
        """
        if self.engine.stage is Stage.REDUCING:
            raise Refused(
                f"run {self.run} is combining the reports of round {self.engine.round}",
                "try again in a moment",
            )
        kept = await self.storage.call(self.storage.runs.versions, self.run)
        if round not in kept:
            raise NotFound(
                f"run {self.run} does not have the models that round {round} opened with",
                f"it has those of rounds {', '.join(map(str, kept))}",
            )
        names = dict(await self.storage.call(self.storage.runs.checkpoints, self.run))[round]
        if found := await damage.lost_blob(self.storage, names):
            raise NotFound(
                f"the models of round {round} cannot be used: {found}", "roll back to another round"
            )
        earlier = await self.storage.call(self.blobs.load_state, self.state_type, round)
        state = self._back_at(earlier, cluster)
        what = f"the model of {cluster}" if cluster else "the run"
        self.recorder.rolled_back(round, cluster)
        said = f"an operator rolled {what} back to what it was after round {earlier.progress}"
        if without:
            state = self.server_half.without(state, without)
            said = f"device {without} was withdrawn: the run is what it was after round {earlier.progress}"
        await self.feed(RolledBack(state, said))
        await self.advance()

    def _back_at(self, earlier: State, cluster: ModelKey = "") -> State:
        """The state to go on with, as `shoal.core.engine.rollback` has it."""
        return with_rounds_of(self.engine.state, rolled_back(self.engine.state, earlier, cluster))

    async def withdraw(self, round: int, lost: Mapping[DeviceId, str], stage: Stage = Stage.OPEN) -> None:
        """No longer count these reports of the round, which are damaged, and ask their devices again.

        stage: nothing happens in another one. Only the reduction withdraws reports that are being combined.
        """
        if not self.active or (self.engine.round, self.engine.stage) != (round, stage):
            return
        lost = {device: why for device, why in lost.items() if device in self.engine.reported}
        for device, why in lost.items():
            await damage.drop_report(self.storage, self.run, round, device, why)
        if lost:
            await self.advance(Damaged(round, tuple(sorted(lost)), WITHDRAWN))

    async def go_back(self, found: str) -> None:
        """Continue from the newest sound checkpoint, because the current models are lost. found: how."""
        if self.engine.stage is Stage.REDUCING:
            return  # the models of the next round are made just now, and the damaged ones are not needed then
        broken, load = self.engine.round, partial(self.blobs.load_state, self.state_type)
        try:
            number, earlier = await damage.sound_state(self.run, self.storage, load, broken)
        except NotFound:
            log.error("run %s: %s, and there is no other checkpoint", self.run, found)
            await self.pause(f"its current models are lost ({found}), and there is no older checkpoint")
            return
        after = f"the run went back to those after round {earlier.progress}"
        reason = f"the current models are lost ({found}): {after}"
        log.error("run %s: %s", self.run, reason)
        self.recorder.rolled_back(number)
        await self.feed(RolledBack(self._back_at(earlier), reason))
        await self.storage.when_space(self.storage.runs.drop_checkpoint, self.run, broken)
        await self.advance()

    async def verdict(self) -> Verdict | None:
        """Whether anything was learned; None until devices have measured what they use."""
        state = self.engine.state
        if not state.metrics:
            return None
        outcomes = await self.storage.call(self.storage.runs.outcomes.of, self.run)
        return verdict_of(state, outcomes.losses, self.spec.parameters)

    async def note(self, text: str, device: DeviceId = "") -> None:
        """Add a line to the run's log."""
        self._say(text, device)
        await self.storage.when_space(self.storage.journal.log, self.run, text, device)

    def _say(self, text: str, device: DeviceId = "") -> None:
        """Show a line of the run's log on the server's own."""
        log.info("run %s: %s%s", self.run, f"{device}: " if device else "", text)

    async def settle(self, seconds: float) -> None:
        """Wait for a running reduction, but at most for this many seconds."""
        if self._reduction is not None:
            await asyncio.wait([self._reduction], timeout=seconds)

    async def feed(self, event: Event) -> None:
        if isinstance(event, Reported):
            self.recorder.reported(event.device)
            if not isinstance(self.engine.plan.tasks.get(event.device), Build):  # which is not about its data
                self.answers[event.device] = YES
        began = time.monotonic()
        try:
            effects = self.engine.feed(event)
        except StaleReport:
            raise
        except Exception as error:
            if not self.active:  # an operator's call, which must not seem to have worked
                raise
            await self._fail("the next round cannot be planned", error)
            return
        if any(isinstance(effect, Opened) for effect in effects):
            self._meter.add_seconds(self.run, "plan", time.monotonic() - began)
        for effect in effects:
            try:
                await self._carry_out(effect)
            except StorageFault:
                raise
            except Exception as error:
                await self._fail("the result of the algorithm cannot be stored", error)
                return
        if effects or not isinstance(event, Tick):
            self.changed.fire()

    async def _fail(self, what: str, error: Exception) -> None:
        """End the run as failed. The daemon and its other runs continue."""
        if self.active:
            log.error("run %s: %s", self.run, what, exc_info=error)
            reason = str(error) if isinstance(error, ShoalError) else f"{type(error).__name__}: {error}"
            await self.end(Standing.FAILED, f"{what}: {reason[:REASON]}")

    # -- effects --------------------------------------------------------------------------------------------

    async def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Opened():
                await self._open(effect)
            case SteppedIn():
                await self._step_in(effect)
            case Offer():
                await self._offer(effect)
            case Withdraw():
                self._wake(effect.device)
            case Reduce():
                self._meter.add_seconds(self.run, "devices", time.monotonic() - self._opened)
                self._reduction = asyncio.create_task(self._reduce(effect), context=by_no_one())
            case Abandon():
                self._abandoned = effect.reason
            case Save():
                await self._save(effect)
            case Finished():
                if found := await self.verdict():
                    await self.note(str(found))
                await self.end(Standing.FAILED if effect.failed else Standing.FINISHED, effect.reason)

    async def _open(self, effect: Opened) -> None:
        self._opened, self._began, self.title = time.monotonic(), self._clock(), effect.title
        tasks = len(self.engine.plan.tasks)
        said = f"open: {effect.title}, tasks for {tasks} {'device' if tasks == 1 else 'devices'}"
        opened = (effect.devices, effect.title, (said,))
        await self.storage.when_space(self.storage.runs.open_round, self.run, *opened)
        crash.point("server.opened")
        self._say(said)

    async def _step_in(self, effect: SteppedIn) -> None:
        await self.storage.when_space(self.storage.runs.step_in, self.run, effect.devices)
        crash.point("server.stepped-in")
        if self.engine.plan.others is None:
            what = f"these devices are asked as well, in place of others: {', '.join(effect.devices)}"
        else:
            what = f"a round that decides about all devices asks {len(effect.devices)} more that are here"
        await self.note(what)

    async def _offer(self, effect: Offer) -> None:
        payload = self.blobs.known(effect.message)
        if payload is None:
            payload = await self.storage.when_space(self.blobs.payload, effect.message)
        task = Task(self.run, effect.round, effect.attempt, effect.seed, effect.title, payload, self.terms)
        self._offered[effect.device] = Lease(task, effect.message)
        crash.point("server.offered")
        self.recorder.offered(effect.device)
        self._wake(effect.device)

    async def _save(self, effect: Save) -> None:
        closed = RoundHistory(
            round=effect.round - 1,
            title=self.title,
            seconds=time.monotonic() - self._opened,
            asked=len(self.engine.plan.tasks),
            reported=len(self.engine.reported),
            abandoned=self._abandoned,
        )
        builds = any(isinstance(task, Build) for task in self.engine.plan.tasks.values())
        if builds and not self._abandoned and not self.spec.lends_graph:
            models, reported = effect.state.models.values(), self.engine.reported
            self.spec, lines = await first_graph.take(self.storage, self.spec, closed.round, reported, models)
            for text, device in lines:
                await self.note(text, device)
        with self._meter.phase(self.run, "checkpoint"):
            checkpoint, names = await self.storage.when_space(self._stored, effect.state)
        crash.point("server.state-stored")
        with self._meter.phase(self.run, "save"):
            closed = self.recorder.closed(
                closed,
                effect.state,
                names,
                self.engine.plan.tasks,
                effect.missing,
                self._meter.take_round(self.run),
            )
            said = log_lines(closed, has_numbers(effect.state))
            ended = (closed, checkpoint, effect.abandoned_in_a_row, effect.memory, said)
            await self.storage.when_space(self.storage.runs.save_round, self.run, *ended)
        crash.point("server.round-tidied")
        if (basis := basis_of(effect.state)) is not self._basis:
            self.terms, self._basis = terms_of_run(self.spec, effect.state), basis
        self._meter.round_over(self.run, closed)
        self._abandoned, self.title = "", ""
        self._offered.clear()
        for text in said:
            self._say(text)

    def _stored(self, state: State) -> tuple[Structure, dict[ModelKey, str]]:
        """On the store's thread: the structure under which a state is saved, and the names of its models."""
        return self.blobs.store_state(self.state_type, state), self.blobs.names_of(state.models)

    async def _reduce(self, effect: Reduce) -> None:
        with suppress(StorageFault, Unavailable):  # the coordinator already knows of the fault, or is closed
            try:
                with self._meter.phase(self.run, "combine"):
                    following = await combining.combined(self._reports(effect), self.storage)
            except DamagedReports as damaged:
                await self._in_turn(self.withdraw(effect.round, damaged.lost, Stage.REDUCING))
            except LostTensors as lost:
                await self._in_turn(self._begin_again(effect.round, str(lost)))
            except StorageFault as fault:
                await self._in_turn(_raise(fault))
            except Exception as error:
                what = f"the reports of round {effect.round} cannot be combined"
                await self._in_turn(self._fail(what, error))
            else:
                await self._in_turn(self.advance(Reduced(effect.round, following)))

    def _reports(self, effect: Reduce) -> Combination:
        tasks, known = self.engine.plan.tasks, self.recorder.combined
        return Combination(
            self.run, effect.round, effect.devices, tasks, self.server_half, self.engine.state, known
        )

    async def _begin_again(self, round: int, found: str) -> None:
        """The reports of the round cannot be combined, because a model that they began with is lost."""
        if not self.active or (self.engine.round, self.engine.stage) != (round, Stage.REDUCING):
            return
        reported = sorted(self.engine.reported)
        for device in reported:
            await self.storage.when_space(self.storage.reports.withdraw, self.run, round, device)
        self.engine.feed(Damaged(round, tuple(reported), found))  # whose tasks no one gets: the round ends
        await self.go_back(found)


def _elapsed(record: RunRecord) -> float:
    """For how many seconds the open round has been open, by the clock on the wall; 0 if none is. How much of
    that was before a pause is not stored, so a start in a pause counts from zero."""
    return max(0.0, time.time() - record.opened) if record.asked and not record.paused else 0.0


async def _raise(fault: StorageFault) -> None:
    """Raise a disk error in turn, where the coordinator stops the process because of it."""
    raise fault
