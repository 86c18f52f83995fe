"""Histograms of a fleet's data, and what follows from one: count, mean, deviation and quantiles.

    server: unknown --> devices: counted --> server: pooled --> refined --> devices: counted ...

A histogram is a model of data, and counting is its training. So it travels, is protected, summed under masks
and stored as every model is: it is a set of tensors under the names below, and needs no message of its own.

No one knows the range of the data before, and no one is asked for it. The first bins reach over all of
float32, some six to a factor of ten; each next ones lie where the mass was, so that three exchanges find the
spread of values that are a thousand times as far from 0. A feature is a column of a table; of images and
series, a channel. A sample counts once, with equal shares for its values of that channel. The last row is no
feature but how many samples a device has, so that sums tell the count, too.

A device counts by its samples, but at most as a device at the upper quartile does. So liars move the share of
a bin, and the rank of a quantile, by no more than their share of that weight. Mean and deviation take values
beyond fences as if they lay there, and the share of such is stated; as long as liars have less
than an eighth of the weight, the fences depend on what the others have.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.data.scale import DEVIATION, MEAN, usable
from shoal.core.errors import BadPayload, Refused
from shoal.core.texts import plural
from shoal.core.types import Array, Tensors

EDGES, SHARES, ABOUT = "shoal_edges", "shoal_shares", "shoal_counted"
"""Of F features and the number of samples: (F + 1, BINS + 1) float64, ascending; (F + 1, BINS) float32; and
(3,) float64, the number of samples from which on a device counts in full, how many devices have counted, and
the standard deviation of the noise in a share.
"""
BINS, EXCHANGES = 128, 3
FEATURES = 1024
"""The most features that are counted."""
SMALLEST, LARGEST = 1e-12, float(np.finfo(np.float32).max)
CLEAR = 5.0
"""A bin is empty unless it has this many times the noise."""
TAIL = 12.0
"""A share is not farther from 0 to 1 than this many times the noise."""
MIN_BINS = 8
"""Bins, however much noise there is."""
MAX_NOISE = 0.05
"""The noise in a share with which a bin of a quarter of the mass is still clear. Beyond, noise may pass for
data."""
TINY = 1e-300
OUTER, REACH = 0.125, 5.0
"""The fences: quantiles, and how many times the distance between them beyond."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
BARS = " ▁▂▃▄▅▆▇█"
SHOWN = 24
"""Bars of a picture."""
Floats = npt.NDArray[np.float64]


