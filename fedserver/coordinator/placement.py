"""Placement: which of the models of a release fits a newcomer.

The newcomer chooses among them itself, if it wishes to, the run allows it, and it may have all. Otherwise
the algorithm of the run decides. `shoal.core.server_kit.placing` has both. A newcomer that names nothing is
given what the channel `stable` has: an experiment must not become the model of every newcomer. One that names
a run is given the models that it has now.
"""

import asyncio
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import NoneType
from weakref import WeakKeyDictionary

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.published import Source
from fedserver.coordinator.visits.visitor import Visitor
from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.journal import newcomers as recorded
from fedserver.store.journal.newcomers import PlacementRecord
from fedserver.store.releases import STABLE, ReleaseRecord
from shoal.core.algorithm import State
from shoal.core.errors import DiskFull, NotFound, Refused
from shoal.core.exchange.admit import admit_evidence
from shoal.core.exchange.choosing import Choose, Wish
from shoal.core.exchange.choosing.compact import ChooseCompact, compact
from shoal.core.exchange.choosing.tuning import Tune
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import Ballot, ClusterAssignment, Descriptor, Evidence, Prototypes, Scores
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.seal import PURPOSE, Seal, Signed, fingerprint
from shoal.core.exchange.tensors import manifest_of
from shoal.core.server_kit import placing
from shoal.core.types import DeviceId, ModelKey

MAX_MODELS = 64
"""The models of how many clusters any newcomer may have at once, to choose among them."""

SHOWN: dict[type, str] = {
    NoneType: recorded.NOTHING,
    Wish: recorded.WISH,
    Descriptor: recorded.DESCRIPTOR,
    Scores: recorded.SCORES,
    Prototypes: recorded.PROTOTYPES,
    Ballot: recorded.VOTE,
}
"""What a newcomer shows, as it is recorded."""
MEMBER = "it trains in this run, and may fine-tune its cluster's model"
KEPT = "it compares the models on its own samples, and keeps its choice"
MEASURES = "it was asked for the loss of each model on its own samples"


class CannotPlace(Refused):
    """The run cannot place yet, or cannot place without labels. The hint says what would help."""


@dataclass(frozen=True)
class _Asked:
    """Who asks, whether the nearest model is wanted even if no cluster fits, whether the run's graph is
    needed, and what was shown."""

    coordinator: Coordinator
    visitor: Visitor
    accept_nearest: bool
    graph: bool
    evidence: str


@dataclass(frozen=True)
class _Answer:
    """The answer of a source."""

    source: Source
    found: ClusterAssignment | Message


async def place(
    coordinator: Coordinator,
    visitor: Visitor,
    name: str,
    evidence: Evidence | Wish | None,
    accept_nearest: bool = False,
) -> Question | Placement:
    """Answer a newcomer with its placement, or with the question whose answer `evidence` should be.

    name: of a run, a release or a channel; "": the channel `stable`. accept_nearest: whether it gets the
    nearest model even if the algorithm abstained. Raises CannotPlace, NotFound if there is nothing of that
    name, BadPayload if the evidence is wrong, TooOften if it has had too many models.
    """
    trial = None
    if isinstance(evidence, Wish) and evidence.counted is not None:
        trial = await coordinator.rollouts.visit(visitor.device, name or STABLE, evidence.counted)
    needs_graph = isinstance(evidence, Wish) and evidence.graph
    asked = _Asked(coordinator, visitor, accept_nearest, needs_graph, SHOWN[type(evidence)])
    try:
        source = await coordinator.published.source(name)
    except Refused as refused:
        raise CannotPlace(refused.message, refused.hint) from None
    return replace(await _given(asked, await _ask(asked, source, evidence)), trial=trial)


