"""A rollout: which devices try a new release beside the old one, what they count, and when that is enough.

A sample with a label counts 1 if only the new release is right, -1 if only the old one is, and else 0. The
mean of that is the difference of the two accuracies. Whether it is below a margin is a bet on each sample,
with a capital that no one can expect to grow if it is not so: over a whole rollout, it reaches 20 times the
start with a probability of at most 1 in 20, however often one looks (Ville's inequality). Waudby-Smith
and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86(1), 2024, sections 3 and 4:
here the capital is the mean of those of several constant bets, so that it depends on the counts only, and not
on the order in which they come. It is supposed that the difference is the same on all devices of a cluster
and at all times, and that no one chooses by what the two releases say which samples get labels.

The counts of one device are bounded by `MAX_LABELED`, and a decision that depends on one device of three or
more that take part is none, also where the others have counted no label yet.
"""

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple, dataclass

import numpy as np
import numpy.typing as npt

from shoal.core.errors import BadPayload
from shoal.core.types import DeviceId, ModelKey

ALPHA = 0.05
"""The probability of a wrong decision over a whole rollout, at most: of each of the two."""
MAX_LABELED = 10_000
"""The samples with labels that one device counts in a rollout."""
MAX_PREDICTIONS = 1 << 40
BETS = np.geomspace(1.0 / 1024.0, 0.9, 24)
"""The shares of the capital that are bet on each sample. The smallest fits differences of a tenth of a point,
the largest those of nearly all samples."""
PROMOTED, STOPPED, WITHDRAWN = "promoted", "stopped", "withdrawn"
"""How a rollout ends: by its counts, in one way or the other, or by an operator who goes back."""

Log = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Counts:
    """What one device has counted in a rollout so far: samples that both releases predicted, and for how
    many of them both said the same; samples whose label came, for how many of these each release was right,
    and for how many both were. Raises BadPayload for what cannot be.
    """

    predictions: int = 0
    agreed: int = 0
    labeled: int = 0
    old_right: int = 0
    new_right: int = 0
    both_right: int = 0

    def __post_init__(self) -> None:
        right = self.old_right + self.new_right - self.both_right
        possible = 0 <= self.both_right <= min(self.old_right, self.new_right) and right <= self.labeled
        if min(astuple(self)) < 0 or self.agreed > self.predictions or not possible:
            raise BadPayload(f"counts of a rollout that contradict each other: {self}", "update this device")
        if self.predictions > MAX_PREDICTIONS or self.labeled > MAX_LABELED:
            raise BadPayload(
                f"counts of a rollout that are too large: {self.predictions} predictions, {self.labeled} "
                "labels",
                f"at most {MAX_PREDICTIONS} and {MAX_LABELED} are taken",
            )

    def falls_below(self, earlier: "Counts") -> bool:
        """Whether something is less than it was, which no count ever is."""
        return any(now < then for now, then in zip(astuple(self), astuple(earlier), strict=True))


@dataclass(frozen=True)
class Sum:
    """What the devices of a cluster have counted. agreement: the mean over devices, 0 to 1; None where
    nothing was predicted. low, high: bounds of the accuracy of the new release less that of the old one, -1
    to 1; None without labels.
    """

    devices: int
    predictions: int
    agreement: float | None
    labeled: int
    old_right: int
    new_right: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Decision:
    """outcome: PROMOTED, STOPPED, or "" as long as the rollout goes on. why: in words; of one that goes on,
    what it waits for."""

    outcome: str
    why: str


def takes_part(
    rollout: str, device: DeviceId, share: float, clusters: Mapping[ModelKey, Sequence[DeviceId]]
) -> bool:
    """Whether a device is in the share: always the same for a rollout, and also in every larger share.

    share: above 0, at most 1. clusters: the devices that are known to be in each: this part of every
    cluster, and at least one. Of devices in none of them, about this part.

    Example:
        >>> clusters = {"c0": ["a", "b", "c"], "c1": ["d"]}
        >>> [takes_part("r", device, 0.1, clusters) for device in "abcd"]
        [True, False, False, True]
    """

    def rank(name: DeviceId) -> bytes:
        return hashlib.sha256(f"{rollout}\0{name}".encode()).digest()

    own = next((members for members in clusters.values() if device in members), None)
    if own is None:
        return int.from_bytes(rank(device)[:8], "big") < share * 2.0**64
    return sum(rank(each) < rank(device) for each in own) < math.ceil(share * len(own))


