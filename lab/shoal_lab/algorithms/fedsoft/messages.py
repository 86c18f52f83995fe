"""FedSoft's messages."""

import math
from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Evaluated, Message, Trained, TrainingSettings
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False)
class SoftTrained(Trained):
    """The device's own model. shares: u_k, its importance for each center, above 0 and at most 1."""

    kind: ClassVar[str] = "fedsoft_trained"
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Train(Message):
    """Train the device's own model, which stays near the centers `models`. settings.proximal: lambda.

    count: count again which samples belong to which center; otherwise only if that was never done. smoothing:
    sigma.
    """

    kind: ClassVar[str] = "fedsoft_train"
    reply: ClassVar[type[Message]] = SoftTrained
    models: tuple[Tensors, ...]
    settings: TrainingSettings
    count: bool
    smoothing: float

    def __post_init__(self) -> None:
        if not self.models or not 0.0 < self.smoothing <= 1.0:
            raise BadPayload(f"{len(self.models)} centers came with a smallest share of {self.smoothing}")

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, SoftTrained)
        shares = reply.shares
        if len(shares) != len(self.models) or not all(math.isfinite(u) and 0.0 < u <= 1.0 for u in shares):
            raise BadPayload(
                f"shares {shares} came for {len(self.models)} models", "send one share for each, above 0 to 1"
            )


@dataclass(frozen=True, eq=False)
class Measure(Message):
    """Measure the device's own model on a part of the data; `model` if it has none."""

    kind: ClassVar[str] = "fedsoft_measure"
    reply: ClassVar[type[Message]] = Evaluated
    model: Tensors
    part: str = "test"
