"""The coordinator's interface for operators."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import suppress
from dataclasses import replace
from operator import attrgetter

import shoal
from fedserver.coordinator import watching
from fedserver.coordinator.answers import notice
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.costs import cost_of
from fedserver.coordinator.recipe import recipe_of, with_readmitted, with_rounds
from fedserver.coordinator.runs import Run
from fedserver.coordinator.starting import MISSED_HEARTBEATS, OWNER
from fedserver.coordinator.status import (
    clusters_of,
    device_of,
    failed,
    figures_of,
    too_few,
    unchecked,
    unplaced,
    unreadable,
)
from fedserver.coordinator.status_types import (
    ClusterVersions,
    DeviceStatus,
    RunChange,
    RunStatus,
    RunSummary,
    ServerStatus,
)
from fedserver.coordinator.visits import transfer
from fedserver.store.content.frames import Frame
from fedserver.store.identities.records import DeviceStanding
from fedserver.store.journal.newcomers import PlacementRecord
from fedserver.store.journal.timeline import ROUNDS
from fedserver.store.records import LogLine, RunSpec, Standing
from shoal.core.engine.stages import Stage
from shoal.core.errors import DiskFull, NotFound, Refused
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.wire import Line
from shoal.core.server_kit.aggregation.noised import promise
from shoal.core.server_kit.history.records import CHANGED, RoundHistory
from shoal.core.types import Bytes, DeviceId, ModelKey, RunId

LARGEST = 1 << 40
"""The largest blob that is accepted from an operator, in bytes."""
WATCH_INTERVAL = 0.1
"""The shortest time in seconds between two states of a watched run."""


class OperatorApi:
    """All operator calls. Access is controlled by the caller of this class. Raises only ShoalErrors."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._storage = coordinator.storage

    async def start_run(self, spec: RunSpec, initial: Weights | None) -> RunId:
        """Start a run, which is on disk on return. initial: weights that were uploaded to this server before.

        Without a name, one is made from the algorithm. Raises ConfigError if the specification cannot work or
        the name is taken.
        """
        starting = self._coordinator.starting
        spec, recipe = await starting.prepared(spec)
        return await self._coordinator.in_turn(starting.begin(spec, recipe, initial))

    async def cost(self, run: RunId) -> str:
        """What a run that has started asks of the owners' budgets, in a sentence; "" for nothing."""
        coordinator, found = self._coordinator, self._coordinator.runs.named(run)
        stated = await coordinator.storage.statements_of_all()
        paid = [device for device, each in stated.items() if each.cost]
        able = coordinator.able(found, await self._storage.call(self._storage.journal.trainers))
        return cost_of(found, coordinator.runs.values(), able, paid)

    async def stop_run(self, run: RunId, reason: str) -> RunStatus:
        """Stop a run permanently, and start no more of its series. Its last models stay. Safe to repeat."""
        self._coordinator.check_deciding()
        await self._coordinator.in_turn(self._stop(self._coordinator.runs.named(run), reason))
        return await self.show(run)

    async def pause_run(self, run: RunId, reason: str) -> RunStatus:
        """Open no more rounds of a run until it is resumed; one that is open may end. Safe to repeat.

        Raises Refused if it is over.
        """
        found = self._going_on(run)
        await self._coordinator.in_turn(found.pause(reason or "an operator paused it"))
        return await self.show(run)

    async def resume_run(self, run: RunId) -> RunStatus:
        """Let a paused run, or one that has failed, go on. Safe to repeat.

        Raises Refused if it has finished or was stopped.
        """
        self._coordinator.check_deciding()
        found = self._coordinator.runs.named(run)
        if found.standing is Standing.FAILED:
            await self._coordinator.in_turn(self._restart(run))
        else:
            self._going_on(run)
            await self._coordinator.in_turn(found.go_on())
        return await self.show(run)

    async def change_run(self, run: RunId, change: RunChange) -> RunStatus:
        """Change the policy of a run that goes on, how many rounds it has, and which devices count again.

        Raises ConfigError for a change that cannot work, Refused if the run is over, is combining reports or
        has a privacy guarantee that is made for its present number of rounds, or if such a device is not
        quarantined.
        """
        self._coordinator.check_deciding()
        await self._coordinator.in_turn(self._change(run, change))
        return await self.show(run)

    async def prune_runs(self, run: RunId = "") -> dict[RunId, int]:
        """Delete the states of earlier rounds of one run that is over, or of all such runs but the newest
        that has trained and finished: an operator who only wants space still goes back in that one. Releases
        stay.

        Returns how many were deleted, by run. Raises Refused if that run is not over.
        """
        coordinator = self._coordinator
        over = [each for each in coordinator.runs.values() if not each.active]
        finished = [each for each in over if each.standing is Standing.FINISHED and not each.spec.evaluate]
        newest = max(finished, key=lambda each: each.ended, default=None)
        chosen = [self._over(run)] if run else [each for each in over if each is not newest]
        deleted = {}
        for each in chosen:
            if number := await coordinator.in_turn(self._storage.call(self._storage.runs.prune, each.run)):
                deleted[each.run] = number
        return deleted

    async def remove_run(self, run: RunId) -> None:
        """Delete a run that is over or cannot be read, with its releases. What devices have released in it
        stays known.

        Raises Refused if it is not over, or if a channel has a release of it.
        """
        await self._coordinator.in_turn(self._remove(run))

    def runs(self) -> list[RunSummary]:
        """All runs, newest first; those that are not restored yet and those that cannot be read come last."""
        readable = [self._coordinator.summary(run) for run in reversed(self._coordinator.runs.values())]
        recovery = self._coordinator.recovery
        return [
            *readable,
            *map(unchecked, recovery.pending.values()),
            *(unreadable(run, *lost) for run, lost in recovery.unreadable.items()),
        ]

    async def show(self, run: RunId) -> RunStatus:
        """Everything about one run. Raises NotFound."""
        found, coordinator = self._coordinator.runs.named(run), self._coordinator
        shown = await coordinator.storage.unless_full(lambda: coordinator.in_turn(self._show(found)))
        return shown or await self._show(found)

    async def roll_back(self, run: RunId, round: int, cluster: ModelKey = "") -> RunStatus:
        """Continue with the models that a round opened with, of all clusters or of one; on disk on return.

        Raises NotFound if the round is not kept or the cluster does not exist, Refused while reports are
        being combined.
        """
        self._coordinator.check_deciding()
        await self._coordinator.in_turn(self._coordinator.runs.named(run).roll_back(round, cluster))
        return await self.show(run)

    async def clusters(self, run: RunId) -> list[ClusterVersions]:
        """The clusters of a run, with the versions of their models that are stored. Raises NotFound."""
        found, coordinator = self._coordinator.runs.named(run), self._coordinator
        listed = await coordinator.storage.unless_full(lambda: coordinator.in_turn(self._clusters(found)))
        return await self._clusters(found) if listed is None else listed

    async def watch(self, run: RunId) -> AsyncIterator[RunStatus]:
        """The status of a run now and whenever it changes, until the run is over."""
        while run in self._coordinator.recovery.pending:  # its files are being checked after a start
            await asyncio.sleep(WATCH_INTERVAL)
            self._coordinator.check_serving()
        found = self._coordinator.runs.named(run)
        while True:
            change = found.changed.next()
            status = await self.show(run)
            yield status
            if status.summary.over:
                return
            await change.wait()
            self._coordinator.check_serving()
            await asyncio.sleep(WATCH_INTERVAL)

    async def log(self, run: RunId, after: int) -> list[LogLine]:
        """The next lines of a run's log with numbers above `after`; none if there are no more."""
        self._coordinator.runs.named(run)
        return await self._storage.call(self._storage.journal.log_lines, run, after)

    async def history(
        self, run: RunId, after: int = 0, *, devices: bool = True, most: int = ROUNDS
    ) -> list[RoundHistory]:
        """The next rounds of a run that are over, with numbers above `after`; none if there are no more.

        devices: whether to include the figures and positions of devices. most: how many rounds, 1 or more.
        Rounds that are damaged for good are left out. Raises NotFound.
        """
        self._coordinator.runs.named(run)
        return await self._storage.call(
            self._storage.journal.timeline.readable, run, after, devices=devices, most=most
        )

    async def placements(self, run: RunId, device: DeviceId, after: int) -> list[PlacementRecord]:
        """The next records of what newcomers were answered, with numbers above `after`; none if there are no
        more. run, device: only those of this run or device; "": of all. Raises NotFound."""
        if run:
            self._coordinator.runs.named(run)
        return await self._storage.call(self._storage.journal.placements.read, run, device, after)

    async def status(self, *, released: bool = True) -> ServerStatus:
        """The daemon, its devices and the active runs. released: whether to include what devices released."""
        coordinator, settings = self._coordinator, self._coordinator.settings
        await coordinator.storage.unless_full(lambda: coordinator.in_turn(coordinator.write_journal()))
        timeout = MISSED_HEARTBEATS * max(settings.poll, settings.heartbeat)
        active = coordinator.runs.active()
        standings = await self._storage.call(self._storage.journal.standings)
        devices = []
        for record in await self._storage.call(self._storage.journal.devices):
            standing = standings.pop(record.device, None)
            if standing is not None and standing.ended:
                continue
            visitor = coordinator.visitors.get(record.device)
            leases = coordinator.leases(visitor) if visitor else []
            devices.append(device_of(record, visitor, leases, timeout))
        uncalled = [device for device, each in standings.items() if each is DeviceStanding.APPROVED]
        devices += [DeviceStatus(device, "expected") for device in uncalled]
        devices.sort(key=attrgetter("device"))
        pending = [unchecked(record) for record in coordinator.recovery.pending.values()]
        known = await self._storage.call(self._storage.journal.trainers)
        summaries = [coordinator.summary(run, known) for run in active]
        runs = (*summaries, *(each for each in pending if not each.over))
        stated = await coordinator.storage.statements_of_all() if released else {}
        short = [
            notice
            for run in active
            for notice in too_few(run.run, run.spec.policy, len(coordinator.able(run, known)))
        ]
        refusing = [each for run in active for each in notice(run.run, coordinator.answers(run, known))]
        bad = failed(coordinator.runs.values())
        notices = (*coordinator.notices(), *bad, *short, *refusing, *await unplaced(coordinator.storage))
        notices += (
            *await coordinator.rollouts.notices(),
            *await watching.notices(coordinator.storage),
        )
        return ServerStatus(shoal.__version__, tuple(devices), runs, notices, stated)

    # -- blobs ----------------------------------------------------------------------------------------------

    def frames(self, blob: BlobRef, start: int) -> AsyncGenerator[Frame, None]:
        """A blob, beginning with byte `start`, in the messages in which it travels. Raises NotFound."""
        return transfer.read(self._storage.blobs, blob, start, Line())

    async def uploaded(self, blob: BlobRef) -> int:
        """How many bytes of an upload have arrived."""
        return await asyncio.to_thread(self._storage.blobs.uploaded, OWNER, blob)

    async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[Bytes]) -> int:
        """Receive weights for the start of a run. Returns how many bytes of them have arrived."""
        blobs = self._storage.blobs
        with transfer.expected(self._coordinator, blob.size - start) as arrived:
            receiving = await asyncio.to_thread(blobs.receive, OWNER, blob, start, LARGEST)
            return await transfer.write(receiving, chunks, arrived)

    # -- inside ---------------------------------------------------------------------------------------------

    def _going_on(self, run: RunId) -> Run:
        self._coordinator.check_deciding()
        found = self._coordinator.runs.named(run)
        if not found.active:
            raise Refused(f"run {run} is over: {found.reason}", "start another run with its model")
        return found

    def _over(self, run: RunId) -> Run:
        found = self._coordinator.runs.named(run)
        if found.active:
            raise Refused(f"run {run} is not over", f"stop it first: fedserver run stop {run}")
        return found

    async def _stop(self, run: Run, reason: str) -> None:
        if run.active:
            await run.end(Standing.STOPPED, reason or "an operator stopped it")
        await self._coordinator.series.end(run)

    async def _restart(self, run: RunId) -> None:
        if self._coordinator.runs.named(run).standing is Standing.FAILED:
            await self._coordinator.restart(run, "an operator resumed it after its failure")

    async def _change(self, run: RunId, change: RunChange) -> None:
        found = self._going_on(run)
        if found.engine.stage is Stage.REDUCING:
            raise Refused(f"run {run} is combining the reports of a round", "try again in a moment")
        state = found.engine.state
        spec = replace(found.spec, policy=replace(found.spec.policy, **change.policy))
        self._coordinator.starting.check(spec)
        if change.rounds is not None:
            state = with_rounds(state, change.rounds)
            spec = replace(spec, parameters={**spec.parameters, "rounds": change.rounds})
        await asyncio.to_thread(recipe_of, spec)  # or no start could read the run any more
        if change.readmit:
            state = with_readmitted(state, change.readmit)
        await found.change(spec, state)
        found.recorder.event(CHANGED, f"an operator changed it: {change}")
        await found.note(f"an operator changed it: {change}")

    async def _remove(self, run: RunId) -> None:
        if run not in self._coordinator.recovery.unreadable:
            self._over(run)
        published, storage = self._coordinator.published, self._storage
        found = self._coordinator.runs.get(run)
        if found is not None and self._coordinator.series.time_left(found) is not None:
            raise Refused(f"another run follows {run}", f"first end their series: fedserver run stop {run}")
        await published.check_unused(*await storage.call(storage.releases.names, run))
        if found is not None:
            await self._coordinator.series.removes(found)
        await storage.when_space(storage.runs.remove, run)
        published.forget(run)
        self._coordinator.runs.pop(run, None)
        self._coordinator.recovery.unreadable.pop(run, None)
        self._coordinator.changed.fire()

    async def _show(self, found: Run) -> RunStatus:
        run, storage = found.run, self._coordinator.storage
        if not self._storage.full:
            await self._coordinator.write_journal()
        known = await storage.call(storage.journal.trainers)
        outcomes = await storage.call(storage.runs.outcomes.of, run)
        traffic = {each.device: each for each in await storage.call(storage.journal.traffic, run)}
        state, models = found.engine.state, {}
        for key, model in state.models.items():
            with suppress(DiskFull):  # a new model is shown once there is space for it
                models[key] = await storage.call(found.blobs.weights, model)
        return RunStatus(
            self._coordinator.summary(found, known),
            clusters_of(state),
            figures_of(state.assignments, state.metrics, traffic),
            outcomes.abandoned,
            outcomes.missing,
            models,
            await storage.call(storage.runs.statements.of, run),
            promise(state),
            found.spec,
            outcomes.accuracies,
            await found.verdict(),
            self._coordinator.answers(found, known),
        )

    async def _clusters(self, found: Run) -> list[ClusterVersions]:
        storage = self._coordinator.storage
        versions = dict[int, dict[ModelKey, Weights]]()
        for number in await storage.call(storage.runs.versions, found.run):
            with suppress(NotFound):  # out of turn, a round may have ended meanwhile, and with it the oldest
                versions[number] = await storage.call(found.blobs.models_of, found.state_type, number)
        return [
            ClusterVersions(
                key, members, {n: models[key].blob for n, models in versions.items() if key in models}
            )
            for key, members in clusters_of(found.engine.state).items()
        ]