def decide(clusters: Mapping[ModelKey, Sequence[Counts]], margin: float, of: int) -> Decision:
    """What the counts say by now.

    clusters: those of the old release that count, each with the counts of its devices. margin: by how much
    the accuracy may be lower in a cluster, 0 to below 1. of: how many clusters there can be. It is STOPPED if
    a cluster is shown to be worse by more, and PROMOTED if no cluster is, which is shown for each of them.
    Over the whole rollout, each of the two is wrong with a probability of at most `ALPHA`.

    Example:
        >>> alike = [Counts(labeled=900, old_right=500, new_right=600, both_right=490)] * 3
        >>> worse = [Counts(labeled=900, old_right=600, new_right=500, both_right=490)] * 3
        >>> decide({"c0": alike}, 0.01, 2).outcome, decide({"c0": alike, "c1": worse}, 0.01, 2).outcome
        ('promoted', 'stopped')
    """
    points = f"{100.0 * margin:g} {'point' if margin == 0.01 else 'points'}"
    sure, split = math.log(1.0 / ALPHA), math.log(of / ALPHA)
    worse = [key for key, found in clusters.items() if _capital(found, -margin, -1.0) > split]
    if worse:
        return Decision(STOPPED, f"it is worse by more than {points} in cluster {', '.join(worse)}")
    open_ = [key for key, found in clusters.items() if not _capital(found, -margin, 1.0) > sure]
    if clusters and not open_:
        return Decision(PROMOTED, f"it is not worse by {points} in any cluster")
    silent = [key for key in open_ if not any(each.labeled for each in clusters[key])]
    if silent:
        return Decision("", f"no labels come from cluster {', '.join(silent)}, so it will not end by itself")
    lone = [
        key for key in open_ if len(clusters[key]) > 2 and sum(each.labeled > 0 for each in clusters[key]) < 2
    ]
    if lone:
        return Decision(
            "", f"labels come from only one device of cluster {', '.join(lone)}, which ends nothing"
        )
    return Decision("", f"too few labels yet to tell by {points} in cluster {', '.join(open_)}")


def summed(devices: Collection[Counts], of: int) -> Sum:
    """What the devices of one cluster have counted. of: how many clusters there can be: the bounds hold in
    all of them together, at all times, with a probability of 1 - `ALPHA`."""
    labeled = sum(each.labeled for each in devices)
    shares = [each.agreed / each.predictions for each in devices if each.predictions]
    found = Sum(
        len(devices),
        sum(each.predictions for each in devices),
        float(np.mean(shares)) if shares else None,
        labeled,
        sum(each.old_right for each in devices),
        sum(each.new_right for each in devices),
    )
    if not labeled:
        return found
    gain, sure = (found.new_right - found.old_right) / labeled, math.log(2.0 * of / ALPHA)
    ends = [_bound(devices, gain, end, sure) for end in (-1.0, 1.0)]
    return Sum(*astuple(found)[:6], *ends)


def _bound(devices: Collection[Counts], gain: float, end: float, sure: float) -> float:
    """The number farthest from the gain, towards this end, that the counts do not contradict."""
    inner, outer = gain, end
    for _ in range(20):
        middle = (inner + outer) / 2.0
        contradicted = _mean(_logs(devices, middle, -end).sum(axis=0)) > sure
        inner, outer = (inner, middle) if contradicted else (middle, outer)
    return outer


def _capital(devices: Sequence[Counts], bound: float, side: float) -> float:
    """The logarithm of the capital that bets that the mean is above `bound` (side 1) or below it (-1); of
    three or more devices, without the one that adds most to it."""
    logs = _logs(devices, bound, side)
    total = logs.sum(axis=0)
    return _mean(total) if len(logs) < 3 else min(_mean(total - each) for each in logs)


def _logs(devices: Collection[Counts], bound: float, side: float) -> Log:
    """(D, B) the logarithm of what each bet makes of 1 with the samples of each device."""
    better = np.array([each.new_right - each.both_right for each in devices], float)
    worse = np.array([each.old_right - each.both_right for each in devices], float)
    same = np.array([each.labeled for each in devices], float) - better - worse
    bets = side * BETS / (1.0 + abs(bound))
    found: Log = (
        better[:, None] * np.log1p(bets * (1.0 - bound))
        + worse[:, None] * np.log1p(bets * (-1.0 - bound))
        + same[:, None] * np.log1p(bets * -bound)
    )
    return found


def _mean(logs: Log) -> float:
    """The logarithm of the mean over the bets."""
    return float(np.logaddexp.reduce(logs) - math.log(len(logs)))
