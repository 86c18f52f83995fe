"""A device that trains makes its cluster's model its own: what came of it, for the owner."""

from dataclasses import dataclass

from fedclient.work.executor import Executor
from shoal.core.exchange.choosing.tuning import WORTH, Tuned
from shoal.core.exchange.link import Failure, Question, Task
from shoal.core.exchange.payload import Weights, decode

MEMBER = "this device trains in the run, and this is its own cluster"
NOT_WORTH_IT = (
    f"fine-tuning did not lower the held-out loss by {1.0 - WORTH:.0%} and by more than chance explains"
)


@dataclass(frozen=True)
class FineTuning:
    """What came of fine-tuning a cluster's model.

    kept: whether the fine-tuned model is used. before, after: the held-out losses that decided; None where
    fine-tuning failed. reason: why the cluster's model is used instead; "" where it is not.
    """

    kept: bool
    before: float | None = None
    after: float | None = None
    reason: str = ""


async def fine_tuned(question: Question, own: Executor) -> tuple[Weights | None, FineTuning]:
    """The fine-tuned model, in the device's folder, or None where the cluster's is to be used; and why.

    own: has the device's data, with labels. A failure is no error here: the cluster's model is at hand.
    """
    result = await own.perform(Task(question.run, 1, 0, 0, "tune", question.payload))
    if isinstance(result, Failure):
        return None, FineTuning(False, reason=f"fine-tuning failed: {result.message}")
    tuned = decode(result, {Tuned.kind: Tuned}, lambda weights: {})
    assert isinstance(tuned, Tuned)
    model = result.parts.get("model")
    kept = isinstance(model, Weights)
    found = FineTuning(kept, tuned.before, tuned.after, "" if kept else NOT_WORTH_IT)
    return (model if isinstance(model, Weights) else None), found
