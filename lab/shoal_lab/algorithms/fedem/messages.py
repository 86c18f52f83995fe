"""FedEM's messages."""

import math
from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Evaluated, Message, TrainingSettings
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False)
class Mixed(Message):
    """The models after the M-step. heaviest: the number of the one that explains most. loss: of the
    mixture."""

    kind: ClassVar[str] = "fedem_mixed"
    models: tuple[Tensors, ...]
    heaviest: int
    examples: int
    loss: float


@dataclass(frozen=True, eq=False)
class Mix(Message):
    """Do the E-step and the M-step on the training part. first: see the parameters."""

    kind: ClassVar[str] = "fedem_mix"
    reply: ClassVar[type[Message]] = Mixed
    models: tuple[Tensors, ...]
    settings: TrainingSettings
    first: str

    def __post_init__(self) -> None:
        if not self.models or self.first not in ("equal", "random"):
            raise BadPayload(
                f"{len(self.models)} models came with first={self.first!r}", "use equal or random"
            )

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Mixed)
        if len(reply.models) != len(self.models) or not 0 <= reply.heaviest < len(self.models):
            raise BadPayload(
                f"{len(reply.models)} models came for {len(self.models)}, the heaviest being {reply.heaviest}"
            )


@dataclass(frozen=True, eq=False)
class Measure(Message):
    """Measure the device's mixture of `models` on a part of the data; a mixture by `weights` if it has
    none."""

    kind: ClassVar[str] = "fedem_measure"
    reply: ClassVar[type[Message]] = Evaluated
    models: tuple[Tensors, ...]
    weights: tuple[float, ...]
    part: str = "test"

    def __post_init__(self) -> None:
        sane = all(math.isfinite(weight) and weight >= 0.0 for weight in self.weights)
        if len(self.weights) != len(self.models) or not sane or not sum(self.weights) > 0.0:
            raise BadPayload(f"weights {self.weights} came for {len(self.models)} models")
