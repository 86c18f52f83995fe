"""What APFL says beyond the standard messages."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Evaluated, Message, Trained, TrainingSettings
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False)
class Train(Message):
    """Train `model`, which the answer has, and your own beside it. alpha, adaptive: see the parameters."""

    kind: ClassVar[str] = "apfl_train"
    reply: ClassVar[type[Message]] = Trained
    model: Tensors
    settings: TrainingSettings
    alpha: float
    adaptive: bool

    def __post_init__(self) -> None:
        if not 0.0 <= self.alpha <= 1.0:
            raise BadPayload(f"alpha is {self.alpha}, where 0 to 1 is a share")


@dataclass(frozen=True, eq=False)
class Measure(Message):
    """Measure the mixture of `model` and your own on a part of the data; `model` where you have none."""

    kind: ClassVar[str] = "apfl_measure"
    reply: ClassVar[type[Message]] = Evaluated
    model: Tensors
    part: str = "test"
