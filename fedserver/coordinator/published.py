"""What newcomers are given: the releases of runs, and the channels that name those in use.

When a run has finished, a release is made of it by itself if its models are better than those that the
channel `stable` has (`shoal.core.verdict.why_not_instead`), and the channel has that release then. A run that
went on from that one is held against what its devices measured of it at the start: on the data of a later
day, a better model may reach less than the release did on those of its own. It is written in the transaction
that ends the run, so that no crash loses one of the two. A run that was stopped, has failed or has learned
nothing is released only by an operator.
"""

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from fedserver.coordinator.known_runs import KnownRuns
from fedserver.coordinator.recipe import Recipe, recipe_of, terms_of_run
from fedserver.coordinator.repair import damage
from fedserver.coordinator.runs import Run
from fedserver.coordinator.status import clusters_of
from fedserver.coordinator.withdrawal import lineage_in
from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.identities.records import DeviceStanding
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.records import Move, RunSpec, Standing
from fedserver.store.releases import PURPOSE, STABLE, Card, ReleaseRecord
from fedserver.store.store import Storage
from shoal.core.algorithm import State
from shoal.core.engine.bootstrap import Bootstrap
from shoal.core.engine.checkpoint import Structure
from shoal.core.errors import BadPayload, ConfigError, DataFault, NotFound, NotGenuine, Refused, near
from shoal.core.exchange.link import AT
from shoal.core.exchange.messages import Evaluated
from shoal.core.exchange.tensors import Manifest, check_manifest, own_of
from shoal.core.identity.certificates import certificate
from shoal.core.identity.joining import check_name
from shoal.core.identity.signing import check_signed
from shoal.core.privacy.report import Statement
from shoal.core.server_kit import measuring
from shoal.core.server_kit.aggregation.noised import promise
from shoal.core.server_kit.history.records import TRAIN, RoundHistory
from shoal.core.server_kit.measuring import Measuring
from shoal.core.server_kit.standard import accuracy_cost
from shoal.core.types import DeviceId, RunId, Tensors
from shoal.core.verdict import why_not_instead

if TYPE_CHECKING:
    from fedserver.authority.authority import Authority

LOADED = 4
"""The states of how many releases stay in memory."""


@dataclass(frozen=True, eq=False)
class Source:
    """What can place a newcomer: a run as it is now, or a release of it. release: its name, "" for the run.

    state: what is decided by, since a run may continue meanwhile.
    """

    run: RunId
    release: str
    spec: RunSpec
    server_half: Bootstrap
    state: State
    blobs: BlobCache
    terms: str

    @classmethod
    def of(cls, run: Run) -> "Source":
        return cls(run.run, "", run.spec, run.server_half, run.engine.state, run.blobs, run.terms)


