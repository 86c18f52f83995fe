"""Partial pooling: clusters share as much of their steps as the scatter of their devices explains.

In a round each cluster's model makes a step, the mean of its devices' updates. These steps differ for two
reasons: the clusters need different models, and each mean is of a few devices. The scatter of the devices
within clusters tells how much the second reason explains. The rest is due to the groups.

Each step is therefore moved toward the mean of all clusters' steps, by the share of the difference that the
scatter explains: the empirical Bayes estimate in a model with random effects, whose variances are estimated
by moments. Where groups differ much, that is next to nothing. Where they do not (because devices were grouped
wrongly, the data have drifted since, or a step is mostly noise) clusters learn from all devices, nearly as
with one model. Devices still train the models of their own clusters, so shared steps slow down how clusters
separate, and do not end it.

Single rounds vary, so what is compared are sums over all rounds since the clusters were formed. A cluster of
one device has no part in that: nothing is known about how similar devices would scatter, and it may be the
only one because it is unlike all others. Its step is moved toward the mean of all steps, in which none counts
as longer than the middle one, by as much as is given (`shoal.core.server_kit.fleet.leaning`).

Source: Efron and Morris, Data Analysis Using Stein's Estimator and its Generalizations, JASA 1975; moments
for unequal groups: DerSimonian and Laird, Meta-Analysis in Clinical Trials, 1986.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import DTYPES, blocks, floats_of, manifest_of, part_of
from shoal.core.server_kit.aggregation.robust import Spread
from shoal.core.types import Array, ModelKey, Tensors

NOTHING: Mapping[ModelKey, float] = MappingProxyType({})
ALONE = 1.0 - 1e-9
"""The concentration from which on all updates but one count for nothing."""
MIN_LENGTH = 1e-300
"""The square of a step's length below which it is 0."""
UNLIKE = 3.0
"""How a cluster's scatter counts at most, in units of that of the middle cluster. In a cluster of two,
nothing else would limit how far a liar makes updates scatter, and so how much all others share with it."""


@dataclass(frozen=True)
class Pooling:
    """What the rounds that trained each cluster have shown of it, in sums of squared lengths of steps.

    groups: how far the steps of clusters scatter because clusters differ; by chance it can be negative.
    noise: how far this cluster's step scatters because it is a mean of few devices.
    """

    groups: Mapping[ModelKey, float] = field(default_factory=dict)
    noise: Mapping[ModelKey, float] = field(default_factory=dict)

    def share(self, key: ModelKey) -> float:
        """0 to 1: the share of its difference from the mean of all that a cluster's step should lose."""
        noise = self.noise.get(key, 0.0)
        return noise / (noise + max(0.0, self.groups.get(key, 0.0))) if noise > 0.0 else 0.0


def pooled(
    before: Mapping[ModelKey, Tensors],
    after: Mapping[ModelKey, Tensors],
    spreads: Mapping[ModelKey, Spread],
    pooling: Pooling,
    most: float,
    leaning: Mapping[ModelKey, float] = NOTHING,
) -> tuple[dict[ModelKey, Tensors], Pooling]:
    """The clusters' models after a round with shared steps, and what the rounds have shown until now.

    before, after: the models of the clusters before the round, and as their own devices would make them.
    spreads: of the clusters whose models are means of this round's updates; others stay as in `after`.
    most: the largest share, 0 to 1. leaning: the share of a cluster of one device, of that; without one it
    stays as in `after`.
    Memory: a model and a block for each cluster. Time: two passes over the models of the clusters.
    """
    keys = sorted(key for key in spreads if key in before and key in after)
    several = np.array([spreads[key].concentration < ALONE for key in keys], np.bool_)
    if most <= 0.0 or len(keys) < 2 or (several.sum() < 2 and not leaning):
        return dict(after), pooling
    devices = np.array([1.0 / spreads[key].concentration for key in keys])
    among = devices[several] / devices[several].sum()
    like = manifest_of(before[keys[0]])
    distances, lengths = np.zeros(int(several.sum())), np.zeros(len(keys))
    for spec in floats_of(like):
        for block in blocks(spec.size):
            steps = _steps(before, after, keys, spec.name, block)
            lengths += np.square(steps).sum(axis=1)
            distances += np.square(steps[several] - among @ steps[several]).sum(axis=1)
    if len(distances) > 1:
        alike = [key for key, one in zip(keys, several, strict=True) if one]
        scatter = np.array([spreads[key].square for key in alike])
        pooling = _after(pooling, alike, devices[several], scatter, float(distances.sum()))
    own = [
        pooling.share(key) if one else leaning.get(key, 0.0) for key, one in zip(keys, several, strict=True)
    ]
    shares = most * np.array(own)
    if not shares.any():
        return dict(after), pooling
    # The step of a device that is alone was compared with no other.
    bounded = np.sqrt(np.minimum(_middle(lengths, devices) / np.maximum(lengths, MIN_LENGTH), 1.0))
    bounded *= devices / devices.sum()
    found: dict[ModelKey, dict[str, Array]] = {key: {} for key in keys}
    for spec in like:
        if not spec.is_float:
            for key in keys:
                found[key][spec.name] = after[key][spec.name]
            continue
        made = {key: np.empty(spec.size, DTYPES[spec.dtype]) for key in keys}
        for block in blocks(spec.size):
            steps = _steps(before, after, keys, spec.name, block)
            means = np.where(several[:, None], among @ steps[several], bounded @ steps)
            moves = shares[:, None] * (means - steps)
            for key, move in zip(keys, moves, strict=True):
                made[key][block] = part_of(after[key], spec.name, block) + move
        for key in keys:
            found[key][spec.name] = made[key].reshape(spec.shape)
    return {**after, **found}, pooling


def _after(
    pooling: Pooling, keys: list[ModelKey], devices: FloatArray, scatter: FloatArray, distances: float
) -> Pooling:
    """What the rounds have shown after one more.

    devices: (C,), how many equal devices each cluster's step is the mean of. scatter: (C,), their mean
    squared distance from it. distances: the sum of the squared distances of the C steps from their mean.
    """
    freedom = devices - 1.0
    scatter = np.minimum(scatter, UNLIKE * _middle(devices * scatter / freedom, freedom) * freedom / devices)
    variance = float(devices @ scatter) / float(freedom.sum())
    noise = variance / devices
    weights, clusters = devices / devices.sum(), len(devices)
    by_chance = float(noise.sum() - 2.0 * weights @ noise + clusters * np.square(weights) @ noise)
    factor = clusters - 2.0 + clusters * float(np.square(weights).sum())
    differ = (distances - by_chance) / factor
    return Pooling(
        {**pooling.groups, **{key: pooling.groups.get(key, 0.0) + differ for key in keys}},
        {
            **pooling.noise,
            **{key: pooling.noise.get(key, 0.0) + float(own) for key, own in zip(keys, noise, strict=True)},
        },
    )


def _middle(values: FloatArray, weights: FloatArray) -> float:
    """The weighted median; the lower one of two."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(reached, 0.5 * reached[-1])]])


def _steps(
    before: Mapping[ModelKey, Tensors],
    after: Mapping[ModelKey, Tensors],
    keys: list[ModelKey],
    name: str,
    block: slice,
) -> FloatArray:
    """(C, width): what some coordinates of a tensor gained in each cluster."""
    return np.stack(
        [
            part_of(after[key], name, block).astype(np.float64) - part_of(before[key], name, block)
            for key in keys
        ]
    )
