"""In which cluster's data a newcomer's samples lie, by the clusters' densities, and how much that proves.

The densities are mixtures of normal distributions of projected latents, one component for each class. Samples
of one of the run's devices are about as likely as their cluster's own. Those of a stranger, such as another
camera, are less likely in every cluster: they scatter more. The factor s by which all variances have to grow
until the samples are most likely measures that. What makes a stranger's samples strange is common to all of
them, so that n of them are worth no more than n / (1 + n (s - 1)), and the clusters' models have to decide.

All this is numpy, and needs no network.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.types import Tensors

SPREADS = np.array([1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0, 16.0])
"""The factors s that are tried."""
STRANGE = 1.5
"""From this factor on, the samples are unlike those of all devices."""
USUAL_SPREAD = 1.1
"""Up to this factor, samples scatter as those of the run's devices do."""
RANK = 0.5
"""The effective rank of projected latents over their number: correlated numbers count less."""
COARSE, MOST_DEVICES = 5.0, 20.0
"""The evidence counts for at most this many samples for each device that a cluster has on average: how much
devices of a cluster differ is only known where it has several. More devices than that add nothing, since no
data are quite normal."""
MOST_SAMPLES = 1000
"""More are not looked at, since they prove no more."""
FARTHEST = 1e6
"""Standard deviations from the middle of all clusters beyond which all is equally far."""


@dataclass(frozen=True, eq=False)
class Nearness:
    """logarithms: (K,), of the odds of the clusters by this evidence, the highest 0. likelihood: (K,), the
    mean logarithm of how likely a sample is in each cluster, relative to the likeliest one, at most 0.
    spread: the factor s, at least 1.
    """

    logarithms: FloatArray
    likelihood: FloatArray
    spread: float


def nearness(projected: FloatArray, clusters: Tensors, devices: float) -> Nearness:
    """Where samples lie among K clusters. projected: (n, l) latents; rows that are not finite are left out.

    clusters: those of `shoal.core.exchange.choosing.ClusterDensities`. devices: how many devices a cluster
    has on average, above 0.

    Example:
        >>> clusters = {
        ...     "shares": np.ones((2, 1)),
        ...     "means": np.array([[[0.0]], [[3.0]]]),
        ...     "variances": np.ones((2, 1, 1)),
        ... }
        >>> found = nearness(np.array([[0.2], [-0.1], [0.4]]), clusters, 4.0)
        >>> found.logarithms.round(1).tolist(), found.spread
        ([0.0, -5.2], 1.0)
    """
    projected = projected[np.isfinite(projected).all(axis=1)]
    projected = projected[:: -(-len(projected) // MOST_SAMPLES) or 1]
    n, count = len(projected), len(clusters["shares"])
    if not n:
        return Nearness(np.zeros(count), np.zeros(count), 1.0)
    by_spread = _log_densities(projected, clusters)
    chosen = int(np.argmax(by_spread.max(axis=1)))
    spread, means = float(SPREADS[chosen]), by_spread[chosen]
    likelihood = means - means.max()
    worth = n / (1.0 + n * (1.0 / (COARSE * min(devices, MOST_DEVICES)) + max(spread - USUAL_SPREAD, 0.0)))
    return Nearness(RANK * worth * likelihood, likelihood, spread)


def log_densities(projected: FloatArray, clusters: Tensors) -> FloatArray:
    """(n, K): the logarithm of the density of each sample in each cluster, but for what is the same in all.
    NaN for a sample that is not finite."""
    with np.errstate(invalid="ignore"):
        found = [_mixed(base - 0.5 * squares) for base, squares in _components(projected, clusters)]
    return np.stack(found, axis=1)


def _log_densities(projected: FloatArray, clusters: Tensors) -> FloatArray:
    """(S, K): the mean logarithm of the density of the samples in each cluster, with each spread."""
    dims = projected.shape[1]
    found = np.empty((len(SPREADS), len(clusters["shares"])))
    for index, (base, squares) in enumerate(_components(projected, clusters)):
        for number, spread in enumerate(SPREADS):
            found[number, index] = _mixed(base - 0.5 * squares / spread).mean() - 0.5 * dims * np.log(spread)
    return found


def _mixed(terms: FloatArray) -> FloatArray:
    """(n,): the logarithms of the sums of e to the (n, R) terms."""
    highest = terms.max(axis=1)
    found: FloatArray = highest + np.log(np.exp(terms - highest[:, None]).sum(axis=1))
    return found


def _components(projected: FloatArray, clusters: Tensors) -> Iterator[tuple[FloatArray, FloatArray]]:
    """For each cluster: the logarithms (R,) of its components' shares and sizes, and the squared distances
    (n, R) of the samples from them, in standard deviations."""
    middle = clusters["means"].mean(axis=(0, 1))
    unit = np.sqrt(clusters["variances"].mean(axis=(0, 1)))
    points = np.clip((projected - middle) / unit, -FARTHEST, FARTHEST)
    for index, shares in enumerate(clusters["shares"]):
        there = shares > 0.0
        means = np.clip((clusters["means"][index, there] - middle) / unit, -FARTHEST, FARTHEST)
        variances = clusters["variances"][index, there] / unit**2
        # (n, R), without an array of (n, R, l).
        squares = points**2 @ (1.0 / variances).T - 2.0 * points @ (means / variances).T
        squares = np.maximum(squares + (means**2 / variances).sum(axis=1), 0.0)
        yield np.log(shares[there] / shares.sum()) - 0.5 * np.log(variances).sum(axis=1), squares
