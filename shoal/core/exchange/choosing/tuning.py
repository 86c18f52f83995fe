"""Fine-tuning: a device of a run gets its cluster's model and makes it its own, and nothing leaves it.

Like `Choose`, `Tune` is a question whose answer the server never gets: only a device that asked for a
placement answers it, and only to itself.
"""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.exchange.messages import Message, TrainingSettings
from shoal.core.types import ModelKey, Tensors

EPOCHS = 5
"""How long a device fine-tunes. Chosen with `STEP_SHARE` and `MAX_LOSS_LEFT`: docs/algorithms.md says how."""
STEP_SHARE = 0.5
"""How far from the cluster's model toward the one that the device makes of it the held-out part is asked."""
PULL = 1.0
"""mu of the pull to the cluster's model, where a device trains it on all of its samples."""
MAX_LOSS_LEFT = 0.9
"""The share of the held-out loss that has to be left at most, or the cluster's model stays as it is."""


@dataclass(frozen=True, eq=False)
class Tuned(Message):
    """What fine-tuning found. before, after: the mean held-out loss by sample of the cluster's model, and of
    the one in between that tells whether it pays. examples: samples of the held-out part. model: the
    fine-tuned one, which has seen these too, if it is worth it.
    """

    kind: ClassVar[str] = "tuned"
    before: float
    after: float
    examples: int
    model: Tensors | None = None


@dataclass(frozen=True, eq=False)
class Tune(Message):
    """Train `model`, the one of `cluster`, on the device's training part, go `STEP_SHARE` of the way, and if
    the held-out part says that it is worth it, train `model` on both parts.
    """

    kind: ClassVar[str] = "tune"
    reply: ClassVar[type[Message]] = Tuned
    model: Tensors
    settings: TrainingSettings
    cluster: ModelKey