class Published:
    """The releases and channels of a server. signs: the authority, on a server with certificates."""

    def __init__(self, storage: Storage, runs: KnownRuns) -> None:
        self._storage, self._runs = storage, runs
        self._loaded: OrderedDict[str, Source] = OrderedDict()
        self._loading = asyncio.Lock()
        self.signs: Authority | None = None

    # -- what newcomers ask for -------------------------------------------------------------------------

    async def source(self, name: str) -> Source:
        """The run, release or channel of this name; "": the channel `stable`.

        Raises NotFound, Unavailable while the run is being checked after a start, and Refused where the
        channel has no release or the release cannot be used.
        """
        recovery = self._runs.recovery
        if name in (*self._runs, *recovery.pending, *recovery.unreadable):
            return Source.of(self._runs.named(name))
        release = await self.named(name or STABLE)
        async with self._loading:
            if release not in self._loaded:
                self._loaded[release] = await self._load(release)
                while len(self._loaded) > LOADED:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(release)
            return self._loaded[release]

    async def named(self, name: str) -> str:
        """The release of this name, or the one that the channel of this name has. Raises NotFound; Refused
        where the channel has none."""
        releases = self._storage.releases
        if await self._storage.call(releases.has, name):
            return name
        last = await self._storage.call(releases.last_of, name)
        if last is not None and last.release:
            return last.release
        if name == STABLE or last is not None:
            raise Refused(
                f"the channel {name} has no release yet",
                "a run that finishes and has learned makes one; until then, ask for a run by its name",
            )
        known = await self._storage.call(releases.names)
        channels = await self._storage.call(releases.latest)
        everything = [*{*self._runs, *known, STABLE, *channels}]
        raise NotFound(f"there is no run, release or channel {name!r}", near(name, everything))

    async def _load(self, name: str) -> Source:
        try:
            record = await self._storage.call(self._storage.releases.get, name)
            self._check_signature(record)
            if lost := await damage.lost_blob(self._storage, record.blobs):
                raise DataFault(lost)
            return await self._source_of(record)
        except (DataFault, DamagedRow, ConfigError, NotGenuine) as error:
            raise Refused(
                f"release {name} cannot be used: {error.message}",
                "the server's operator lets the channel have another: fedserver release use",
            ) from None

    def _check_signature(self, record: ReleaseRecord) -> None:
        """Raises NotGenuine for a card that is not what was signed, or names another state."""
        if _digest(record.structure) != record.card.state:
            raise NotGenuine("its state is not the one that its card names")
        if record.signature and self.signs is not None:
            server = certificate(self.signs.pem)
            check_signed(server, record.authority, record.signature, PURPOSE + record.text.encode())

    async def _source_of(self, record: ReleaseRecord) -> Source:
        card, run = record.card, self._runs.get(record.card.run)
        is_over = run is not None and not run.active
        if (
            run
            and is_over
            and await self._storage.call(self._storage.runs.checkpoint, run.run) == record.structure
        ):
            return replace(Source.of(run), release=card.release)  # its state is in memory already
        recipe = await asyncio.to_thread(recipe_of, card.spec)
        blobs = self._storage.blob_cache(card.run)
        state = await self._storage.call(blobs.load_structure, recipe.state, record.structure)
        terms = terms_of_run(card.spec, state)
        return Source(card.run, card.release, card.spec, recipe.server_half, state, blobs, terms)

    # -- runs that measure a release, or go on from it ---------------------------------------------------

    async def of_release(self, spec: RunSpec) -> RunSpec:
        """What an operator asked for who wants to know how good a release is, or to go on from it: with the
        algorithm and the network of its run, and to go on, on devices with the same labels where none are
        given. Raises NotFound; ConfigError for a series that goes on always from one release."""
        asked = spec.evaluate or spec.base
        name = await self.named(asked)
        if spec.every and name == asked:
            raise ConfigError(
                f"{name} is a release, which never changes: later runs could not go on from earlier ones",
                f"name a channel, such as {STABLE}",
            )
        of = (await self._storage.call(self._storage.releases.get, name)).card.spec
        found = replace(
            spec,
            algorithm=of.algorithm,
            preset=of.preset,
            parameters=of.parameters,
            learner=of.learner,
            learner_options=of.learner_options,
        )
        if spec.evaluate is not None:
            return replace(found, evaluate=name)
        return replace(
            found,
            parameters={**of.parameters, **spec.parameters},
            graph=of.graph,
            graph_bytes=of.graph_bytes,
            graph_by=of.graph_by,  # one that a device made stays one that no device may have
            labels=spec.labels or of.labels,
            release=name,
        )

    async def measured(self, spec: RunSpec, recipe: Recipe, model: Tensors | None) -> State:
        """The first state of a run that only measures. model: from elsewhere, where no release is named."""
        rho = accuracy_cost(recipe.server_half.parameters)
        if not spec.evaluate:
            if model is None:
                raise ConfigError("there is nothing to measure", "name a release, or give initial weights")
            return replace(measuring.start(model, None), subject="the given weights", rho=rho)
        state = (await self.source(spec.evaluate)).state
        return Measuring(models=state.models, assignments=state.assignments, subject=spec.evaluate, rho=rho)

    async def going_on(self, spec: RunSpec, recipe: Recipe) -> State:
        """The first state of a run that goes on from a release. Raises Refused if its algorithm cannot."""
        return await asyncio.to_thread(recipe.goes_on_from, (await self.source(spec.release)).state)

    def measurements(self, release: str) -> list[Run]:
        """The runs that have measured a release, oldest first."""
        runs = self._runs.values()
        return [run for run in runs if run.spec.evaluate == release and run.standing is Standing.FINISHED]

    # -- what operators do, in turn ----------------------------------------------------------------------

    async def create(self, run: Run, label: str) -> ReleaseRecord:
        """Make a release of a run as it is now. label: "": after the rounds of training that are complete.

        Raises ConfigError for a label that is not possible or is taken, Refused if the run has no model.
        """
        if label:
            check_name(label, "a release")
        if run.spec.evaluate is not None:
            raise Refused(f"run {run.run} only measures models", "make one of the run that trained them")
        if not run.engine.state.models:
            raise Refused(f"run {run.run} has no model yet", "try again after its first round")
        taken = await self._storage.call(self._storage.releases.taken, run.run)
        if label and f"{run.run}{AT}{label}" in taken:
            raise ConfigError(
                f"there is, or was, a release {run.run}{AT}{label}",
                "what a name stands for never changes: use another",
            )
        record = await self._made(run, label or _label(run, taken))
        await self._storage.when_space(self._storage.releases.add, record)
        return record

    async def use(self, release: str, channel: str, pinned: bool, why: str) -> Move:
        """Let a channel have a release, which ends its rollout. Raises as `fitting`."""
        move = Move(channel, await self.fitting(release, channel), pinned, time.time(), why)
        await self._storage.when_space(self._storage.releases.use, move)
        return move

    async def fitting(self, release: str, channel: str) -> str:
        """The name of a release that a channel can have. Raises NotFound; ConfigError for a name that no
        channel can have, and Refused for models of another shape than those that it has, or for damaged
        ones."""
        if check_name(channel, "a channel") in self._runs:
            raise ConfigError(f"{channel!r} is the name of a run", "use another name for the channel")
        if release in self._runs:
            raise NotFound(
                f"{release!r} is a run", f"first make a release: fedserver release create {release}"
            )
        name = await self.named(release)
        await self.source(name)  # no channel gets what cannot be used
        card, present = (
            (await self._storage.call(self._storage.releases.get, name)).card,
            await self._storage.call(self._storage.releases.channels),
        )
        if channel in present and (unfit := await self._unfit(card, present[channel].release)):
            raise Refused(
                f"{name} does not fit devices that follow {channel}: {unfit}",
                f"use another channel: --channel NAME; or end this one first: fedserver release rm {channel}",
            )
        return name

    async def remove(self, name: str) -> None:
        """Delete a release that no channel has, or end a channel: its releases stay, and so does its history.

        Raises NotFound, Refused.
        """
        channels = await self._storage.call(self._storage.releases.latest)
        if name in channels:
            if channels[name].release:
                await self._storage.when_space(
                    self._storage.releases.use, Move(name, "", at=time.time(), why="it was ended")
                )
            return
        if not await self._storage.call(self._storage.releases.has, name):
            raise NotFound(f"there is no release or channel {name!r}")
        await self.check_unused(name)
        await self._storage.when_space(self._storage.releases.remove, [name])
        self._loaded.pop(name, None)

    async def check_unused(self, *releases: str) -> None:
        """Raises Refused if a channel has one of these releases, or tries it."""
        for channel, move in (await self._storage.call(self._storage.releases.channels)).items():
            if move.release in releases:
                raise Refused(
                    f"the channel {channel} has release {move.release}",
                    "let it have another, with: fedserver release use; or end it, with: fedserver release rm",
                )
            going = await self._storage.call(self._storage.releases.rollouts.going, channel)
            if going is not None and going.new in releases:
                raise Refused(
                    f"a rollout of {going.new} goes on in channel {channel}",
                    f"end it, with: fedserver release use {going.old} --channel {channel}",
                )

    @property
    def certificate(self) -> bytes:
        """The server's certificate, PEM, with the proofs that lead from the keys that it had before to its
        present one; b"" if it has none."""
        return self.signs.pem if self.signs else b""

    def forget(self, run: RunId) -> None:
        """The run was removed, with its releases."""
        for name in [name for name, source in self._loaded.items() if source.run == run]:
            del self._loaded[name]

    # -- what happens by itself --------------------------------------------------------------------------

    async def of_finished(self, run: Run) -> tuple[ReleaseRecord | None, Move | None, str]:
        """What a run that finishes makes by itself: a release, what the channel `stable` is given, and a
        line for the run's log."""
        if run.spec.evaluate is not None or (run.spec.release and not run.engine.state.progress):
            return None, None, ""
        try:
            record = await self._made(
                run, _label(run, await self._storage.call(self._storage.releases.taken, run.run))
            )
            present = (await self._storage.call(self._storage.releases.channels)).get(STABLE)
            why = await self._why_not(run, record.card, present)
        except (DamagedRow, DataFault) as error:
            why, record, present = str(error), None, None
        if record is None or why:
            return None, None, f"not released by itself: {why}"
        name, before = record.card.release, f"; it had {present.release} before" if present else ""
        move = Move(STABLE, name, at=time.time(), why="the run has finished")
        return record, move, f"released as {name}, which the channel {STABLE} has now{before}"

    async def _why_not(self, run: Run, card: Card, present: Move | None) -> str:
        if present is None:
            return why_not_instead(card.verdict, None)
        if present.pinned:
            return f"the channel {STABLE} is pinned to {present.release}"
        if (going := await self._storage.call(self._storage.releases.rollouts.going, STABLE)) is not None:
            return f"a rollout of {going.new} goes on in channel {STABLE}"
        if unfit := await self._unfit(card, present.release):
            return f"it does not fit devices that follow {STABLE}: {unfit}"
        other = (await self._storage.call(self._storage.releases.get, present.release)).card
        if other.devices & await self.withdrawn():
            return why_not_instead(card.verdict, None)  # what replaces it need not be better
        both = await self._on_present_data(run) if run.spec.release == present.release else None
        if both and card.verdict and other.verdict:
            was, became = replace(other.verdict, accuracy=both[0]), replace(card.verdict, accuracy=both[1])
            why = why_not_instead(became, was)
            return f"{why}, both on the present data of the same devices" if why else ""
        return why_not_instead(card.verdict, other.verdict)

    async def _on_present_data(self, run: Run) -> tuple[float, float] | None:
        """The mean accuracies of the models that a run began with, and of those that it has made, over the
        devices that have measured both; None where none has. What a release reached on the data of an earlier
        day, no later one may ever reach again."""
        timeline, after = self._storage.journal.timeline, 0
        while page := await self._storage.call(timeline.read, run.run, after):
            for each in page:
                if each.measured_on == TRAIN and not each.abandoned:
                    return _means(each, run.engine.state.metrics) if each.began == 0 else None
            after = page[-1].round
        return None

    async def _unfit(self, card: Card, present: str) -> str:
        """Why devices that use a present release could not use the other; "" if they can, or if the present
        one cannot be read."""
        try:
            other = (await self._storage.call(self._storage.releases.get, present)).card
        except (DataFault, DamagedRow, NotFound):
            return ""
        if other.spec.lends_graph and not card.spec.lends_graph:
            return "it has no graph for those without a learner"
        try:
            check_manifest(_own_of(card), _own_of(other), "its model")
        except BadPayload as error:
            return error.message
        return ""

    async def _made(self, run: Run, label: str) -> ReleaseRecord:
        """A release of what is stored of a run, which is what its next round opens with."""
        structure = await self._storage.call(self._storage.runs.checkpoint, run.run)
        state, verdict = run.engine.state, await run.verdict()
        card = Card(
            f"{run.run}{AT}{label}",
            run.run,
            run.spec,
            round(time.time(), 3),
            run.engine.round,
            state.progress,
            _digest(structure),
            clusters_of(state),
            dict(state.metrics),
            {key: await self._storage.call(run.blobs.weights, model) for key, model in state.models.items()},
            verdict,
            await self._released_in(run),
            promise(state),
        )
        authority, signature = self.signs.sign(PURPOSE + card.text.encode()) if self.signs else ("", b"")
        return ReleaseRecord(card, structure, authority, signature)

    async def _released_in(self, run: Run) -> dict[DeviceId, Statement]:
        """What the devices of a run had released in it, without those that were withdrawn and are in none of
        its models any more."""
        found = dict(await self._storage.call(self._storage.runs.statements.of, run.run))
        for device in await self.withdrawn() & found.keys():
            if not await lineage_in(run, device):
                del found[device]
        return found

    async def withdrawn(self) -> set[DeviceId]:
        """The devices whose data are to count no more."""
        standings = await self._storage.call(self._storage.journal.standings)
        return {device for device, each in standings.items() if each is DeviceStanding.WITHDRAWN}


def _label(run: Run, taken: list[str]) -> str:
    """The rounds of training that are complete, and a number besides where that is taken."""
    progress = str(run.engine.state.progress)
    names = (progress, *(f"{progress}.{number}" for number in range(2, len(taken) + 3)))
    return next(name for name in names if f"{run.run}{AT}{name}" not in taken)


def _means(first: RoundHistory, now: Mapping[DeviceId, Evaluated]) -> tuple[float, float] | None:
    both = [
        (each.accuracy, now[each.device].accuracy)
        for each in first.devices
        if each.accuracy is not None and each.device in now
    ]
    return (fmean(before for before, _ in both), fmean(after for _, after in both)) if both else None


def _digest(structure: Structure) -> str:
    return hashlib.sha256(json.dumps(structure, sort_keys=True).encode()).hexdigest()


def _own_of(card: Card) -> Manifest:
    """The tensors of the learner itself, without the scale of the inputs, which the models of a run share."""
    manifest = next(iter(card.models.values())).manifest
    return own_of(manifest)
