"""What the two halves of an algorithm say to each other: frozen dataclasses, no configuration dictionaries.

A field is a plain number or text, a `Tensors`, a part of `fedcore.parts`, a flat dataclass of settings,
or a tuple of tensors or of numbers. `reply` names the answer. These cover most algorithms; one that needs
more brings its own in its folder.
"""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from fedcore.errors import BadPayload
from fedcore.parts import Descriptor, LatentBounds, PrivacySettings, Scores
from fedcore.types import Tensors

WIDTH = "width"
"""In the place of bounds: how many latents there are, and nothing of their values."""


class Message:
    """Base of all messages. `kind` is its name on the wire, `reply` the class of the answer."""

    kind: ClassVar[str]
    reply: ClassVar["type[Message]"]


@dataclass(frozen=True)
class TrainingSettings:
    """How a device trains. learning_rate per step; batch_size in samples; epochs over its training part.

    restart_momentum: forget the optimiser's momentum at each epoch, not only at each round.
    """

    epochs: int = 2
    batch_size: int = 64
    learning_rate: float = 0.005
    momentum: float = 0.9
    weight_decay: float = 0.0
    restart_momentum: bool = False

    def __post_init__(self) -> None:
        sane = {
            "epochs": self.epochs >= 1,
            "batch_size": self.batch_size >= 1,
            "learning_rate": 0.0 < self.learning_rate < math.inf,
            "momentum": 0.0 <= self.momentum < 1.0,
            "weight_decay": 0.0 <= self.weight_decay < math.inf,
        }
        for name, holds in sane.items():
            if not holds:
                raise BadPayload(f"{name} is {getattr(self, name)}: nothing can be trained with that")


@dataclass(frozen=True, eq=False)
class Built(Message):
    """Initial weights."""

    kind: ClassVar[str] = "built"
    model: Tensors


@dataclass(frozen=True, eq=False)
class Build(Message):
    """Make the learner's initial weights: asked of one device where the server has none."""

    kind: ClassVar[str] = "build"
    reply: ClassVar[type[Message]] = Built


@dataclass(frozen=True, eq=False)
class Trained(Message):
    """The model after local training. examples: size of the training part. loss: mean over the last epoch."""

    kind: ClassVar[str] = "trained"
    model: Tensors
    examples: int
    loss: float
    descriptor: Descriptor | None = None


@dataclass(frozen=True, eq=False)
class Train(Message):
    """Train `model` on the device's training part.

    With a `projector` the device also describes its training part, or in a calibrated privacy mode all of its
    data but a test part, by `model` as received and before it trains: a tensor set of "mean" (v,) and
    "components" (l, v), float64; classes: U, rows to fill.
    cluster: the name of the cluster that `model` belongs to, for people.
    """

    kind: ClassVar[str] = "train"
    reply: ClassVar[type[Message]] = Trained
    model: Tensors
    settings: TrainingSettings
    cluster: str = ""
    projector: Tensors | None = None
    classes: int = 0
    privacy: PrivacySettings = field(default_factory=PrivacySettings)


@dataclass(frozen=True, eq=False)
class Evaluated(Message):
    """How good the model is there. accuracy: 0 to 1; examples: size of the part it was measured on.

    bounds, latents: of the model's latent values and their number of coordinates, where asked for.
    """

    kind: ClassVar[str] = "evaluated"
    accuracy: float
    loss: float
    examples: int
    bounds: LatentBounds | None = None
    latents: int = 0


@dataclass(frozen=True, eq=False)
class Evaluate(Message):
    """Measure `model` on the device's held-out part ("held_out"), or on its test part ("test").

    bounds: "" for none, "scalar" for one lowest and highest latent value over all coordinates of the
    held-out part, "coordinate" for one pair each, WIDTH for their number alone. A device without a test part
    uses the held-out one.
    """

    kind: ClassVar[str] = "evaluate"
    reply: ClassVar[type[Message]] = Evaluated
    model: Tensors
    part: str = "held_out"
    cluster: str = ""
    bounds: str = ""


@dataclass(frozen=True, eq=False)
class Described(Message):
    """The descriptor. examples: samples behind it."""

    kind: ClassVar[str] = "described"
    descriptor: Descriptor
    examples: int


@dataclass(frozen=True, eq=False)
class Describe(Message):
    """Describe your data by the frozen `encoder`.

    classes: U, of the training part; 0 asks for the label-free descriptor, of all data but a test part. In a
    calibrated privacy mode both are of all data but a test part.
    """

    kind: ClassVar[str] = "describe"
    reply: ClassVar[type[Message]] = Described
    encoder: Tensors
    projector: Tensors
    classes: int = 0
    privacy: PrivacySettings = field(default_factory=PrivacySettings)


@dataclass(frozen=True, eq=False)
class Scored(Message):
    """The loss of each model asked about."""

    kind: ClassVar[str] = "scored"
    scores: Scores


@dataclass(frozen=True, eq=False)
class Score(Message):
    """Mean loss of each of `models` on the training part."""

    kind: ClassVar[str] = "score"
    reply: ClassVar[type[Message]] = Scored
    models: tuple[Tensors, ...]


STANDARD: tuple[type[Message], ...] = (
    Build,
    Built,
    Train,
    Trained,
    Evaluate,
    Evaluated,
    Describe,
    Described,
    Score,
    Scored,
)
