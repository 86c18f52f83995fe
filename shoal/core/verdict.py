"""Whether a run has learned anything, said before any figure.

An accuracy says little by itself: 70 % is poor where 70 % of the samples are of one class. A model has
learned if it is right more often than an answer that ignores the sample: for each cluster, the class that is
commonest on its devices. The gain over that is held against its standard error, since a few test samples show
little. Where labels are numbers, accuracy is the share of their variance that the model explains, and the
mean of the targets explains nothing.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SURE = 3.0
"""How many standard errors a gain must have, so that it is not chance; among 1,000 runs that learned nothing,
one reaches it."""
LITTLE = 0.02
"""A gain that is surely below this is none."""
FEW = 0.05
"""With a larger error, even a loss that stays proves nothing."""
MOVED = 0.1
"""The loss hardly moved if it never lost this share of the first one."""
FELL = 0.03
"""The loss still falls if it loses this share of the first one in the last rounds."""


@dataclass(frozen=True)
class Measured:
    """A device's final figures. accuracy: 0 to 1, on `samples` test samples. cluster: whose model it uses.
    tested, trained: (C,) samples of each class in its test and training parts; None where labels are
    numbers."""

    accuracy: float
    cluster: str
    samples: int
    tested: npt.NDArray[np.int64] | None = None
    trained: npt.NDArray[np.int64] | None = None


@dataclass(frozen=True)
class Verdict:
    """learned: True, False, or None where there are too few test samples, or one class only, to tell.
    accuracy: the mean over devices. baseline: of answers that ignore the sample; 0 for numbers. gain: the
    difference. error: its standard error. numbers: whether labels are numbers. falling: whether the loss
    still fell at the end. diverged: whether it rose. advice: what to do next; "" for nothing.
    """

    learned: bool | None
    accuracy: float
    baseline: float
    gain: float
    error: float
    numbers: bool = False
    falling: bool = False
    diverged: bool = False
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.sentence}; {self.advice}" if self.advice else self.sentence

    @property
    def sentence(self) -> str:
        """What was learned, with the figures that it is judged by."""
        reached = f"{100.0 * self.accuracy:.1f} %"
        if self.numbers:
            beside = "of the variance is explained"
            words = {True: "Learned", False: "NOTHING WAS LEARNED", None: "Too few test samples to tell"}
            return f"{words[self.learned]}: {reached} {beside}"
        points = f"{abs(100.0 * self.gain):.1f} points"
        beside = "always answering the commonest class"
        if self.learned:
            return f"Learned: {reached}, {points} above {beside}"
        if self.learned is False:
            return f"NOTHING WAS LEARNED: {reached}, where {beside} gives {100.0 * self.baseline:.1f} %"
        if self.baseline >= 1.0:
            return f"Nothing to tell apart: each cluster's test samples are of one class ({reached})"
        more = "above" if self.gain >= 0 else "below"
        return f"Too few test samples to tell: {reached}, {points} {more} {beside}"


def verdict(devices: Sequence[Measured], losses: Sequence[float], given: bool = False) -> Verdict | None:
    """The verdict on a run; None if no device has measured anything.

    losses: the mean loss in training, round by round. given: whether the training settings were given by
    hand, and not left to `auto`, for the advice.

    Example:
        >>> counts = np.array([50, 50])
        >>> found = verdict([Measured(0.9, "c0", 100, counts, counts)], [0.7, 0.3, 0.29])
        >>> found.learned, round(found.gain, 2)
        (True, 0.4)
    """
    if not devices:
        return None
    numbers = devices[0].tested is None
    accuracy = float(np.mean([each.accuracy for each in devices]))
    bases = [0.0] * len(devices) if numbers else _bases(devices)
    gains = [each.accuracy - base for each, base in zip(devices, bases, strict=True)]
    gain, error = float(np.mean(gains)), _error(devices, bases, gains, numbers)
    baseline = accuracy - gain
    learned: bool | None = None
    stays = _stays(losses)
    if baseline < 1.0:
        if gain > SURE * error:
            learned = True
        elif gain + SURE * error < LITTLE or (gain <= 0.0 and (numbers or (stays and error < FEW))):
            learned = False
    falling, diverged = trend(losses)
    advice = _advice(learned, falling, diverged, given)
    return Verdict(learned, accuracy, baseline, gain, error, numbers, falling, diverged, advice)


def trend(losses: Sequence[float]) -> tuple[bool, bool]:
    """Whether the loss still fell at the end, and whether it rose over the whole run."""
    known = [loss for loss in losses if math.isfinite(loss)]
    if len(known) < 3:
        return False, len(known) < len(losses)
    part = max(2, len(known) // 4)
    before, last = float(np.mean(known[-2 * part : -part] or known[:1])), float(np.mean(known[-part:]))
    share = FELL * abs(known[0])
    return before - last > share, last > known[0] + share


def _stays(losses: Sequence[float]) -> bool:
    """Whether the loss hardly moved, or rose."""
    known = [loss for loss in losses if math.isfinite(loss)]
    return bool(known) and known[0] - min(known) < MOVED * abs(known[0])


def _bases(devices: Sequence[Measured]) -> list[float]:
    """For each device, how often its cluster's commonest class is right on its test part."""
    commonest: dict[str, int] = {}
    for key in dict.fromkeys(each.cluster for each in devices):
        shares = [_share(each.trained) for each in devices if each.cluster == key]
        commonest[key] = int(np.sum(shares, axis=0).argmax())
    return [float(_share(each.tested)[commonest[each.cluster]]) for each in devices]


def _share(counts: npt.NDArray[np.int64] | None) -> npt.NDArray[np.float64]:
    """(C,) of all samples."""
    assert counts is not None
    found: npt.NDArray[np.float64] = counts / max(int(counts.sum()), 1)
    return found


def _error(
    devices: Sequence[Measured], bases: Sequence[float], gains: Sequence[float], numbers: bool
) -> float:
    """The standard error of the mean gain, by how few the test samples are.

    A sample counts 1, 0 or -1 for the model against the answer that ignores it. It cannot count unless one of
    the two is right, and the other is not, which bounds the variance. For numbers, the variance of R^2 of a
    model that explains a share r of n targets is about 4 r (1 - r)^2 / n, and 2 / n^2 for one that explains
    nothing.
    """
    total = 0.0
    for each, base, gain in zip(devices, bases, gains, strict=True):
        n = max(each.samples, 1)
        if numbers:
            total += 4.0 * each.accuracy * (1.0 - each.accuracy) ** 2 / n + 2.0 / n**2
        else:
            differ = min(each.accuracy + base, 2.0 - each.accuracy - base)
            total += max(differ - gain * gain, 1.0 / n) / n
    return math.sqrt(total) / len(devices)


def _advice(learned: bool | None, falling: bool, diverged: bool, given: bool) -> str:
    if learned is False and diverged:
        return "the loss rose: leave learning_rate out, or lower it"
    if learned is False and given:
        return "leave learning_rate, batch_size and epochs out, or give more rounds"
    if learned is False:
        return "give more rounds, or look at the labels and at the scale of the data"
    return "the loss was still falling, so more rounds would help" if falling else ""


def counted(labels: npt.NDArray[np.integer], classes: int) -> npt.NDArray[np.int64]:
    """(C,) samples of each class."""
    found: npt.NDArray[np.int64] = np.bincount(labels, minlength=classes).astype(np.int64)
    return found
