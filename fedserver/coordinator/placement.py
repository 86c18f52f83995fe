"""Placement: which of a run's models fits a newcomer.

The newcomer chooses among them itself, if it wishes to, the run allows it, and it may have all. Otherwise
the algorithm of the run decides. `shoal.core.server_kit.placing` has both.

If the newcomer does not name a run, the server chooses one: the newest run that compares the newcomer's data
with its clusters and needs no labels; if there is none, the newest that compares with labels; otherwise the
newest that can place at all. Runs that were stopped, have failed or were never evaluated are asked only where
no other run can place: an experiment must not become the model of every newcomer.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import NoneType
from weakref import WeakKeyDictionary

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.runs import Run
from fedserver.coordinator.visits.visitor import Visitor
from fedserver.store.integrity.records import Standing
from fedserver.store.journal import placements as recorded
from fedserver.store.journal.placements import PlacementRecord
from shoal.core.algorithm import State
from shoal.core.errors import DiskFull, Refused
from shoal.core.exchange.admit import admit_evidence
from shoal.core.exchange.choosing import Choose, Wish
from shoal.core.exchange.choosing.compact import ChooseCompact, compact
from shoal.core.exchange.choosing.tuning import Tune
from shoal.core.exchange.choosing.vote import Vote
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.messages import Describe, Message
from shoal.core.exchange.parts import Ballot, ClusterAssignment, Descriptor, Evidence, Prototypes, Scores
from shoal.core.exchange.payload import BlobRef
from shoal.core.server_kit import placing
from shoal.core.types import DeviceId, ModelKey, RunId

MOST_MODELS = 64
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
    """The answer of a run, and the state that it is based on, since the run may continue meanwhile."""

    run: Run
    state: State
    found: ClusterAssignment | Message


async def place(
    coordinator: Coordinator,
    visitor: Visitor,
    run: RunId,
    evidence: Evidence | Wish | None,
    accept_nearest: bool = False,
) -> Question | Placement:
    """Answer a newcomer with its placement, or with the question whose answer `evidence` should be.

    accept_nearest: whether it gets the nearest model even if the algorithm abstained. Raises CannotPlace,
    NotFound if there is no such run, BadPayload if the evidence is wrong, TooOften if it has had too many
    models.
    """
    needs_graph = isinstance(evidence, Wish) and evidence.graph
    asked = _Asked(coordinator, visitor, accept_nearest, needs_graph, SHOWN[type(evidence)])
    if run:
        return await _given(asked, await _ask(asked, coordinator.run(run), evidence))
    wish, shown = (evidence, None) if isinstance(evidence, Wish) else (None, evidence)
    newest = list(reversed(coordinator.runs.values()))  # runs come and go meanwhile
    refusal: CannotPlace | None = None
    for doubtful in (False, True):
        found, refused = await _best(asked, [each for each in newest if _is_doubtful(each) is doubtful], wish)
        refusal = refusal or refused
        if found is not None:
            asks = isinstance(found.found, Message)
            if asks and shown is not None:
                found = await _ask(asked, found.run, shown)
            return await _given(asked, found, f"; {refusal.message}" if refusal and not asks else "")
    raise refusal or CannotPlace("there is no run that can place devices", "start one first")


async def _best(
    asked: _Asked, candidates: Sequence[Run], wish: Wish | None
) -> tuple[_Answer | None, CannotPlace | None]:
    """The answer of the best of these runs, the newest first, and why the newest of those that cannot place
    cannot."""
    asking: _Answer | None = None
    fallback: _Answer | None = None
    refusal: CannotPlace | None = None
    for candidate in candidates:
        try:
            answer = await _ask(asked, candidate, wish)
        except CannotPlace as refused:
            refusal = refusal or refused
            continue
        if isinstance(answer.found, Tune | ChooseCompact | Vote | Describe):
            return answer, refusal
        if isinstance(answer.found, Message):
            asking = asking or answer
        else:
            fallback = fallback or answer
    return asking or fallback, refusal


def _is_doubtful(run: Run) -> bool:
    """Whether a run was ended before its end, or goes on and no device has measured its models yet."""
    return run.standing is not Standing.FINISHED and not (run.active and run.engine.state.metrics)


async def _ask(asked: _Asked, run: Run, evidence: Evidence | Wish | None) -> _Answer:
    state = run.engine.state
    if asked.graph and not run.spec.graph:
        raise CannotPlace(
            f"run {run.run} has no graph for devices without a learner",
            "set `learner` on this device, or start a run with --graph",
        )
    if isinstance(evidence, Wish):
        every = list(placing.clusters(state))
        if not await asked.coordinator.quota.allows(asked.visitor.device, run.run, every):
            evidence = replace(evidence, models=1)
    try:
        found = await asyncio.to_thread(_found, run, state, asked.visitor.device, evidence)
    except Refused as refused:
        raise CannotPlace(f"run {run.run}: {refused.message}", refused.hint) from None
    if isinstance(found, ClusterAssignment) and len(state.models) == 1:
        compared = found.reason if isinstance(evidence, Evidence) else "nothing was compared"
        reason = f"run {run.run} has only one model" + (f": {compared}" if compared else "")
        found = replace(found, reason=reason)
    return _Answer(run, state, found)


def _found(
    run: Run, state: State, device: DeviceId, evidence: Evidence | Wish | None
) -> ClusterAssignment | Message:
    """The answer of the run. Evidence has to answer the question that its algorithm asks."""
    if isinstance(evidence, Wish) and evidence.own:
        task = placing.own(run.server_half, state, device)
        if task is not None:
            return task
    if isinstance(evidence, Ballot):
        return placing.place(run.server_half, state, evidence, MOST_MODELS)
    if not isinstance(evidence, Evidence):
        found = placing.place(run.server_half, state, evidence, MOST_MODELS)
        return _compact(run, state, found) if isinstance(found, Choose) else found
    question = run.server_half.place(state, None)
    if isinstance(question, ClusterAssignment):
        return question
    admit_evidence(question, evidence)
    return run.server_half.place(state, evidence)


def _compact(run: Run, state: State, found: Choose) -> ChooseCompact:
    """The same question in few bytes. Many newcomers ask of one state, so it is made once."""
    made = _made.get(run)
    if made is None or made[0] is not state:
        made = _made[run] = state, compact(found)
    return made[1]


async def voted_on(coordinator: Coordinator, run: RunId) -> str:
    """SHA-256 of the question of a vote, as the run asks it now; "" if it no longer does."""
    if (found := coordinator.runs.get(run)) is None:
        return ""
    state, made = found.engine.state, _papers.get(found)
    if made is None or made[0] is not state:
        made = _papers[found] = state, await asyncio.to_thread(_paper, found, state)
    return made[1]


def _paper(run: Run, state: State) -> str:
    with suppress(Refused):
        if (paper := placing.ballot_paper(run.server_half, state)) is not None:
            return paper.digest
    return ""


_papers: WeakKeyDictionary[Run, tuple[State, str]] = WeakKeyDictionary()
_made: WeakKeyDictionary[Run, tuple[State, ChooseCompact]] = WeakKeyDictionary()


async def _given(asked: _Asked, answer: _Answer, why: str = "") -> Question | Placement:
    """The answer for a device, which may then fetch the blobs that it names. why: is added to its reason.

    Raises TooOften if the device may not have the models of the clusters in the answer.
    """
    run, found, visitor = answer.run, answer.found, asked.visitor
    spend = asked.coordinator.quota.spend
    graph = BlobRef(run.spec.graph, run.spec.graph_bytes) if asked.graph else None
    if graph is not None:
        visitor.grant([graph.sha256], run.run)
    if isinstance(found, Message):
        payload = await run.storage.call(run.blobs.question, found)
        names = [weights.blob.sha256 for weights in payload.weights()]
        clusters = [found.cluster] if isinstance(found, Tune) else await _clusters_of(answer, names)
        await spend(visitor.device, run.run, clusters)
        if isinstance(found, Tune):
            member = replace(answer, found=ClusterAssignment(found.cluster))
            await _note(asked, member, recorded.PLACED, MEMBER, clusters)
        elif clusters:
            why = KEPT if isinstance(found, ChooseCompact) else MEASURES
            await _note(asked, answer, recorded.HANDED_OUT, why, clusters)
        visitor.grant(names, run.run)
        return Question(run.run, payload, graph, run.terms)
    assignment = replace(found, reason=found.reason + why)
    if found.abstained and not asked.accept_nearest:
        await _note(asked, answer, recorded.ABSTAINED, assignment.reason)
        return Placement(run.run, assignment, None, graph)
    await spend(visitor.device, run.run, [found.cluster])
    await _note(
        asked,
        answer,
        recorded.NEAREST if found.abstained else recorded.PLACED,
        assignment.reason,
        [found.cluster],
    )
    model = await run.storage.call(run.blobs.weights, answer.state.models[found.cluster])
    visitor.grant([model.blob.sha256], run.run)
    return Placement(run.run, assignment, model, graph)


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
    record = PlacementRecord(answer.run.run, asked.visitor.device, asked.evidence, outcome, *where)
    record = replace(record, reason=reason, models=tuple(models), progress=answer.state.progress)
    storage = asked.coordinator.storage
    with suppress(DiskFull):
        await storage.call(storage.journal.placements.add, record)


async def _clusters_of(answer: _Answer, names: list[str]) -> list[ModelKey]:
    """The clusters whose models are in these blobs. A run with one model has nothing to choose from."""
    models = placing.clusters(answer.state) if len(answer.state.models) > 1 else {}
    if isinstance(answer.found, ChooseCompact):
        return list(models)
    call, weights = answer.run.storage.call, answer.run.blobs.weights
    return [key for key, each in models.items() if (await call(weights, each)).blob.sha256 in names]