def unknown(features: int) -> dict[str, Array]:
    """The histogram of data of which nothing is known but how many features they have."""
    sizes = np.geomspace(SMALLEST, LARGEST, BINS // 2)
    edges = np.concatenate([-sizes[::-1], [0.0], sizes])
    return _empty(np.tile(edges, (features + 1, 1)), 0.0)


def _empty(edges: Floats, size: float) -> dict[str, Array]:
    return {
        EDGES: edges,
        SHARES: np.zeros((len(edges), BINS), np.float32),
        ABOUT: np.array([size, 0.0, 0.0]),
    }


def is_histogram(tensors: Tensors) -> bool:
    return EDGES in tensors


def check(tensors: Tensors) -> Floats:
    """The edges of a histogram. Raises BadPayload for one that cannot be."""
    edges, shares, about = (tensors.get(name) for name in (EDGES, SHARES, ABOUT))
    if edges is not None and shares is not None and about is not None and len(tensors) == 3:
        shaped = edges.ndim == 2 and 1 <= len(edges) <= FEATURES + 1 and edges.shape[1] == BINS + 1
        typed = [each.dtype.name for each in (edges, shares, about)] == ["float64", "float32", "float64"]
        fits = shaped and typed and shares.shape == (len(edges), BINS) and about.shape == (3,)
        if fits and np.isfinite(edges).all() and (np.diff(edges) >= 0.0).all() and 0.0 <= about[0] < math.inf:
            return edges
    raise BadPayload("this histogram cannot be counted", "its edges are finite, and ascend")


def counts(x: Array, edges: Floats) -> Floats:
    """How many of the samples (n, ...) are in each bin: (features, BINS). edges: (features, BINS + 1), beyond
    which values count in the outer bins. A sample with several values of a feature counts in whole steps of
    2^-32, and not above 1. Raises BadPayload for samples with other features."""
    rows = x.reshape(len(x), x.shape[1] if x.ndim > 1 else 1, -1)
    if rows.shape[1] != len(edges):
        raise BadPayload(f"the data have {rows.shape[1]} features, and {len(edges)} were asked for")
    found = np.zeros((len(edges), BINS))
    for feature, own in enumerate(edges):
        values = rows[:, feature].astype(np.float64)
        bins = np.clip(np.searchsorted(own, values, side="right") - 1, 0, BINS - 1)
        found[feature] = np.bincount(bins.reshape(-1), minlength=BINS)
    each = rows.shape[2]
    return found if each == 1 else np.floor(found / each * 2.0**32) / 2.0**32


def counted(task: Tensors, found: Floats, samples: int) -> dict[str, Array]:
    """What a device answers. found: `counts`, or those with noise. samples: how many it has.

    Its shares have a length (L2) of at most 1, which is what secure aggregation lets a device add to a sum.
    """
    edges, size = task[EDGES], float(task[ABOUT][0])
    weight = min(samples / size, 1.0) if size else 1.0
    own = np.zeros((1, BINS))
    own[0, min(max(int(np.searchsorted(edges[-1], samples, side="right")) - 1, 0), BINS - 1)] = 1.0
    shares = np.concatenate([weight * found / samples, own]) / math.sqrt(len(edges))
    return {**task, SHARES: shares.astype(np.float32)}


def pooled(task: Tensors, answers: Sequence[Tensors]) -> dict[str, Array]:
    """The histogram of all devices together, of what each has answered to this task; each row sums to 1, or
    to 0 where nothing rises above the noise.

    An answer beyond what a histogram, and the noise in most of the answers, can be is brought down to it, bin
    by bin and as a whole: shares far below 0 would pass for noise that hides what all others say.
    """
    rows = len(task[EDGES])
    found = np.stack([each[SHARES] for each in answers]).astype(np.float64) * math.sqrt(rows)
    noise = float(np.median([_noise(each[:-1]) for each in found]))
    reach = np.append(np.full(rows - 1, TAIL * noise), 0.0)[:, None]
    found = np.clip(found, -reach, 1.0 + reach)
    most = np.full(rows, 1.0 + BINS * noise)
    most[-1] = 1.0
    sizes = np.abs(found).sum(axis=2)
    found *= np.minimum(1.0, most / np.maximum(sizes, TINY))[:, :, None]
    mean = found.mean(axis=0)
    noise = _noise(mean[:-1])
    clear = mean > 0.0
    clear[:-1] &= (mean[:-1] >= CLEAR * noise) & (np.diff(task[EDGES][:-1]) > 0.0)
    shares = np.where(clear, mean, 0.0)
    whole = shares.sum(axis=1, keepdims=True)
    share_of_noise = noise / float(whole[:-1].mean()) if whole[:-1].any() else 0.0
    return {
        **task,
        SHARES: (shares / np.maximum(whole, TINY)).astype(np.float32),
        ABOUT: np.array([float(task[ABOUT][0]), float(len(answers)), share_of_noise]),
    }


def _noise(shares: Floats) -> float:
    """The standard deviation of the noise in the shares of bins of which most are empty: half of those are
    below 0. Without noise, 0."""
    below = shares[shares < 0.0]
    return float(np.sqrt(np.mean(np.square(below)))) if len(below) else 0.0


def refined(found: Tensors) -> dict[str, Array]:
    """The next task: bins that lie where the mass of this histogram does. Half of them are in proportion to
    the root of the share of a bin, so that few values far away keep some, too; the others to the cube root of
    share times squared width, which makes the error of the deviation least (Panter and Dite 1951). With
    noise there are fewer, so that most of them rise above it."""
    edges, shares, noise = found[EDGES], found[SHARES], float(found[ABOUT][2])
    bins = min(BINS, max(MIN_BINS, int(1.0 / (2.0 * CLEAR * noise)))) if noise else BINS
    made = [_edges(*each, bins) for each in zip(edges[:-1], shares[:-1], strict=True)]
    size = quantile(edges[-1], shares[-1], 0.75)
    return _empty(np.stack([*made, _edges(edges[-1], shares[-1], BINS)]), size)


def _edges(edges: Floats, shares: Array, bins: int) -> Floats:
    """(BINS + 1,) next edges, of which the last ones are the same where there are fewer bins."""
    if not shares.any():
        return edges
    shares = shares.astype(np.float64)
    pieces = np.split(np.arange(BINS), np.flatnonzero(np.diff(shares > 0.0)) + 1)
    wanted = np.sqrt(shares) / np.sqrt(shares).sum()
    inside = np.cbrt(shares * np.square(np.diff(np.clip(edges, *_fences(edges, shares)))))
    if inside.any():
        wanted += inside / inside.sum()
    weights = np.array([float(wanted[piece].sum()) for piece in pieces])
    spare = max(bins - len(pieces), 0)
    ideal = spare * weights / weights.sum()
    extra = np.floor(ideal).astype(int)
    extra[np.argsort(extra - ideal, kind="stable")[: spare - int(extra.sum())]] += 1
    ends = [edges[[piece[0], piece[-1] + 1]] for piece in pieces]
    made = [edges[:1]]
    for piece, more in zip(pieces, extra.tolist(), strict=True):
        own, number = edges[piece[0] : piece[-1] + 2], len(made) - 1
        if bins < BINS // 2 and len(pieces) <= BINS // 4 and not weights[number]:
            # What lies beside a piece, and was lost in the noise, is not to count as anywhere in the gap.
            low, high = own[[0, -1]]
            before, after = (
                0.5 * float(np.diff(ends[each])[0]) if 0 <= each < len(ends) else 0.0
                for each in (number - 1, number + 1)
            )
            third = high / 3.0 - low / 3.0
            made.append(np.array([low + min(before, third), high - min(after, third), high]))
            continue
        each = wanted[piece] if weights[number] else np.ones(len(piece))
        steps = np.concatenate([[0.0], np.cumsum(each)])
        made.append(np.interp(np.linspace(0.0, steps[-1], more + 2)[1:], steps, own))
        made[-1][-1] = own[-1]
    found = np.maximum.accumulate(np.concatenate(made))
    return np.concatenate([found, np.full(BINS + 1 - len(found), found[-1])])


def overlap(task: Tensors, found: Floats, samples: int) -> float:
    """What the histogram and these `counts` have in common, the mean over the features: 0 to 1."""
    shares = task[SHARES][:-1].astype(np.float64)
    return float(np.clip(np.minimum(shares, found / samples).sum(axis=1).mean(), 0.0, 1.0))


def quantile(edges: Floats, shares: Array, rank: float) -> float:
    """The value below which this share, 0 to 1, of the mass lies."""
    full = np.flatnonzero(shares > 0.0)
    if not len(full):
        return 0.0
    heights = np.cumsum(shares[full], dtype=np.float64)
    height = rank * heights[-1]
    at = min(int(np.searchsorted(heights, height)), len(full) - 1)
    low, high = edges[full[at]], edges[full[at] + 1]
    below = heights[at - 1] if at else 0.0
    found = float(low + (high - low) * (height - below) / (heights[at] - below))
    return found if abs(found) > SMALLEST else 0.0


@dataclass(frozen=True, eq=False)
class Feature:
    """One feature of a group of devices, or the number of their samples.

    edges: (BINS + 1,) or more, shares: one less; they sum to 1. quantiles: at `QUANTILES`. beyond: the share
    of the values that lie beyond the fences, and count in mean and deviation as if they lay there.
    """

    mean: float
    deviation: float
    quantiles: tuple[float, ...]
    beyond: float
    edges: Floats
    shares: Floats

    @classmethod
    def of(cls, edges: Floats, shares: Array) -> "Feature":
        shares = shares.astype(np.float64) / max(float(shares.sum()), TINY)
        low, high = _fences(edges, shares)
        beyond = float(shares[(edges[1:] <= low) | (edges[:-1] >= high)].sum())
        near = np.clip(edges, low, high)
        middles, widths = 0.5 * (near[:-1] + near[1:]), np.diff(near)
        mean = float(shares @ middles)
        deviation = math.sqrt(float(shares @ (np.square(middles - mean) + np.square(widths) / 12.0)))
        found = tuple(quantile(edges, shares, rank) for rank in QUANTILES)
        return cls(mean, deviation, found, beyond, edges, shares)

    @property
    def picture(self) -> str:
        """Bars between the outer quantiles, and half of their distance beyond."""
        low, high = self.quantiles[0], self.quantiles[-1]
        spare = 0.25 * (high - low) or 0.5 * max(abs(low), 1.0)
        ends = np.linspace(low - spare, high + spare, SHOWN + 1)
        heights = np.diff(np.interp(ends, self.edges, np.concatenate([[0.0], np.cumsum(self.shares)])))
        most = float(heights.max()) or 1.0
        return "".join(BARS[math.ceil(each / most * (len(BARS) - 1))] for each in heights)

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "mean": self.mean,
            "deviation": self.deviation,
            "quantiles": {f"{rank:g}": each for rank, each in zip(QUANTILES, self.quantiles, strict=True)},
            "beyond": self.beyond,
            "edges": self.edges.tolist(),
            "shares": self.shares.tolist(),
        }


