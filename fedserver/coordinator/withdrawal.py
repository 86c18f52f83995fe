"""Withdrawal: the data of a device are to count no more. First what that takes, then that it is done.

    device --> its lineage in each run (`shoal.core.server_kit.history.lineage`) --> runs and releases with it

Models that lack the device stay as they are, bit by bit. The others can be made again: by a run that goes
back to its last checkpoint before the first report of the device, or, where that is not stored any more, by
the same run from its start. A run that began with what another has made, its weights, groups or
encoder, has in it what that has in it.

The registry is written first: from then on the device is refused, and its releases are marked, as cards name
the devices. What follows can be repeated if the server dies in between.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from fedserver.coordinator.costs import again
from fedserver.coordinator.known_runs import KnownRuns
from fedserver.coordinator.runs import InTurn, Run
from fedserver.coordinator.status_types import Withdrawal, WithdrawnRelease, WithdrawnRun
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.store import Storage
from shoal.core.algorithm import basis_of
from shoal.core.algorithm.training import counted_by
from shoal.core.engine.rounds import Stage
from shoal.core.errors import DataFault, NotFound, Refused
from shoal.core.exchange.link import run_of
from shoal.core.server_kit.history.lineage import Lineage, lineage
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import DeviceId, RunId
from shoal.shell import crash

SETTLE_SECONDS = 5.0
"""Seconds after which it is looked again whether reports are combined."""


@dataclass(frozen=True)
class Past:
    """The rounds of a run, each with no other device than the one that is asked about.

    reporters: those whose reports count, by round. damage: why rounds are missing; "": none is.
    """

    rounds: Sequence[RoundHistory] = ()
    reporters: dict[int, frozenset[DeviceId]] = field(default_factory=dict)
    damage: str = ""

    def lineage(self, run: Run, device: DeviceId, before: int | None = None) -> Lineage:
        """Where the device is in the models that round `before` opened with; None: in the present ones."""
        rounds = [each for each in self.rounds if before is None or each.round < before]
        found = lineage(rounds, device, run.server_half.independent)
        if run.spec.evaluate is not None:  # nothing is made of what its devices measure
            keys = frozenset(run.engine.state.models)
            return replace(found, with_it=frozenset(), without_it=keys, grouped=False, blobs=frozenset())
        if not self.damage:
            return found
        keys = frozenset(run.engine.state.models)
        return replace(found, with_it=keys, without_it=frozenset(), first=found.first or 1, known=False)

    def progress(self, before: int) -> int:
        """The rounds of training that were complete when this round opened."""
        return next((each.progress for each in reversed(self.rounds) if each.round < before), 0)


async def past_of(storage: Storage, run: RunId, device: DeviceId) -> Past:
    """What is stored of the rounds of a run, as far as it concerns this device."""
    rounds: list[RoundHistory] = []
    reporters: dict[int, frozenset[DeviceId]] = {}
    try:
        while page := await storage.call(
            storage.journal.timeline.read, run, rounds[-1].round if rounds else 0
        ):
            for each in page:
                own = tuple(one for one in each.devices if one.device == device)
                counted = frozenset(one.device for one in each.devices if not one.missing)
                reporters[each.round] = frozenset() if each.abandoned else counted
                known = bool(each.devices) or not each.reported
                rounds.append(
                    replace(each, devices=own, positions={}, reported=0 if known else each.reported)
                )
    except (DataFault, DamagedRow) as error:
        return Past(rounds, reporters, f"its history cannot be read: {error.message}")
    return Past(rounds, reporters)


async def lineage_in(run: Run, device: DeviceId) -> Lineage:
    """Where a device is in a run. What it has reported in the open round is in no model yet."""
    return (await past_of(run.storage, run.run, device)).lineage(run, device)


class Withdrawals:
    """What the withdrawal of a device takes, and what it does to runs.

    in_turn: runs work while no other work runs in turn. restart: lets a run that is over go on, in turn.
    """

    def __init__(
        self,
        storage: Storage,
        runs: KnownRuns,
        in_turn: InTurn,
        restart: Callable[[RunId, str], Awaitable[None]],
    ) -> None:
        self._storage, self._runs, self._in_turn, self._restart = storage, runs, in_turn, restart

    async def price(self, device: DeviceId) -> Withdrawal:
        """The runs and releases that have the device in them. Raises Unavailable after a start."""
        self._runs.check_all_recovered()
        runs, releases = list[WithdrawnRun](), list[WithdrawnRelease]()
        tainted = dict[str, RunId]()
        for run in list(self._runs.values()):
            past = await past_of(self._storage, run.run, device)
            found = past.lineage(run, device)
            of_run = await self._releases(run, past, device)
            if source := await self._source(run, tainted):
                keys = frozenset(run.engine.state.models)
                found = replace(found, with_it=keys, without_it=frozenset())
                of_run = [
                    replace(each, with_it=(*each.with_it, *each.without_it), without_it=()) for each in of_run
                ]
                every = {cluster.model for each in past.rounds for cluster in each.clusters}
                found = replace(found, blobs=found.blobs | every)
            # Also of a run that went back: others may go on from what it had before.
            tainted |= {name: run.run for name in found.blobs if name not in tainted}
            if found or source or (run.active and device in run.engine.reported):
                runs.append(await self._run(run, past, found, device, source))
                releases += of_run
        runs += [
            WithdrawnRun(run, unknown=f"it cannot be read: {why}")
            for run, (_, why) in self._runs.recovery.unreadable.items()
        ]
        return Withdrawal(device, tuple(runs), tuple(releases))

    async def _source(self, run: Run, tainted: dict[str, RunId]) -> RunId:
        """The run with the device in it that this one began with; "" for none. tainted: of models that have
        contained the device, the run."""
        basis, parameters = basis_of(run.engine.state), run.server_half.parameters
        of = getattr(parameters, "of", "") or counted_by(parameters)
        names, gone = [run.spec.initial, *(() if basis is None else basis.names[:1])], ""
        if run.spec.release:
            try:
                card = (await self._storage.call(self._storage.releases.get, run.spec.release)).card
                names += [weights.blob.sha256 for weights in card.models.values()]
            except (NotFound, DataFault, DamagedRow):  # then it may have had any of the run's models
                gone = run_of(run.spec.release)
        runs = (*(tainted[name] for name in names if name in tainted), of, gone)
        return next((each for each in runs if each and each in tainted.values()), "")

    async def _run(
        self, run: Run, past: Past, found: Lineage, device: DeviceId, source: RunId
    ) -> WithdrawnRun:
        """What it takes to have the device in none of its models."""
        back_to, describes = (0, True) if source or past.damage else await self._clean(run, past, device)
        rounds = run.engine.state.progress - past.progress(back_to)
        since = (devices for number, devices in past.reporters.items() if number >= back_to)
        others = frozenset[DeviceId]().union(*since) - {device}
        needed = bool(found.with_it)
        return WithdrawnRun(
            run.run,
            tuple(sorted(found.with_it)),
            tuple(sorted(found.without_it)),
            device in getattr(run.engine.state, "descriptors", ()),
            source,
            back_to if needed else 0,
            rounds if needed else 0,
            len(others) if needed else 0,
            again(run, rounds, describes) if needed and others else 0.0,
            past.damage
            or ("" if found.known else "the oldest rounds of its history are not stored any more"),
        )

    async def _clean(self, run: Run, past: Past, device: DeviceId) -> tuple[int, bool]:
        """The last round whose checkpoint lacks the device and can be read, 0 for none; and whether devices
        describe their data after it, by another encoder than they have since."""
        for number, _ in await self._storage.call(self._storage.runs.checkpoints, run.run):
            if not past.lineage(run, device, number):
                with suppress(DataFault, DamagedRow):
                    earlier = await self._storage.call(run.blobs.load_state, run.state_type, number)
                    return number, basis_of(earlier) is None
        return 0, True

    async def _releases(self, run: Run, past: Past, device: DeviceId) -> list[WithdrawnRelease]:
        channels = await self._storage.call(self._storage.releases.channels)
        found = list[WithdrawnRelease]()
        for name in await self._storage.call(self._storage.releases.names, run.run):
            having = tuple(channel for channel, move in channels.items() if move.release == name)
            try:
                card = (await self._storage.call(self._storage.releases.get, name)).card
            except (DataFault, DamagedRow):
                found.append(WithdrawnRelease(name, channels=having))
                continue
            then, keys = past.lineage(run, device, card.round), frozenset(card.models)
            known = bool(then) or device not in card.devices  # or its card has more than the history
            with_it = then.with_it & keys if known else keys
            found.append(
                WithdrawnRelease(
                    name, tuple(sorted(with_it)), tuple(sorted(keys - with_it)), then.grouped, having
                )
            )
        return found

    async def blobs(self, devices: Iterable[DeviceId]) -> set[str]:
        """SHA-256 of every model that has contained one of these devices, in any run. Where a history does
        not tell, the encoder of the run is one of them."""
        found = set[str]()
        for device in devices:
            took_part = await self._storage.call(self._storage.journal.runs_of, device)
            for run in [each for each in self._runs.values() if each.run in took_part]:
                own, basis = await lineage_in(run, device), basis_of(run.engine.state)
                found |= own.blobs
                if basis is not None and not own.known:
                    found.add(basis.names[0])
        return found

    # -- doing it -----------------------------------------------------------------------------------------

    def check(self, found: Withdrawal, replay: Iterable[RunId], again: bool) -> None:
        """Raises NotFound or Refused for a run that cannot go back to before the device came. again: the
        device was withdrawn before, and runs may have gone back then."""
        by_run = {each.run: each for each in found.runs}
        for run in replay:
            self._runs.named(run)
            if run not in by_run and again:
                continue
            if run not in by_run:
                raise Refused(f"run {run} has no report of {found.device}", "leave out --replay for it")
            if source := by_run[run].inherited:
                raise NotFound(
                    f"run {run} began with what {source} had made with {found.device}, so no model of it is "
                    "without it",
                    f"take {source} back, with --replay {source}, and start another run with what that makes",
                )
            if not by_run[run].back_to:
                raise NotFound(
                    f"run {run} has no stored models without {found.device} to go back to",
                    f"start it again: fedserver run start --like {run}",
                )

    async def carry_out(self, found: Withdrawal, replay: Collection[RunId]) -> None:
        """After the registry has it: take the device out of all runs, and delete what is stored of it."""
        crash.point("server.device-withdrawn")
        back_to = {each.run: each.back_to for each in found.runs}
        for name in dict.fromkeys((*back_to, *replay)):
            if (run := self._runs.get(name)) is not None:
                await self._out_of(run, found.device, back_to.get(name, 0), name in replay)
        await self._storage.forget(found.device)

    async def _out_of(self, run: Run, device: DeviceId, back_to: int, replayed: bool) -> None:
        while True:
            if run.active and run.engine.stage is Stage.REDUCING:
                await run.settle(SETTLE_SECONDS)
            try:
                await self._in_turn(self._go_on_without(run, device, back_to, replayed))
                return
            except Refused:
                if not (run.active and run.engine.stage is Stage.REDUCING):
                    raise

    async def _go_on_without(self, run: Run, device: DeviceId, back_to: int, replayed: bool) -> None:
        back_to = back_to if replayed else 0
        past = await past_of(self._storage, run.run, device)
        kept = await self._storage.call(self._storage.runs.versions, run.run)
        # Versions of which it is not known whether they have it are not deleted for that.
        stale = [] if past.damage else [number for number in kept if past.lineage(run, device, number)]
        state = run.engine.state
        in_open_round = run.active and device in run.engine.reported
        if back_to or in_open_round or run.server_half.without(state, device) is not state:
            await run.roll_back(back_to or run.engine.round, without=device)
        last = (await self._storage.call(self._storage.runs.versions, run.run))[-1]
        await self._storage.when_space(
            self._storage.runs.drop_versions, run.run, [number for number in stale if number != last]
        )
        if replayed and not run.active:  # also where the server died after the run had gone back
            await self._restart(run.run, f"it goes on without {device}")
