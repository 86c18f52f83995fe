"""What FedSoft says beyond the standard messages."""

import math
from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Evaluated, Message, Trained, TrainingSettings
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False)
class SoftTrained(Trained):
    """The device's own model. shares: u_k, its importance for each centre, above 0 to 1."""

    kind: ClassVar[str] = "fedsoft_trained"
    shares: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class Train(Message):
    """Train your own model, held near the centres `models`. settings.proximal: lambda.

    count: tell anew which samples are whose; else only where that was not done yet. smoothing: sigma.
    """

    kind: ClassVar[str] = "fedsoft_train"
    reply: ClassVar[type[Message]] = SoftTrained
    models: tuple[Tensors, ...]
    settings: TrainingSettings
    count: bool
    smoothing: float

    def __post_init__(self) -> None:
        if not self.models or not 0.0 < self.smoothing <= 1.0:
            raise BadPayload(f"{len(self.models)} centres, and a smallest share of {self.smoothing}")

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, SoftTrained)
        shares = reply.shares
        if len(shares) != len(self.models) or not all(math.isfinite(u) and 0.0 < u <= 1.0 for u in shares):
            raise BadPayload(f"shares {shares} in {len(self.models)} models", "one above 0 to 1 for each")


@dataclass(frozen=True, eq=False)
class Measure(Message):
    """Measure your own model on a part of the data; `model` where you have none."""

    kind: ClassVar[str] = "fedsoft_measure"
    reply: ClassVar[type[Message]] = Evaluated
    model: Tensors
    part: str = "test"