def _fences(edges: Floats, shares: Floats) -> tuple[float, float]:
    """Up to where values count in full. Of a feature that is mostly one value, quantiles farther out take the
    place of the outer eighths."""
    rank = OUTER
    while True:
        low, high = quantile(edges, shares, rank), quantile(edges, shares, 1.0 - rank)
        if high - low > 1e-6 * max(abs(low), abs(high)) and high - low > SMALLEST:
            return low - REACH * (high - low), high + REACH * (high - low)
        if rank < 1e-4:
            return -LARGEST, LARGEST
        rank /= 2.0


@dataclass(frozen=True, eq=False)
class Statistics:
    """Of a group of devices. devices: how many have counted. samples: how many a device has."""

    devices: int
    features: tuple[Feature, ...]
    samples: Feature

    @property
    def count(self) -> int:
        """The samples of all devices."""
        return round(self.devices * self.samples.mean)

    def facts(self) -> dict[str, Any]:
        """For programs."""
        return {
            "devices": self.devices,
            "count": self.count,
            "features": [each.facts() for each in self.features],
            "samples": self.samples.facts(),
        }

    def __str__(self) -> str:
        heads = ["mean", "deviation", *(f"{100 * rank:g} %" for rank in QUANTILES), "beyond"]
        lines = [f"{'feature':<10}{''.join(f'{head:>11}' for head in heads)}  histogram"]
        named = [*enumerate(self.features), ("samples", self.samples)]
        for name, each in named:
            numbers = "".join(f"{value:>11.4g}" for value in (each.mean, each.deviation, *each.quantiles))
            lines.append(f"{name!s:<10}{numbers}{100 * each.beyond:>9.1f} %  {each.picture}")
        return "\n".join([f"{plural(self.devices, 'device')}, {plural(self.count, 'sample')}", *lines])


