"""APFL's messages."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Evaluated, Message, Trained, TrainingSettings
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False)
class Train(Message):
    """Train `model`, which the answer contains, and the device's own model. alpha, adaptive: see the
    parameters."""

    kind: ClassVar[str] = "apfl_train"
    reply: ClassVar[type[Message]] = Trained
    model: Tensors
    settings: TrainingSettings
    alpha: float
    adaptive: bool

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise BadPayload(f"alpha is {self.alpha}; expected 0 to 1")


@dataclass(frozen=True, eq=False)
class Measure(Message):
    """Measure the mixture of `model` and the device's own model on a part of the data; `model` if it has no
    own model."""

    kind: ClassVar[str] = "apfl_measure"
    reply: ClassVar[type[Message]] = Evaluated
    model: Tensors
    part: str = "test"
