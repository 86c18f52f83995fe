"""What a newcomer is given to choose for itself, and what it finds: of this, nothing leaves the device.

`Choose` is the only question whose answer the server never gets. So it is no task, and a device that trains
does not know it: only a device that asked for a placement answers it, and only to itself.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import MAX_MODELS, ClusterAssignment
from shoal.core.types import ModelKey, Tensors

NO_CLASSIFIER = "no-classifier"
"""The code of the failure that a device's network gives no probabilities of classes."""


@dataclass(frozen=True)
class Wish:
    """The newcomer shows nothing of its data, and wishes to try models itself. models: the most it takes.

    graph: whether it has no learner of its own and needs the run's graph.
    """

    models: int
    graph: bool = False

    def __post_init__(self) -> None:
        if not 1 <= self.models <= MAX_MODELS:
            raise BadPayload(f"a wish for {self.models} models", f"1 to {MAX_MODELS} can be wished for")


@dataclass(frozen=True, eq=False)
class Chosen(Message):
    """What a newcomer found. One number for each model, in the order of the question, the common model last.

    information: the mutual information of the device's samples and the model's predictions, in nats; with
    labels, the mean logarithm of what the model gives to a sample's label. errors: the standard error of its
    difference from the best cluster's; 0 for that one. odds: the probability that the model is the right
    one; 0 for the common model. agreement: the share of samples on which the model is expected to say what
    the right one says.
    """

    kind: ClassVar[str] = "chosen"
    assignment: ClusterAssignment
    information: tuple[float, ...]
    errors: tuple[float, ...]
    odds: tuple[float, ...]
    agreement: tuple[float, ...]
    examples: int


@dataclass(frozen=True, eq=False)
class Choose(Message):
    """Choose one of `models` by the device's own samples.

    names: of the models, separated by spaces. The last model is the common one, for devices whose samples do
    not tell the others apart. shares: of the run's devices, one for each of the others; above 0.
    """

    kind: ClassVar[str] = "choose"
    reply: ClassVar[type[Message]] = Chosen
    models: tuple[Tensors, ...]
    names: str
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        sane = all(share > 0.0 for share in self.shares) and sum(self.shares) < math.inf
        found = len(self.models), len(self.keys), len(self.shares) + 1
        if len(set(found)) > 1 or len(set(self.keys)) < len(self.keys) or len(self.models) < 2 or not sane:
            raise BadPayload(
                f"a choice among {found[0]} models with {found[1]} names and {found[2] - 1} shares",
                "update the older of the two sides",
            )

    @property
    def keys(self) -> tuple[ModelKey, ...]:
        """The names, one for each model."""
        return tuple(self.names.split(" "))
