"""How the training of a model goes, seen in the losses that its devices report, and what to do when it fails.

Each device reports its mean loss over the last epoch of its training. The median of a round says whether the
model still learns, and no single device of three or more can move it out of the range of the others. With
DP-SGD no loss is released, so nothing is watched there.

A *fall* is a round in which more than half of what had been learned is gone: training has diverged, or the
model was poisoned in the round before. Then the updates of the round do not count, and the devices go on
with half the learning rate, from the model that they had. If the next round falls too, that model was at
fault, and they go back to the last one from which training went well. That happens at most `FALLS` times.

A model may also never begin to learn: if the learning rate is far too high, the first steps leave a network
that gives the same answer for all samples, and lower rates do not bring it back. If the loss was above that
of the first round for `PATIENCE` - 1 rounds in a row, and never clearly below it, the devices begin again
from the first model, with half the learning rate. Where the rate is too low, losses hardly change, but fall;
and where data drift, something had been learned before the losses rose. A loss that stays about the first one
says less: but where another model of the same run learns, and has a lower loss, one that has learned nothing
begins again, too, after `PATIENCE` rounds without a loss below all before. (A slow model still gets better.)
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
SURE = 0.5
"""A model that has learned this share of the first loss shows that the run's settings let models learn."""
ROSE, FELL = 0.01, 0.02
"""By these shares of the first loss, a loss is above it, and clearly below it."""


@dataclass(frozen=True)
class LossHistory:
    """first, best, last: the median loss of the first, the best and the last round. rounds: how many reported
    a loss. falls: how many of them fell. fell: whether the last one did. good: the model that the last round
    which did not fall began with; the very first one, as long as nothing was learned that counts. worse:
    how many rounds in a row had a loss above the first one. restarted: whether the last round led back to the
    start. knows: whether a loss was ever clearly below the first. idle: for how many rounds in a row no loss
    was the lowest so far, while nothing was learned that counts.
    """

    first: float = math.nan
    best: float = math.inf
    last: float = math.nan
    rounds: int = 0
    falls: int = 0
    fell: bool = False
    good: Tensors | None = field(default=None, compare=False)
    worse: int = 0
    restarted: bool = False
    knows: bool = False
    idle: int = 0

    @property
    def learns(self) -> bool:
        """Whether the model has learned so much that others of its run should have learned something."""
        return self.rounds > 0 and self.first - self.best > SURE * abs(self.first)

    @property
    def lost(self) -> bool:
        """Whether the model is worse than at first, or has just gone back to that."""
        return self.worse > 0 or self.restarted

    @property
    def rate(self) -> float:
        """What is left of the learning rate."""
        return float(0.5**self.falls)

    def among_others(self) -> "LossHistory":
        """The history of a model that goes on with other devices.

        Their losses cannot be compared with the best one so far: in a cluster of devices with few samples
        losses are higher, and that is no fall. A model that has learned nothing yet keeps its history.
        """
        return replace(self, best=math.inf, rounds=0, fell=False, idle=0) if self.knows else self

    def after(self, losses: Sequence[float], base: Tensors, elsewhere: float = math.inf) -> "LossHistory":
        """The history after a round that began with the model `base`. losses: of its devices, maybe none.

        elsewhere: the lowest loss of the run's other models that learn, if there are any.
        """
        if not losses:
            return self
        loss = median_low(losses)
        first = self.first if self.rounds else max(loss, self.first) if self.knows else loss
        learned = first - self.best
        gone = loss > first - KEPT * learned
        worse = self.worse + 1 if loss > first + ROSE * abs(first) else 0
        now = replace(self, first=first, last=loss, rounds=self.rounds + 1, worse=worse, restarted=False)
        if self.rounds and learned > LEARNED * abs(first) and gone and self.falls < FALLS:
            return replace(now, falls=self.falls + 1, fell=True)
        best = min(loss, self.best)
        knows = self.knows or first - best > FELL * abs(first)
        counts = first - best > LEARNED * abs(first)
        idle = 0 if counts or loss < self.best else self.idle + 1
        failed = (not knows and worse >= PATIENCE - 1) or (idle >= PATIENCE and best > elsewhere)
        if failed and self.falls < FALLS:
            return replace(now, falls=self.falls + 1, fell=False, worse=0, restarted=True, idle=0)
        good = base if counts or self.good is None else self.good
        return replace(now, best=best, fell=False, knows=knows, good=good, idle=idle)

    def model(self, before: "LossHistory", base: Tensors) -> Tensors | None:
        """The model to go on with if the last round fell, or led back to the start; else None.

        before: the history before that round.
        """
        if self.falls == before.falls:
            return None
        return self.good if (before.fell or self.restarted) and self.good is not None else base

    def remarks(self, key: str) -> tuple[str, ...]:
        """What an operator should know of this model."""
        if self.fell:
            return (
                f"model {key}: most of what it had learned is gone (loss {self.last:.3g}, at best "
                f"{self.best:.3g}): this round does not count, and its devices continue with "
                f"{100 * self.rate:g} % of the learning rate",
            )
        if self.restarted:
            return (
                f"model {key} did not learn: its losses stayed near the first one ({self.first:.3g}). Its "
                f"devices begin again from an earlier model, with {100 * self.rate:g} % of the learning rate",
            )
        if self.rounds >= PATIENCE and self.last > self.first - LEARNED * abs(self.first):
            return (
                f"model {key} is not learning: after {self.rounds} rounds its loss is still what it was in "
                f"the first ({self.first:.3g}); leave learning_rate, batch_size and epochs to auto, or look "
                "at the data of its devices",
            )
        return ()