async def _ask(asked: _Asked, source: Source, evidence: Evidence | Wish | None) -> _Answer:
    run, state = source.run, source.state
    if asked.graph and not source.spec.lends_graph:
        raise CannotPlace(
            f"run {run} has no graph for devices without a learner",
            "set `learner` on this device, or start a run with --graph",
        )
    if isinstance(evidence, Wish):
        every = list(placing.clusters(state))
        if not await asked.coordinator.quota.allows(asked.visitor.device, run, every):
            evidence = replace(evidence, models=1)
    try:
        found = await asyncio.to_thread(_found, source, asked.visitor.device, evidence)
    except Refused as refused:
        raise CannotPlace(f"run {run}: {refused.message}", refused.hint) from None
    if isinstance(found, ClusterAssignment) and len(state.models) == 1:
        compared = found.reason if isinstance(evidence, Evidence) else "nothing was compared"
        reason = f"run {run} has only one model" + (f": {compared}" if compared else "")
        found = replace(found, reason=reason)
    return _Answer(source, found)


def _found(source: Source, device: DeviceId, evidence: Evidence | Wish | None) -> ClusterAssignment | Message:
    """The answer of the source. Evidence has to answer the question that its algorithm asks."""
    half, state = source.server_half, source.state
    if isinstance(evidence, Wish) and evidence.own:
        task = placing.own(half, state, device)
        if task is not None:
            return task
    if isinstance(evidence, Ballot):
        return placing.place(half, state, evidence, MAX_MODELS)
    if not isinstance(evidence, Evidence):
        found = placing.place(half, state, evidence, MAX_MODELS)
        return _compact(source, found) if isinstance(found, Choose) else found
    question = half.place(state, None)
    if isinstance(question, ClusterAssignment):
        return question
    admit_evidence(question, evidence)
    return half.place(state, evidence)


def _compact(source: Source, found: Choose) -> ChooseCompact:
    """The same question in few bytes. Many newcomers ask of one state, so it is made once."""
    made = _made.get(source.blobs)
    if made is None or made[0] is not source.state:
        made = _made[source.blobs] = source.state, compact(found)
    return made[1]


async def voted_on(coordinator: Coordinator, name: str) -> str:
    """SHA-256 of the question of a vote, as this source asks it now; "" if it no longer does."""
    try:
        source = await coordinator.published.source(name)
    except (Refused, NotFound):
        return ""
    made = _papers.get(source.blobs)
    if made is None or made[0] is not source.state:
        made = _papers[source.blobs] = source.state, await asyncio.to_thread(_paper, source)
    return made[1]


def _paper(source: Source) -> str:
    with suppress(Refused):
        if (paper := placing.ballot_paper(source.server_half, source.state)) is not None:
            return paper.digest
    return ""


async def seal(coordinator: Coordinator, release: str) -> Signed | None:
    """What devices check a release by, signed by the server's key; None on a server without certificates.

    Raises NotFound, and Refused where the release cannot be used.
    """
    published = coordinator.published
    if published.signs is None:
        return None
    source = await published.source(release)
    if source.release != release:
        raise NotFound(f"there is no release {release!r}")
    key = published.signs.pin.hex()
    made = _seals.get(source.blobs)
    if made is None or made[0] is not source.state or (made[1].release, made[1].key) != (release, key):
        record = await coordinator.storage.call(coordinator.storage.releases.get, release)
        new = await asyncio.to_thread(_seal, source, record, key)
        made = _seals[source.blobs] = source.state, new, published.signs.sign(PURPOSE + new.statement)[1]
    return Signed(made[1].statement, made[2])


def _seal(source: Source, of: ReleaseRecord, key: str) -> Seal:
    """Its models as they are, and as newcomers get them who choose among them."""
    models = [*source.state.models.items()]
    with suppress(Refused):
        asked = placing.place(source.server_half, source.state, Wish(MAX_MODELS), MAX_MODELS)
        if isinstance(asked, Choose):
            few = _compact(source, asked).opened(manifest_of(asked.models[-1]))
            models += zip(few.keys, few.models, strict=True)
    prints = [(cluster, fingerprint(model)) for cluster, model in models]
    by_cluster = {cluster: tuple(own for other, own in prints if other == cluster) for cluster, _ in prints}
    digest = hashlib.sha256(of.text.encode()).hexdigest()
    return Seal(of.card.release, digest, key, of.card.spec.graph, by_cluster)


