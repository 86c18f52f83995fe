"""FedRC's messages: models and the table of classes go to the devices, trained models and class counts come
back.

Models have names, because the server may remove some: `keys` lists those of `models`, separated by spaces.
The weights of each sample never leave the device.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Evaluated, Message, Scored, TrainingSettings
from shoal.core.exchange.parts import MixtureCounts, Scores
from shoal.core.types import Tensors

TAIL = 20.0
"""Noise is never more than this many standard deviations away from the value that it hides."""


@dataclass(frozen=True)
class Mixing:
    """How a device weighs models; see `shoal.core.algorithms.fedrc.Parameters`.

    beta1, beta2: of Adam, as in H.3. as_one: weigh all samples alike in this round. scored: report how well
    each model explains the data. newcomers_by_class: a device that has no memory of the run, such as a
    newcomer, uses the table of classes.
    """

    classes: int
    first: str = "random"
    floor: float = 0.05
    skip: float = 0.01
    weighting: str = "mass"
    adam: bool = False
    beta1: float = 0.9
    beta2: float = 0.99
    noise: float = 0.0
    as_one: bool = False
    scored: bool = False
    newcomers_by_class: bool = True


@dataclass(frozen=True, eq=False)
class Mixed(Message):
    """The result of a round on a device. models: those that the device trained; keys: their names.

    counts: (K, C), how many samples of each class each model of the task explains, with noise if the task
    asked for it. loss: mean over the training part under the mixture, before training. scores: for each model
    of the task, the mean of -log of the ratio in eq. 3, P(y | x) / P(y), if the task asked for it.
    """

    kind: ClassVar[str] = "fedrc_mixed"
    models: tuple[Tensors, ...]
    keys: str
    counts: MixtureCounts
    examples: int
    loss: float
    scores: Scores | None = None


@dataclass(frozen=True, eq=False)
class Mix(Message):
    """Weigh `models` by the training part, and train each of them on what it explains (Algorithm 1, lines 6
    to 9).

    table: (K, C), how common each class is with each model, rows that sum to 1; None in the first round, and
    if the run does not use it.
    """

    kind: ClassVar[str] = "fedrc_mix"
    reply: ClassVar[type[Message]] = Mixed
    models: tuple[Tensors, ...]
    keys: str
    mixing: Mixing
    settings: TrainingSettings
    table: MixtureCounts | None = None

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Mixed)
        known, given = self.keys.split(), reply.keys.split()
        if given != [key for key in known if key in given] or len(given) != len(reply.models):
            raise BadPayload(f"{len(reply.models)} models came under the names {reply.keys!r}, of {known}")
        expected = (len(known), self.mixing.classes)
        if reply.counts.counts.shape != expected:
            raise BadPayload(f"expected class counts of shape {expected}, got {reply.counts.counts.shape}")
        if reply.scores is not None and len(reply.scores.losses) != len(known):
            raise BadPayload(f"expected the scores of {len(known)} models, got {len(reply.scores.losses)}")
        check_counts(reply, self.mixing.noise)


def check_counts(reply: Mixed, noise: float) -> None:
    """Check that the counts are shares of samples that sum to their number, up to noise. Raises
    BadPayload."""
    counts, examples = reply.counts.counts, reply.examples
    if (np.abs(counts) > examples + TAIL * noise).any():
        raise BadPayload(f"a class count is {np.abs(counts).max():g}, but there are {examples} samples")
    if noise == 0.0 and ((counts < 0.0).any() or not np.isclose(counts.sum(), examples, rtol=1e-6)):
        raise BadPayload(f"the class counts sum to {counts.sum():g}, but there are {examples} samples")


@dataclass(frozen=True, eq=False)
class Measured(Evaluated):
    """The accuracy and loss of the requested prediction, and the accuracy of each kind of prediction.

    ensemble: all models by their weights (H.2). hard: only the heaviest model. tuned: the ensemble after one
    more training on the device, without other devices (FedRC-FT).
    """

    kind: ClassVar[str] = "fedrc_measured"
    ensemble: float = 0.0
    hard: float = 0.0
    tuned: float = 0.0


@dataclass(frozen=True, eq=False)
class Measure(Message):
    """Predict the `part` by the mixture that the training part converges to, starting from what the device
    remembers.

    predict: "ensemble", "hard" or "tuned". settings: of the training for "tuned".
    """

    kind: ClassVar[str] = "fedrc_measure"
    reply: ClassVar[type[Message]] = Measured
    models: tuple[Tensors, ...]
    keys: str
    mixing: Mixing
    settings: TrainingSettings = field(default_factory=TrainingSettings)
    table: MixtureCounts | None = None
    predict: str = "ensemble"
    part: str = "test"

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Measured)
        for name in ("ensemble", "hard", "tuned"):
            if not 0.0 <= getattr(reply, name) <= 1.0:
                raise BadPayload(f"{reply.kind}.{name} is {getattr(reply, name)}; expected 0 to 1")


@dataclass(frozen=True, eq=False)
class Weigh(Message):
    """A question to a newcomer with labels: the weights of `models` in its mixture, each as its -log."""

    kind: ClassVar[str] = "fedrc_weigh"
    reply: ClassVar[type[Message]] = Scored
    models: tuple[Tensors, ...]
    keys: str
    mixing: Mixing
    table: MixtureCounts | None = None

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Scored)
        if (reply.scores.losses < 0.0).any():
            raise BadPayload("the weights of models are reported as -log, which is never below 0")
        if len(reply.scores.losses) != len(self.models):
            raise BadPayload(
                f"expected the weights of {len(self.models)} models, got {len(reply.scores.losses)}"
            )