def scale_counted(run: str, models: Mapping[str, Tensors]) -> dict[str, Array]:
    """The scale of inputs (`shoal.core.data.scale`) by what a run of statistics has counted.

    run: its name, for people. models: its histograms. Raises Refused where nothing was counted, or the noise
    has left nothing of a feature: in its own units, it could outweigh all others.
    """
    found = statistics_of(models)
    if not found:
        raise Refused(
            f"inputs={run}: run {run} has counted no data",
            "name a finished run of `statistics`, or set inputs to scaled or raw",
        )
    features = together(found.values()).features
    noise = max(float(models[name][ABOUT][2]) for name in found)
    if noise > MAX_NOISE or not all(each.shares.any() for each in features):
        raise Refused(
            f"inputs={run}: the noise of run {run} leaves no scale of {len(features)} features",
            "count them with a larger dp_epsilon, on more devices, or under secure_aggregation",
        )
    means = np.array([each.mean for each in features])
    deviations = np.array([each.deviation for each in features])
    return {MEAN: means.astype(np.float32), DEVIATION: usable(means, deviations)}


def statistics_of(models: Mapping[str, Tensors]) -> dict[str, Statistics]:
    """What the histograms among some models say, by name; nothing of those that nothing was counted for."""
    counted = {name: each for name, each in models.items() if is_histogram(each) and each[SHARES].any()}
    return {name: _read(each) for name, each in counted.items()}


def _read(model: Tensors) -> Statistics:
    *features, samples = (Feature.of(*each) for each in zip(model[EDGES], model[SHARES], strict=True))
    return Statistics(int(model[ABOUT][1]), tuple(features), samples)


def text(groups: Mapping[str, Statistics]) -> str:
    """For people: each group by its name, and all together where there are several."""
    if len(groups) > 1:
        groups = {**groups, "all": together(groups.values())}
    return "\n\n".join(f"{name}: {found}" for name, found in groups.items())


def together(groups: Iterable[Statistics]) -> Statistics:
    """The statistics of some groups together, which have the same features."""
    known = list(groups)
    weights = [float(each.count) for each in known]
    features = [_joined(each, weights) for each in zip(*(group.features for group in known), strict=True)]
    samples = _joined([each.samples for each in known], [float(each.devices) for each in known])
    return Statistics(sum(each.devices for each in known), tuple(features), samples)


def _joined(parts: Sequence[Feature], weights: Sequence[float]) -> Feature:
    edges = np.unique(np.concatenate([each.edges for each in parts]))
    heights = sum(
        weight * np.interp(edges, each.edges, np.concatenate([[0.0], np.cumsum(each.shares)]))
        for each, weight in zip(parts, weights, strict=True)
    )
    return Feature.of(edges, np.maximum(np.diff(np.asarray(heights)), 0.0))
