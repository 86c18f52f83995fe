"""Which model fits a newcomer: the algorithm decides, of the run that was named or the newest that can."""

import asyncio

from fedcore.errors import Refused
from fedcore.link import Placement, Question
from fedcore.messages import Describe
from fedcore.parts import Descriptor
from fedcore.types import RunId
from fedserver.coordinator import Coordinator
from fedserver.runs import Run
from fedserver.visitor import Visitor


class CannotPlace(Refused):
    """The run cannot place yet, or not without labels; the mend says what would work."""


async def place(
    coordinator: Coordinator, visitor: Visitor, run: RunId, descriptor: Descriptor | None
) -> Question | Placement:
    """Raises CannotPlace, or NotFound when there is no such run."""
    if run:
        return await _place_in(coordinator, visitor, coordinator.run(run), descriptor)
    refusal: Refused = CannotPlace("there is no run that could place", "start one first")
    for candidate in reversed(coordinator.runs.values()):
        try:
            return await _place_in(coordinator, visitor, candidate, descriptor)
        except Refused as refused:
            refusal = refused
    raise refusal


async def _place_in(
    coordinator: Coordinator, visitor: Visitor, run: Run, descriptor: Descriptor | None
) -> Question | Placement:
    state = run.engine.state
    try:
        answer = await asyncio.to_thread(run.central.place, state, descriptor)
    except Refused as refused:
        raise CannotPlace(f"run {run.run}: {refused.message}", refused.mend) from None
    storage = coordinator.storage
    if isinstance(answer, Describe):
        payload = await storage(run.kept.question, answer)
        visitor.grant([weights.blob.sha256 for weights in payload.weights()], run.run)
        return Question(run.run, payload)
    # Also where it abstained: the owner may want to use the nearest model all the same.
    model = await storage(run.kept.weights, state.models[answer.cluster])
    visitor.grant([model.blob.sha256], run.run)
    return Placement(run.run, answer, model)
