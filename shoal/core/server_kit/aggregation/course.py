"""How the training of a model goes, seen in the losses that its devices report, and what to do when it fails.

Each device reports its mean loss over the last epoch of its training. The median of a round says whether the
model still learns, and no single device of three or more can move it out of the range of the others. With
DP-SGD no loss is released, so nothing is watched there.

A *fall* is a round in which more than half of what had been learned is gone: training has diverged, or the
model was poisoned in the round before. Then the updates of the round do not count, and the devices go on
with half the learning rate, from the model that they had. If the next round falls too, that model was at
fault, and they go back to the last one from which training went well. That happens at most `FALLS` times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from statistics import median_low

from shoal.core.types import Tensors

LEARNED = 0.1
"""What has been learned counts once it is this share of the first loss."""
KEPT = 0.5
"""A round falls if less than this share of what had been learned is left."""
FALLS = 3
"""How often a model goes back in a run."""
PATIENCE = 5
"""Rounds after which a model whose loss is still the first one is said not to learn."""


@dataclass(frozen=True)
class Course:
    """first, best, last: the median loss of the first, the best and the last round. rounds: how many reported
    a loss. falls: how many of them fell. fell: whether the last one did. good: the model that the last round
    which did not fall began with.
    """

    first: float = math.nan
    best: float = math.inf
    last: float = math.nan
    rounds: int = 0
    falls: int = 0
    fell: bool = False
    good: Tensors | None = field(default=None, compare=False)

    @property
    def rate(self) -> float:
        """What is left of the learning rate."""
        return float(0.5**self.falls)

    def after(self, losses: Sequence[float], base: Tensors) -> "Course":
        """The course after a round that began with the model `base`. losses: of its devices, maybe none."""
        if not losses:
            return self
        loss = median_low(losses)
        first = loss if not self.rounds else self.first
        learned = first - self.best
        gone = loss > first - KEPT * learned
        now = replace(self, first=first, last=loss, rounds=self.rounds + 1)
        if self.rounds and learned > LEARNED * abs(first) and gone and self.falls < FALLS:
            return replace(now, falls=self.falls + 1, fell=True)
        return replace(now, best=min(loss, self.best), fell=False, good=base)

    def model(self, before: "Course", base: Tensors) -> Tensors | None:
        """The model to go on with if the last round fell, else None. before: the course before that round."""
        if not self.fell or self.falls == before.falls:
            return None
        return self.good if before.fell and self.good is not None else base

    def remarks(self, key: str) -> tuple[str, ...]:
        """What an operator should know of this model."""
        if self.fell:
            return (
                f"model {key}: most of what it had learned is gone (loss {self.last:.3g}, at best "
                f"{self.best:.3g}): this round does not count, and its devices continue with "
                f"{100 * self.rate:g} % of the learning rate",
            )
        if self.rounds >= PATIENCE and self.last > self.first - LEARNED * abs(self.first):
            return (
                f"model {key} is not learning: after {self.rounds} rounds its loss is still what it was in "
                f"the first ({self.first:.3g}); lower the learning rate, or look at the data of its devices",
            )
        return ()
