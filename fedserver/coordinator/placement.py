"""Placement: which of a run's models fits a newcomer. The newcomer chooses among them itself, if it wishes to
and the run allows it; otherwise the algorithm of the run decides (`shoal.core.server_kit.placing`).

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
from shoal.core.exchange.choosing import Choose, Wish
from shoal.core.exchange.link import Placement, Question
from shoal.core.exchange.messages import Describe, Message
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.server_kit import placing
from shoal.core.types import RunId

MOST_MODELS = 64
"""The models of how many clusters a newcomer may have at once, to choose among them."""


class CannotPlace(Refused):
    """The run cannot place yet, or cannot place without labels. The hint says what would help."""


@dataclass(frozen=True)
class _Answer:
    """The answer of a run, and the state that it is based on, since the run may continue meanwhile."""

    run: Run
    state: State
    found: ClusterAssignment | Message


async def place(
    coordinator: Coordinator, visitor: Visitor, run: RunId, evidence: Evidence | Wish | None
) -> Question | Placement:
    """Answer a newcomer with its placement, or with the question whose answer `evidence` should be.

    Raises CannotPlace, NotFound if there is no such run, BadPayload if the evidence is wrong.
    """
    if run:
        return await _given(visitor, await _ask(coordinator.run(run), evidence))
    wish, shown = (evidence, None) if isinstance(evidence, Wish) else (None, evidence)
    asking: _Answer | None = None
    fallback: _Answer | None = None
    refusal: CannotPlace | None = None
    for candidate in reversed(coordinator.runs.values()):
        try:
            answer = await _ask(candidate, wish)
            if isinstance(answer.found, Choose | Describe):
                if shown is not None:
                    answer = await _ask(candidate, shown)
                return await _given(visitor, answer)
        except CannotPlace as refused:
            refusal = refusal or refused
        else:
            if isinstance(answer.found, Message):
                asking = asking or answer
            else:
                fallback = fallback or answer
    if asking is not None:
        if shown is not None:
            asking = await _ask(asking.run, shown)
        return await _given(visitor, asking)
    if fallback is not None:
        return await _given(visitor, fallback, f"; {refusal.message}" if refusal else "")
    raise refusal or CannotPlace("there is no run that can place devices", "start one first")


async def _ask(run: Run, evidence: Evidence | Wish | None) -> _Answer:
    state = run.engine.state
    try:
        found = await asyncio.to_thread(_found, run, state, evidence)
    except Refused as refused:
        raise CannotPlace(f"run {run.run}: {refused.message}", refused.hint) from None
    if isinstance(found, ClusterAssignment) and len(state.models) == 1:
        compared = found.reason if isinstance(evidence, Evidence) else "nothing was compared"
        reason = f"run {run.run} has only one model" + (f": {compared}" if compared else "")
        found = replace(found, reason=reason)
    return _Answer(run, state, found)


def _found(run: Run, state: State, evidence: Evidence | Wish | None) -> ClusterAssignment | Message:
    """The answer of the run. Evidence has to answer the question that its algorithm asks."""
    if not isinstance(evidence, Evidence):
        return placing.place(run.server_half, state, evidence, MOST_MODELS)
    question = run.server_half.place(state, None)
    if isinstance(question, ClusterAssignment):
        return question
    admit_evidence(question, evidence)
    return run.server_half.place(state, evidence)


async def _given(visitor: Visitor, answer: _Answer, why: str = "") -> Question | Placement:
    """The answer for a device, which may then fetch the blobs that it names. why: is added to its reason."""
    run, found = answer.run, answer.found
    if isinstance(found, Message):
        payload = await run.blobs.question(found)
        visitor.grant([weights.blob.sha256 for weights in payload.weights()], run.run)
        return Question(run.run, payload)
    # The model is included even if the algorithm abstained: the owner may want to use the nearest one anyway.
    model = await run.blobs.weights(answer.state.models[found.cluster])
    visitor.grant([model.blob.sha256], run.run)
    return Placement(run.run, replace(found, reason=found.reason + why), model)