_papers: WeakKeyDictionary[BlobCache, tuple[State, str]] = WeakKeyDictionary()
_made: WeakKeyDictionary[BlobCache, tuple[State, ChooseCompact]] = WeakKeyDictionary()
_seals: WeakKeyDictionary[BlobCache, tuple[State, Seal, bytes]] = WeakKeyDictionary()


async def _given(asked: _Asked, answer: _Answer) -> Question | Placement:
    """The answer for a device, which may then fetch the blobs that it names.

    Raises TooOften if the device may not have the models of the clusters in the answer.
    """
    source, found, visitor = answer.source, answer.found, asked.visitor
    run, release = source.run, source.release
    spend = asked.coordinator.quota.spend
    graph = BlobRef(source.spec.graph, source.spec.graph_bytes) if asked.graph else None
    if graph is not None:
        visitor.grant([graph.sha256], run)
    if isinstance(found, Message):
        payload = await asked.coordinator.storage.call(source.blobs.question, found)
        names = [weights.blob.sha256 for weights in payload.weights()]
        clusters = [found.cluster] if isinstance(found, Tune) else await _clusters_of(asked, answer, names)
        await spend(visitor.device, run, clusters)
        if isinstance(found, Tune):
            member = replace(answer, found=ClusterAssignment(found.cluster))
            await _note(asked, member, recorded.PLACED, MEMBER, clusters)
        elif clusters:
            why = KEPT if isinstance(found, ChooseCompact) else MEASURES
            await _note(asked, answer, recorded.HANDED_OUT, why, clusters)
        visitor.grant(names, run)
        return Question(run, payload, graph, source.terms, release)
    if found.abstained and not asked.accept_nearest:
        await _note(asked, answer, recorded.ABSTAINED, found.reason)
        return Placement(run, found, None, graph, release)
    await spend(visitor.device, run, [found.cluster])
    await _note(
        asked,
        answer,
        recorded.NEAREST if found.abstained else recorded.PLACED,
        found.reason,
        [found.cluster],
    )
    model = await asked.coordinator.storage.call(source.blobs.weights, source.state.models[found.cluster])
    visitor.grant([model.blob.sha256], run)
    return Placement(run, found, model, graph, release)


async def _note(
    asked: _Asked, answer: _Answer, outcome: str, reason: str, models: Sequence[ModelKey] = ()
) -> None:
    """Record what a newcomer is answered. On a full disk only this record is lost."""
    found = answer.found
    where: tuple[str, str, float | None] | tuple[()] = ()
    if isinstance(found, ClusterAssignment):
        where = (
            found.cluster,
            found.runner_up,
            None if asked.evidence == recorded.VOTE else found.confidence,
        )
    record = PlacementRecord(answer.source.run, asked.visitor.device, asked.evidence, outcome, *where)
    record = replace(record, reason=reason, models=tuple(models), progress=answer.source.state.progress)
    storage = asked.coordinator.storage
    with suppress(DiskFull):
        await storage.call(storage.journal.placements.add, record)


async def _clusters_of(asked: _Asked, answer: _Answer, names: list[str]) -> list[ModelKey]:
    """The clusters whose models are in these blobs. A run with one model has nothing to choose from."""
    models = placing.clusters(answer.source.state) if len(answer.source.state.models) > 1 else {}
    if isinstance(answer.found, ChooseCompact):
        return list(models)
    call, weights = asked.coordinator.storage.call, answer.source.blobs.weights
    return [key for key, each in models.items() if (await call(weights, each)).blob.sha256 in names]
