"""What FedRC says: models and the table of classes go down, trained models and class counts come up.

Models have names, since the server may take some away: `keys` has those of `models`, with spaces between.
What each sample belongs to never leaves the device.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import LATER, Evaluated, Message, Scored, TrainingSettings
from shoal.core.exchange.parts import MixtureCounts, Scores
from shoal.core.types import Tensors

TAIL = 20.0
"""Standard deviations that no noise is away from what it hides."""


@dataclass(frozen=True)
class Mixing:
    """How a device weighs models; see `shoal.core.algorithms.fedrc.Parameters`.

    as_one: all samples alike, in this round. scored: tell how well each model explains the data.
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
    as_one: bool = field(default=False, metadata={LATER: True})
    scored: bool = field(default=False, metadata={LATER: True})


@dataclass(frozen=True, eq=False)
class Mixed(Message):
    """After a round. models: those that the device trained, `keys` their names.

    counts: (K, C), for each model of the task and each class how many samples it explains, with noise where
    that was asked for. loss: mean over the training part under the mixture, before training. scores: of each
    model of the task, the mean of -log of what eq. 3 weighs by, P(y | x) / P(y), where they were asked for.
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
    """Weigh `models` by the training part, and train each on what it explains (Algorithm 1, lines 6 to 9).

    table: (K, C), how usual each class is with each model, rows that sum to 1; None in the first round, and
    where it is not to be looked at.
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
        known, named = self.keys.split(), reply.keys.split()
        if named != [key for key in known if key in named] or len(named) != len(reply.models):
            raise BadPayload(f"{len(reply.models)} models came under the names {reply.keys!r}, of {known}")
        due = (len(known), self.mixing.classes)
        if reply.counts.counts.shape != due:
            raise BadPayload(f"class counts of shape {reply.counts.counts.shape}, {due} are due")
        if reply.scores is not None and len(reply.scores.losses) != len(known):
            raise BadPayload(f"scores of {len(reply.scores.losses)} models, {len(known)} are due")
        check_counts(reply, self.mixing.noise)


def check_counts(reply: Mixed, noise: float) -> None:
    """They are shares of each sample that add up to it, but for noise. Raises BadPayload."""
    counts, examples = reply.counts.counts, reply.examples
    if (np.abs(counts) > examples + TAIL * noise).any():
        raise BadPayload(f"class counts of up to {np.abs(counts).max():g} of {examples} samples")
    if noise == 0.0 and ((counts < 0.0).any() or not np.isclose(counts.sum(), examples, rtol=1e-6)):
        raise BadPayload(f"class counts of {counts.sum():g} samples, {examples} are told")


@dataclass(frozen=True, eq=False)
class Measured(Evaluated):
    """By the way of predicting that was asked for, and the accuracy of each.

    ensemble: of all models by their weights (H.2). hard: of the heaviest alone. tuned: of the ensemble after
    one more training on the device, with nobody else (FedRC-FT).
    """

    kind: ClassVar[str] = "fedrc_measured"
    ensemble: float = 0.0
    hard: float = 0.0
    tuned: float = 0.0


@dataclass(frozen=True, eq=False)
class Measure(Message):
    """Predict the `part` by the mixture that the training part comes to, from what the device remembers.

    predict: "ensemble", "hard" or "tuned". settings: of the training that tunes.
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
                raise BadPayload(f"{reply.kind}.{name} is {getattr(reply, name)}, not between 0 and 1")


@dataclass(frozen=True, eq=False)
class Weigh(Message):
    """Asked of a newcomer with labels: the weights of `models` in its mixture, each as -log of it."""

    kind: ClassVar[str] = "fedrc_weigh"
    reply: ClassVar[type[Message]] = Scored
    models: tuple[Tensors, ...]
    keys: str
    mixing: Mixing
    table: MixtureCounts | None = None

    def admit(self, reply: Message) -> None:
        assert isinstance(reply, Scored)
        if len(reply.scores.losses) != len(self.models) or (reply.scores.losses < 0.0).any():
            raise BadPayload(f"weights of {len(reply.scores.losses)} models, {len(self.models)} are due")
