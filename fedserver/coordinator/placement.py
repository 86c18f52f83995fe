"""Placement: the algorithm of a run decides which of its models fits a newcomer.

If the newcomer does not name a run, the server chooses one: the newest run that compares the newcomer's data
with its clusters and needs no labels; if there is none, the newest that compares with labels; otherwise the
newest that can place at all.
"""

import asyncio
from dataclasses import dataclass, replace

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.runs import Run
from fedserver.coordinator.visitor import Visitor
from shoal.core.algorithm import State
from shoal.core.errors import Refused
from shoal.core.exchange.admit import admit_evidence
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.messages import Describe, Message
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.types import ModelKey, RunId


class CannotPlace(Refused):
    """The run cannot place yet, or cannot place without labels. The hint says what would help."""


@dataclass(frozen=True)
class _Asked:
    """Who asks, and whether the nearest model is wanted even if no cluster fits."""

    coordinator: Coordinator
    visitor: Visitor
    accept_nearest: bool


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
    evidence: Evidence | None,
    accept_nearest: bool = False,
) -> Question | Placement:
    """Answer a newcomer with its placement, or with the question whose answer `evidence` should be.

    accept_nearest: whether it gets the nearest model even if the algorithm abstained. Raises CannotPlace,
    NotFound if there is no such run, BadPayload if the evidence is wrong, TooOften if it has had too many
    models.
    """
    asked = _Asked(coordinator, visitor, accept_nearest)
    if run:
        return await _given(asked, await _ask(coordinator.run(run), evidence))
    asking: _Answer | None = None
    fallback: _Answer | None = None
    refusal: CannotPlace | None = None
    for candidate in reversed(coordinator.runs.values()):
        try:
            answer = await _ask(candidate, None)
            if isinstance(answer.found, Describe):
                if evidence is not None:
                    answer = await _ask(candidate, evidence)
                return await _given(asked, answer)
        except CannotPlace as refused:
            refusal = refusal or refused
        else:
            if isinstance(answer.found, Message):
                asking = asking or answer
            else:
                fallback = fallback or answer
    if asking is not None:
        if evidence is not None:
            asking = await _ask(asking.run, evidence)
        return await _given(asked, asking)
    if fallback is not None:
        return await _given(asked, fallback, f"; {refusal.message}" if refusal else "")
    raise refusal or CannotPlace("there is no run that can place devices", "start one first")


async def _ask(run: Run, evidence: Evidence | None) -> _Answer:
    state = run.engine.state
    try:
        found = await asyncio.to_thread(_found, run, state, evidence)
    except Refused as refused:
        raise CannotPlace(f"run {run.run}: {refused.message}", refused.hint) from None
    if isinstance(found, ClusterAssignment) and len(state.models) == 1:
        compared = "nothing was compared" if evidence is None else found.reason
        reason = f"run {run.run} has only one model" + (f": {compared}" if compared else "")
        found = replace(found, reason=reason)
    return _Answer(run, state, found)


def _found(run: Run, state: State, evidence: Evidence | None) -> ClusterAssignment | Message:
    """The algorithm's answer. The evidence has to answer the question that the run asks."""
    question = run.server_half.place(state, None)
    if evidence is None or isinstance(question, ClusterAssignment):
        return question
    admit_evidence(question, evidence)
    return run.server_half.place(state, evidence)


async def _given(asked: _Asked, answer: _Answer, why: str = "") -> Question | Placement:
    """The answer for a device, which may then fetch the blobs that it names. why: is added to its reason.

    Raises TooOften if the device may not have the models of the clusters in the answer.
    """
    run, found, visitor = answer.run, answer.found, asked.visitor
    spend = asked.coordinator.quota.spend
    if isinstance(found, Message):
        payload = await run.blobs.question(found)
        names = [weights.blob.sha256 for weights in payload.weights()]
        await spend(visitor.device, run.run, await _clusters_of(answer, names))
        visitor.grant(names, run.run)
        return Question(run.run, payload)
    assignment = replace(found, reason=found.reason + why)
    if found.abstained and not asked.accept_nearest:
        return Placement(run.run, assignment, None)
    await spend(visitor.device, run.run, [found.cluster])
    model = await run.blobs.weights(answer.state.models[found.cluster])
    visitor.grant([model.blob.sha256], run.run)
    return Placement(run.run, assignment, model)


async def _clusters_of(answer: _Answer, names: list[str]) -> list[ModelKey]:
    """The clusters whose models are among these blobs. A run with one model has nothing to choose from."""
    models = answer.state.models if len(answer.state.models) > 1 else {}
    return [
        key for key, each in models.items() if (await answer.run.blobs.weights(each)).blob.sha256 in names
    ]
