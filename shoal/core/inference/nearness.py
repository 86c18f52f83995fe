"""In which cluster's data a newcomer's samples lie, by the clusters' densities, and how much that proves.

The densities are mixtures of normal distributions of projected latents, one component for each class. Samples
of one of the run's devices are about as likely as their cluster's own. Those of a stranger, such as another
camera, scatter more, or lie to one side of where they should: all images are darker, say. So two things are
measured in the likeliest cluster: the factor by which all variances have to grow until the samples are most
likely, and how far the means of the samples' classes are from the cluster's, beyond what chance does, as a
share of the variance. Together they are the spread s. What makes a stranger's samples strange is common to
all of them, so that n of them are worth no more than n / (1 + n (s - 1)), and the clusters' models have to
decide.

All this is numpy, and needs no network.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.types import Tensors

SPREADS = np.array([1.0, 1.1, 1.2, 1.35, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0, 9.0, 16.0])
"""The factors of the variances that are tried."""
STRANGE = 1.5
"""From this spread on, the samples are unlike those of all devices."""
MIN_OF_CLASS = 0.5
"""A class of which there are fewer samples than this tells nothing of its mean."""
RANK = 0.5
"""The effective rank of projected latents over their number: correlated numbers count less."""
COARSE, MAX_DEVICES = 10.0, 20.0
"""The evidence counts for at most this many samples for each device that a cluster has on average: how much
devices of a cluster differ is only known where it has several. More devices than that add nothing, since no
data are quite normal."""
MAX_SAMPLES = 1000
"""More are not looked at, since they prove no more."""
FARTHEST = 1e6
"""Standard deviations from the middle of all clusters beyond which all is equally far."""


@dataclass(frozen=True, eq=False)
class Nearness:
    """logarithms: (K,), of the odds of the clusters by this evidence, the highest 0. likelihood: (K,), the
    mean logarithm of how likely a sample is in each cluster, relative to the likeliest one, at most 0.
    spread: how much the samples scatter about the likeliest cluster's classes, in its variances, at least 1.
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
        ([0.0, -5.6], 1.0)
    """
    projected = projected[np.isfinite(projected).all(axis=1)]
    projected = projected[:: -(-len(projected) // MAX_SAMPLES) or 1]
    n, count = len(projected), len(clusters["shares"])
    if not n:
        return Nearness(np.zeros(count), np.zeros(count), 1.0)
    by_spread = _log_densities(projected, clusters)
    chosen = int(np.argmax(by_spread.max(axis=1)))
    means = by_spread[chosen]
    spread = float(SPREADS[chosen]) + _apart(projected, clusters, int(np.argmax(means)), SPREADS[chosen])
    likelihood = means - means.max()
    worth = n / (1.0 + n * (1.0 / (COARSE * min(devices, MAX_DEVICES)) + spread - 1.0))
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


def _apart(projected: FloatArray, clusters: Tensors, index: int, spread: float) -> float:
    """How far the means of the samples' classes are from those of a cluster: the mean square over classes, by
    their samples, and numbers, in the cluster's variances, less what chance does; at least 0."""
    base, squares = list(_components(projected, clusters))[index]
    terms = base - 0.5 * squares / spread
    shares = np.exp(terms - terms.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    points, means, variances = _in_units(projected, clusters, index)
    counts = shares.sum(axis=0)
    off = ((shares.T @ points - counts[:, None] * means) ** 2 / variances).mean(axis=1)
    enough = counts >= MIN_OF_CLASS
    surplus = (off - (shares**2).sum(axis=0))[enough] / counts[enough]
    return max(float(surplus.sum()) / max(float(counts[enough].sum()), MIN_OF_CLASS), 0.0)


def _mixed(terms: FloatArray) -> FloatArray:
    """(n,): the logarithms of the sums of e to the (n, R) terms."""
    highest = terms.max(axis=1)
    found: FloatArray = highest + np.log(np.exp(terms - highest[:, None]).sum(axis=1))
    return found


def _components(projected: FloatArray, clusters: Tensors) -> Iterator[tuple[FloatArray, FloatArray]]:
    """For each cluster: the logarithms (R,) of its components' shares and sizes, and the squared distances
    (n, R) of the samples from them, in standard deviations. Components without a share are left out."""
    for index, shares in enumerate(clusters["shares"]):
        points, means, variances = _in_units(projected, clusters, index)
        # (n, R), without an array of (n, R, l).
        squares = points**2 @ (1.0 / variances).T - 2.0 * points @ (means / variances).T
        squares = np.maximum(squares + (means**2 / variances).sum(axis=1), 0.0)
        yield np.log(shares[shares > 0.0] / shares.sum()) - 0.5 * np.log(variances).sum(axis=1), squares


def _in_units(
    projected: FloatArray, clusters: Tensors, index: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Points (n, l), and means and variances (R, l) of a cluster's components, from the middle of all
    clusters and in usual standard deviations."""
    middle = clusters["means"].mean(axis=(0, 1))
    unit = np.sqrt(clusters["variances"].mean(axis=(0, 1)))
    there = clusters["shares"][index] > 0.0
    points, means = (
        np.clip((each - middle) / unit, -FARTHEST, FARTHEST)
        for each in (projected, clusters["means"][index, there])
    )
    return points, means, clusters["variances"][index, there] / unit**2
