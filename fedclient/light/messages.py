"""What a device asks of its own process that has no PyTorch, besides the questions of a server."""

from dataclasses import dataclass
from typing import ClassVar

from shoal.core.exchange.messages import Message
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False)
class Opened(Message):
    """The graph was checked. learner: its name, for people. latent: whether it can describe data."""

    kind: ClassVar[str] = "opened"
    learner: str
    latent: bool


@dataclass(frozen=True, eq=False)
class Open(Message):
    """Use this graph from now on. graph: its file, as the one tensor "graph" of bytes."""

    kind: ClassVar[str] = "open"
    reply: ClassVar[type[Message]] = Opened
    graph: Tensors


@dataclass(frozen=True, eq=False)
class Predicted(Message):
    """What a model says of the device's data. outputs: one tensor, "said", of probabilities (n, C) or values
    (n,).

    accuracy: None where there are no labels; of regression, the share of their variance that is explained.
    """

    kind: ClassVar[str] = "predicted"
    outputs: Tensors
    accuracy: float | None = None


@dataclass(frozen=True, eq=False)
class Predict(Message):
    """Use these models on all of the device's data, each with its share; the shares sum to 1. regression:
    whether they predict numbers."""

    kind: ClassVar[str] = "predict"
    reply: ClassVar[type[Message]] = Predicted
    models: tuple[Tensors, ...]
    shares: tuple[float, ...]
    regression: bool = False
