"""ATP's messages. Rates: one for each tensor of the model, in the model's order."""

import math
from dataclasses import dataclass
from typing import ClassVar

from shoal.core.data.scale import without_scale
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Evaluated, Message
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False)
class Learned(Message):
    """The rates after a pass over the data. loss: mean loss of the adapted models."""

    kind: ClassVar[str] = "atp_learned"
    rates: tuple[float, ...]
    examples: int
    loss: float


@dataclass(frozen=True, eq=False)
class Learn(Message):
    """Learn the rates at which `model` adapts, starting from `rates`. step, batch_size: see the parameters
    rate_step and rate_batch."""

    kind: ClassVar[str] = "atp_learn"
    reply: ClassVar[type[Message]] = Learned
    model: Tensors
    rates: tuple[float, ...]
    step: float
    batch_size: int

    def __post_init__(self) -> None:
        check(self.model, self.rates, self.batch_size)
        if not 0.0 < self.step < math.inf:
            raise BadPayload(f"rates cannot be learned with a step size of {self.step}")

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Learned)
        check(self.model, reply.rates, self.batch_size)


@dataclass(frozen=True, eq=False)
class Measure(Message):
    """Measure the model that `model` adapts to on a part of the data, `batch_size` samples at a time.

    online: adapt to the mean of all batches so far, instead of to each batch.
    """

    kind: ClassVar[str] = "atp_measure"
    reply: ClassVar[type[Message]] = Evaluated
    model: Tensors
    rates: tuple[float, ...]
    batch_size: int
    online: bool = False
    part: str = "test"

    def __post_init__(self) -> None:
        check(self.model, self.rates, self.batch_size)


def check(model: Tensors, rates: tuple[float, ...], batch_size: int) -> None:
    """Raise BadPayload for rates that do not fit the model, and for an illegal batch size."""
    if len(rates) != (own := len(without_scale(model))):
        raise BadPayload(f"{len(rates)} rates came for a model of {own} tensors")
    if not all(map(math.isfinite, rates)):
        raise BadPayload("a rate is NaN or infinite", "lower rate_step")
    if batch_size < 1:
        raise BadPayload(f"a model cannot be adapted to {batch_size} samples")
