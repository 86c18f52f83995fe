"""One model from many updates, of which some may be hostile. It knows nothing of rounds and reports.

An update is what a device reported minus the model that its round began with. Before every rule but `mean`

- its L2 norm is cut to `BOUND` times a reference: the median norm of the round, which is itself at most
  `BOUND` times the reference of the round before, so that a cluster of one has a bound too;
- its weight is cut to `SHARE` of the cluster's: how many samples it has is the device's own word.

In that median a device counts by its samples, since who has more takes more steps and goes further: if each
counted once, many tiny devices would hold back the few that have the data. But none counts more than twice
its equal share, nor more than a third. So one device of three or more, or less than a quarter of them, cannot
move the reference out of the range of the others' norms, whatever it claims.

Then the rule: `clipped`, their weighted mean; `trimmed`, the mean of each coordinate without its highest and
lowest tenth; `median`, of each coordinate. The last two count every device once, whatever it claims. `auto`
chooses among these by the number of updates. What is promised, when updates are of norm B at most:

    clipped   it is at most a (B + |h|) away from h, the mean of the honest; a: the hostile share of weight
    trimmed   each coordinate lies between the honest values, while no more are hostile than are left out
    median    each coordinate lies between the honest values, while fewer than half are hostile

Whole numbers (the counter of a batch norm) have no norm to cut: every rule but `mean` takes their median.

Norm bound: Sun et al., Can You Really Backdoor Federated Learning?, 2019. Trimmed mean and median: Yin et
al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import get_args

import numpy as np

from shoal.core.algorithm import Rule
from shoal.core.exchange.tensors import BLOCK, weighted_mean
from shoal.core.types import Array, DeviceId, Tensors

RULES = get_args(Rule)
BOUND = 3.0
"""Times the reference: the longest norm that counts, and how much the reference may grow in a round."""
SHARE = 0.2
"""Of the weight of all, the most that one update has; 2 / n of it where that is more."""
ROUNDING = 1e-9
"""Relative: sums of weights that differ by less are the same."""
FEW, MANY = 5, 10
"""`auto`: the clipped mean below FEW updates, the median below MANY, from there on the trimmed mean."""
TENTH = 10
MATRIX = 1 << 25
"""Bytes that are sorted at a time: a row for each update, as many coordinates as fit."""


@dataclass(frozen=True, eq=False)
class Update:
    """What a device reported, read several times. weight: above 0, in any unit.

    origin: the model that it trained from, where that is not the one that the others did.
    """

    model: Tensors
    weight: float
    origin: Tensors | None = None


@dataclass(frozen=True, eq=False)
class Combined:
    """reference: the norm by which updates were measured; 0 when nothing was.

    clipped: of each update that was cut, how many references long it was. capped: whose weight was cut.
    """

    model: Tensors
    reference: float = 0.0
    clipped: Mapping[DeviceId, float] = field(default_factory=dict)
    capped: tuple[DeviceId, ...] = ()


def combine(rule: str, base: Tensors, updates: Mapping[DeviceId, Update], before: float = 0.0) -> Combined:
    """The next model, from at least one update; the same bits whatever order they came in.

    base: what the round began with, for all updates that name no origin of their own.
    before: the reference of the last round; 0 when there was none.
    Memory: of one model, one tensor and `MATRIX`, however many updates there are.
    """
    devices = sorted(updates)
    weights = {device: updates[device].weight for device in devices}
    if rule == "mean":
        return Combined(weighted_mean((updates[device].model, weights[device]) for device in devices))
    origins = {device: base if (one := updates[device].origin) is None else one for device in devices}
    norms = {device: norm(updates[device].model, origins[device]) for device in devices}
    usual = reference(norms, weights, before)
    clipped = {device: size / usual for device, size in norms.items() if 0.0 < BOUND * usual < size}
    parts: dict[DeviceId, Tensors] = {device: updates[device].model for device in devices}
    parts |= {
        device: Clipped(parts[device], origins[device], BOUND / times) for device, times in clipped.items()
    }
    rule = chosen(rule, len(devices))
    if rule != "clipped":
        cut = _tenth(len(devices)) if rule == "trimmed" else _half(len(devices))
        return Combined(middle(list(parts.values()), base, cut), usual, clipped)
    allowed = capped(weights, max(SHARE, 2.0 / len(devices)))
    model = weighted_mean((parts[device], allowed[device]) for device in devices)
    whole = {name: array for name, array in base.items() if array.dtype.kind != "f"}
    model |= middle(list(parts.values()), whole, _half(len(devices)))
    return Combined(model, usual, clipped, tuple(d for d in devices if allowed[d] < weights[d]))


def chosen(rule: str, updates: int) -> str:
    """The rule for so many updates, where it is left to us."""
    if rule != "auto":
        return rule
    return "clipped" if updates < FEW else "median" if updates < MANY else "trimmed"


# -- before the rule ----------------------------------------------------------------------------------------


def norm(model: Tensors, base: Tensors) -> float:
    """L2 norm of the update, over all tensors of floats; infinite where it is beyond float64."""
    total = 0.0
    with np.errstate(over="ignore"):
        for name, origin in base.items():
            if origin.dtype.kind == "f":
                values, start = model[name].reshape(-1), origin.reshape(-1)
                for block in _blocks(origin.size, BLOCK):
                    step = values[block].astype(np.float64) - start[block]
                    total += float(np.square(step, out=step).sum())
    return math.sqrt(total)


def reference(norms: Mapping[DeviceId, float], weights: Mapping[DeviceId, float], before: float) -> float:
    """The median of the norms, at most `BOUND` times `before` where there was one. 0: nothing to go by.

    Devices that did not move their model say nothing about how far training goes.
    """
    moved = sorted(device for device, size in norms.items() if size > 0.0)
    if not moved:
        return 0.0
    share = max(1.0 / len(moved), min(2.0 / len(moved), 1.0 / 3.0))
    counted = capped({device: weights[device] for device in moved}, share)
    usual = _median([(norms[device], counted[device]) for device in moved])
    return min(usual, BOUND * before) if before > 0.0 else usual


def _median(values: Iterable[tuple[float, float]]) -> float:
    """Of values with weights; half-way between the two where the weight parts evenly."""
    ordered = sorted(values)
    half = math.fsum(weight for _, weight in ordered) / 2.0
    reached = 0.0
    for (value, weight), (following, _) in pairwise([*ordered, ordered[-1]]):
        reached += weight
        if reached >= half * (1.0 - ROUNDING):
            return (value + following) / 2.0 if reached <= half * (1.0 + ROUNDING) else value
    return ordered[-1][0]


def capped(weights: Mapping[DeviceId, float], share: float) -> dict[DeviceId, float]:
    """The weights, none above a share of what they then are together. share: 1 / n at least.

    With the k heaviest at the limit, a share of s each, the limit is s / (1 - k s) of the others' sum.
    """
    heaviest = sorted(weights.values(), reverse=True)
    above = 0
    while True:
        limit = share / (1.0 - above * share) * math.fsum(heaviest[above:])
        if heaviest[above] <= limit or (above + 1) * share >= 1.0:
            return {device: min(weight, limit) for device, weight in weights.items()}
        above += 1


class Clipped(Mapping[str, Array]):
    """What a device would have reported, had its update been `scale` times as long: 0 to 1.

    A tensor is made when it is asked for. Whole numbers are as reported.
    """

    def __init__(self, model: Tensors, base: Tensors, scale: float) -> None:
        self._model, self._base, self._scale = model, base, scale

    def part(self, name: str, block: slice) -> Array:
        """Some coordinates of a tensor."""
        reported, start = _values(self._model, name, block), _values(self._base, name, block)
        if start.dtype.kind != "f":
            return reported
        if self._scale == 0.0:  # nothing times an infinite step would be no number
            return start
        step = reported.astype(np.float64) - start
        return (start + self._scale * step).astype(start.dtype)

    def __getitem__(self, name: str) -> Array:
        like = self._base[name]
        found = np.empty(like.size, like.dtype)
        for block in _blocks(like.size, BLOCK):
            found[block] = self.part(name, block)
        return found.reshape(like.shape)

    def __iter__(self) -> Iterator[str]:
        return iter(self._model)

    def __len__(self) -> int:
        return len(self._model)


# -- rules over coordinates ---------------------------------------------------------------------------------


def middle(parts: Sequence[Tensors], like: Tensors, cut: int) -> dict[str, Array]:
    """For each tensor of `like`: the mean of each coordinate without its `cut` lowest and highest values.

    cut: below half of the parts. Whole numbers get the median, to the nearest, whatever `cut` is.
    """
    return {
        name: _middle(parts, name, array, cut if array.dtype.kind == "f" else _half(len(parts)))
        for name, array in like.items()
    }


def _middle(parts: Sequence[Tensors], name: str, like: Array, cut: int) -> Array:
    result = np.empty(like.size, like.dtype)
    most = min(max(MATRIX // (8 * len(parts)), 1), like.size)
    matrix = np.empty((len(parts), most))
    for block in _blocks(like.size, most):
        rows = matrix[:, : result[block].size]
        # Mapped files are opened anew for each block and let go again: tensors never pile up.
        for row, part in zip(rows, parts, strict=True):
            row[:] = _values(part, name, block)
        rows.sort(axis=0)
        left = rows[cut : len(parts) - cut]
        with np.errstate(over="ignore"):
            mean = left.sum(axis=0) / len(left)
        np.clip(mean, left[0], left[-1], out=mean)  # rounding must not leave the range
        result[block] = mean if like.dtype.kind == "f" else np.rint(mean)
    return result.reshape(like.shape)


def _tenth(count: int) -> int:
    """How many of so many to leave out at each end; at least one, as long as one remains."""
    return min(max(count // TENTH, 1), _half(count))


def _half(count: int) -> int:
    """How many of so many to leave out at each end so that one or two remain."""
    return (count - 1) // 2


def _values(tensors: Tensors, name: str, block: slice) -> Array:
    """Some coordinates of a tensor, in the order of its bytes."""
    return tensors.part(name, block) if isinstance(tensors, Clipped) else tensors[name].reshape(-1)[block]


def _blocks(size: int, most: int) -> Iterator[slice]:
    """Slices of at most `most` coordinates, at least one, that cover `size` of them."""
    return (slice(start, start + max(most, 1)) for start in range(0, size, max(most, 1)))
