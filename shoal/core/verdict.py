"""Whether a run has learned anything, said before any figure.

An accuracy says little by itself: 70 % is poor where 70 % of the samples are of one class. A model has
learned if it is right more often than an answer that ignores the sample: for each cluster, the class that is
commonest on its devices. The gain over that is held against its standard error, since a few test samples show
little. Where labels are numbers, accuracy is the share of their variance that the model explains, and the
mean of the targets explains nothing.

A server does not see labels, so `judged` goes by what devices report, and says only what follows from it.
What beats each device's own commonest class beats any one answer of its cluster. What is no better than a
guess among all classes is no better than the commonest of them, either, as no cluster's commonest class is
rarer than that. Between the two, only the shares of the classes can tell, where devices have released them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import median_low
from typing import Any

import numpy as np
import numpy.typing as npt

SURE = 3.0
"""How many standard errors a gain must have, so that it is not chance; among 1,000 runs that learned nothing,
one reaches it."""
LITTLE = 0.02
"""A gain that is surely below this is none."""
MAX_ERROR = 0.05
"""With a larger error, even a loss that stays proves nothing."""
MIN_TESTED = 30
"""Fewer test samples than these, of all devices together, prove nothing: errors are taken as normal."""
MOVED = 0.1
"""The loss hardly moved if it never lost this share of the first one."""
MEMORIZED = 0.1
"""A model is so much better on its training samples that more samples would help."""
MAX_TIMES = 20
"""More times as many samples than these are not worth a number."""
MORE_SAMPLES = "the models have memorized their training samples: more samples would help, not more rounds"
NOTHING_COMMON = "the models have memorized their training samples: give more samples, or look at the labels"
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
class Reported:
    """A device's final figures, as a server knows them. accuracy: 0 to 1, on `samples` samples. baseline: the
    share of the commonest class among these; None where the device does not say. classes: how many the
    network tells apart; 0 where labels are numbers. shares: (C,) of the classes among its other samples, as
    it has released them, or None. doubt: the standard error of each share.
    """

    accuracy: float
    cluster: str
    samples: int
    baseline: float | None = None
    classes: int = 0
    shares: npt.NDArray[np.float64] | None = None
    doubt: float = 0.0


UNKNOWN = "It is not known whether anything was learned"
CLUSTER, DEVICE, GUESS = "the commonest class", "each device's commonest class", "a guess"
"""The answers that ignore the sample, beside which a model is held."""


@dataclass(frozen=True)
class Verdict:
    """learned: True, False, or None where what is known does not tell. accuracy: the mean over devices.
    baseline: of answers that ignore the sample; 0 for numbers; None where it is unknown. gain: the
    difference, 0 where it is unknown. error: its standard error. numbers: whether labels are numbers.
    falling: whether the loss still fell at the end. diverged: whether it rose. advice: what to do next; ""
    for nothing. beside: which answers those are, such as CLUSTER. groups: what separates the clusters; ""
    where there are none, or where devices have released nothing that tells.
    """

    learned: bool | None
    accuracy: float
    baseline: float | None
    gain: float
    error: float
    numbers: bool = False
    falling: bool = False
    diverged: bool = False
    advice: str = ""
    beside: str = CLUSTER
    groups: str = ""

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.sentence, self.advice, self.groups)))

    def facts(self) -> dict[str, Any]:
        """For programs. text: for people."""
        return asdict(self) | {"text": str(self)}

    @property
    def sentence(self) -> str:
        """What was learned, with the figures that it is judged by, and how sure the gain is."""
        reached, sure = f"{100.0 * self.accuracy:.1f} %", f"± {100.0 * SURE * self.error:.1f}"
        if self.baseline is None:
            return f"{UNKNOWN}: {reached}, and devices do not say how common their commonest class is"
        if self.numbers:
            words = {True: "Learned", False: "NOTHING WAS LEARNED", None: "Too few test samples to tell"}
            return f"{words[self.learned]}: {reached} ({sure}) of the variance is explained"
        given = f"{100.0 * self.baseline:.1f} %"
        beside = "guessing" if self.beside == GUESS else f"always answering {self.beside}"
        points = f"{100.0 * abs(self.gain):.1f} ({sure}) points {'above' if self.gain >= 0 else 'below'}"
        if self.learned:
            return f"Learned: {reached}, {points} {beside}"
        if self.learned is False:
            return f"NOTHING WAS LEARNED: {reached}, where {beside} gives {given}"
        if self.beside == DEVICE:
            return f"{UNKNOWN}: {reached}, where {beside} gives {given}"
        if self.baseline >= 1.0:
            return f"Nothing to tell apart: each cluster's test samples are of one class ({reached})"
        return f"Too few test samples to tell: {reached}, {points} {beside}"


def verdict(
    devices: Sequence[Measured], losses: Sequence[float], given: bool = False, likely: bool = False
) -> Verdict | None:
    """The verdict on a run; None if no device has measured anything.

    losses: the mean loss in training, round by round. given: whether the training settings were given by
    hand, and not left to `auto`, for the advice. likely: whether the loss is the negative logarithm of the
    right class's probability, as where the learner has no loss of its own.

    Example:
        >>> counts = np.array([50, 50])
        >>> found = verdict([Measured(0.9, "c0", 100, counts, counts)], [0.7, 0.3, 0.29])
        >>> found.learned, round(found.gain, 2)
        (True, 0.4)
    """
    if not devices:
        return None
    numbers = devices[0].tested is None
    bases = [0.0] * len(devices) if numbers else _bases(devices)
    rows = [_Row(each.accuracy, base, each.samples) for each, base in zip(devices, bases, strict=True)]
    found = _found(rows, _decided(rows, losses, numbers), losses, given, numbers)
    if found.learned is None:
        return replace(found, advice="; ".join(filter(None, (found.advice, _how_many(found)))))
    if likely and not numbers and losses and _memorized(losses[-1], found):
        return replace(found, advice=MORE_SAMPLES if found.learned else NOTHING_COMMON)
    return found


def _how_many(found: Verdict) -> str:
    """How many samples would tell, where there are too few. An error falls with the root of their number."""
    if found.baseline is None or found.baseline >= 1.0:
        return ""
    times = max(2, math.ceil((SURE * found.error / max(found.gain, LITTLE)) ** 2))
    if times > MAX_TIMES:
        return "more devices, or more samples on each, would tell"
    return f"{times} times as many samples would show such a gain"


def _memorized(loss: float, found: Verdict) -> bool:
    """Whether a model is much better on the samples that it was trained on than on others. By a loss of L,
    their classes have a mean probability of exp(-L) or more."""
    return math.exp(-max(loss, 0.0)) > found.accuracy + MEMORIZED + found.error


def judged(devices: Sequence[Reported], losses: Sequence[float], given: bool = False) -> Verdict | None:
    """The same by what devices have reported; None if none has.

    Some may lie. What the network tells apart is what most say, and a verdict that depends on one device of
    three or more is none.
    """
    if not devices:
        return None
    known = [each for each in devices if each.baseline is not None]
    kind = median_low([each.classes for each in known]) if known else 0
    known = [each for each in known if each.classes == kind]
    if 2 * len(known) <= len(devices):
        accuracy, (falling, diverged) = float(np.mean([each.accuracy for each in devices])), trend(losses)
        advice = _advice(None, falling, diverged, given)
        return Verdict(None, accuracy, None, 0.0, 0.0, False, falling, diverged, advice)
    if kind == 0:
        rows = [_Row(each.accuracy, 0.0, each.samples) for each in known]
        learned = _by_more_than_one(rows, partial(_decided, losses=losses, numbers=True))
        return _found(rows, learned, losses, given, True)
    own = [_Row(each.accuracy, each.baseline or 0.0, each.samples) for each in known]
    guess = [_Row(each.accuracy, 1.0 / kind, each.samples, 0.0) for each in known]
    ways = [(own, DEVICE, True), (guess, GUESS, False)]
    if shared := _shared(known):
        ways[1:1] = [(shared, CLUSTER, True), (shared, CLUSTER, False)]
    for rows, beside, proves in ways:
        slack = LITTLE if beside == GUESS else 0.0
        learned = _by_more_than_one(rows, partial(_decided, losses=losses, numbers=False, slack=slack))
        if learned is proves:
            return _found(rows, learned, losses, given, False, beside)
    return _found(shared or own, None, losses, given, False, CLUSTER if shared else DEVICE)


def why_not_instead(found: Verdict | None, of: Verdict | None) -> str:
    """Why the models of one run should not take the place of others by themselves; "" if they should.

    of: the verdict on the others; None if there are none, or if no device has measured them.

    Example:
        >>> better, worse = Verdict(True, 0.9, 0.5, 0.4, 0.01), Verdict(True, 0.8, 0.5, 0.3, 0.01)
        >>> why_not_instead(better, worse), why_not_instead(worse, better)
        ('', '80.0 % is not above the 90.0 % of the present one')
    """
    if found is None:
        return "no device has measured its models"
    if found.learned is False:
        return "nothing was learned"
    if of is not None and found.numbers is not of.numbers:
        return "the labels of one are classes, and those of the other numbers"
    if of is not None and not found.accuracy > of.accuracy:
        reached, present = f"{100.0 * found.accuracy:.1f} %", f"{100.0 * of.accuracy:.1f} %"
        return f"{reached} is not above the {present} of the present one"
    return ""


def mean_with_error(figures: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """The mean of the accuracies of devices, and its standard error by how few the samples are.

    figures: of each of one or more devices the accuracy, 0 to 1, and on how many samples.

    Example:
        >>> mean_with_error([(0.8, 100), (0.8, 100)])
        (0.8, 0.028284271247461898)
    """
    spread = sum(max(each * (1.0 - each), 1.0 / max(n, 1)) / max(n, 1) for each, n in figures)
    return float(np.mean([each for each, _ in figures])), math.sqrt(spread) / len(figures)


@dataclass(frozen=True)
class _Row:
    """A device: its accuracy, what an answer that ignores the sample reaches, and on how many samples.
    spread: the variance of the second, where it is not of the same samples."""

    accuracy: float
    base: float
    samples: int
    spread: float | None = None


def _decided(rows: Sequence[_Row], losses: Sequence[float], numbers: bool, slack: float = 0.0) -> bool | None:
    """Whether the mean gain is surely above 0, or surely none. slack: how large a gain that is not sure may
    be where the loss stays."""
    gain, error = _gain(rows), _error(rows, numbers)
    if sum(each.samples for each in rows) < MIN_TESTED:
        return None
    if not numbers and float(np.mean([each.base for each in rows])) >= 1.0:
        return None
    if gain > SURE * error:
        return True
    none = gain <= slack and (numbers or (_stays(losses) and error < MAX_ERROR))
    return False if none or gain + SURE * error < LITTLE else None


def _by_more_than_one(rows: Sequence[_Row], decide: Callable[[Sequence[_Row]], bool | None]) -> bool | None:
    """What is decided with all devices, if it is the same without the one that speaks most for it."""
    learned = decide(rows)
    if learned is None or len(rows) < 3:
        return learned
    order = sorted(rows, key=lambda each: each.accuracy - each.base)
    return learned if decide(order[:-1] if learned else order[1:]) is learned else None


def _found(
    rows: Sequence[_Row],
    learned: bool | None,
    losses: Sequence[float],
    given: bool,
    numbers: bool,
    beside: str = CLUSTER,
) -> Verdict:
    accuracy, gain = float(np.mean([each.accuracy for each in rows])), _gain(rows)
    falling, diverged = trend(losses)
    advice = _advice(learned, falling, diverged, given)
    error = _error(rows, numbers)
    return Verdict(
        learned, accuracy, accuracy - gain, gain, error, numbers, falling, diverged, advice, beside
    )


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


def _shared(devices: Sequence[Reported]) -> list[_Row]:
    """The devices beside their cluster's commonest class, by the shares that they have released; none unless
    all have."""
    if any(each.shares is None for each in devices):
        return []
    rows = []
    for key in dict.fromkeys(each.cluster for each in devices):
        own = [each for each in devices if each.cluster == key]
        shares = np.array([each.shares for each in own])
        commonest = int(shares.sum(axis=0).argmax())
        for each, share in zip(own, shares[:, commonest].clip(0.0, 1.0).tolist(), strict=True):
            spread = share * (1.0 - share) / max(each.samples, 1) + each.doubt**2
            rows.append(_Row(each.accuracy, share, each.samples, spread))
    return rows


def _share(counts: npt.NDArray[np.int64] | None) -> npt.NDArray[np.float64]:
    """(C,) of all samples."""
    assert counts is not None
    found: npt.NDArray[np.float64] = counts / max(int(counts.sum()), 1)
    return found


def _gain(rows: Sequence[_Row]) -> float:
    return float(np.mean([each.accuracy - each.base for each in rows]))


def _error(rows: Sequence[_Row], numbers: bool) -> float:
    """The standard error of the mean gain, by how few the test samples are.

    A sample counts 1, 0 or -1 for the model against the answer that ignores it. It cannot count unless one of
    the two is right, and the other is not, which bounds the variance. Where the two are not of the same
    samples, their variances add up. For numbers, the variance of R^2 of a model that explains a share r of n
    targets is about 4 r (1 - r)^2 / n, and 2 / n^2 for one that explains nothing.
    """
    total = 0.0
    for each in rows:
        n, gain = max(each.samples, 1), each.accuracy - each.base
        if numbers:
            total += 4.0 * each.accuracy * (1.0 - each.accuracy) ** 2 / n + 2.0 / n**2
        elif each.spread is not None:
            total += max(each.accuracy * (1.0 - each.accuracy), 1.0 / n) / n + each.spread
        else:
            differ = min(each.accuracy + each.base, 2.0 - each.accuracy - each.base)
            total += max(differ - gain * gain, 1.0 / n) / n
    return math.sqrt(total) / len(rows)


def _advice(learned: bool | None, falling: bool, diverged: bool, given: bool) -> str:
    if learned is not True and diverged:
        return "the loss rose: leave learning_rate out, or lower it"
    if learned is False and given:
        return "leave learning_rate, batch_size and epochs out, or give more rounds"
    if learned is False:
        return "give more rounds, or look at the labels and at the scale of the data"
    return "the loss was still falling, so more rounds would help" if falling else ""
