"""pFedMe's messages."""

import math
from dataclasses import dataclass
from typing import ClassVar

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Evaluated, Message, Trained
from shoal.core.types import Tensors


@dataclass(frozen=True)
class Settings:
    """How a device trains; see the parameters of the same names."""

    epochs: int
    local_rounds: int
    batch_size: int
    learning_rate: float
    personal_rate: float
    personal_steps: int
    attraction: float

    def __post_init__(self) -> None:
        sane = {
            "epochs": self.epochs >= 0,
            "local_rounds": self.local_rounds >= 0,
            "batch_size": self.batch_size >= 0,
            "learning_rate": 0.0 < self.learning_rate < math.inf,
            "personal_rate": 0.0 < self.personal_rate < math.inf,
            "personal_steps": self.personal_steps >= 1,
            "attraction": 0.0 < self.attraction < math.inf,
        }
        for name, holds in sane.items():
            if not holds:
                raise BadPayload(f"{name} is {getattr(self, name)}, which cannot be used for training")


@dataclass(frozen=True, eq=False)
class Train(Message):
    """Train a w that starts from `model`, and the personal model with it; the answer contains w."""

    kind: ClassVar[str] = "pfedme_train"
    reply: ClassVar[type[Message]] = Trained
    model: Tensors
    settings: Settings


@dataclass(frozen=True, eq=False)
class Measure(Message):
    """Measure the device's personal model on a part of the data; `model` if it has none."""

    kind: ClassVar[str] = "pfedme_measure"
    reply: ClassVar[type[Message]] = Evaluated
    model: Tensors
    part: str = "test"
