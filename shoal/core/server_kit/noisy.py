"""Points of which some coordinates are noisy, by a known amount, and some not known at all.

point: (L,), NaN where nothing is known. noise: (L,), the variance of each coordinate's noise, infinite there.
Both may be stacked, (n, L).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shoal.core.exchange.parts import ClusterAssignment, Vector
from shoal.core.server_kit.cluster import Labels

SURE = 1.645
"""Standard errors between nearest and runner-up below which noise may have decided: one case in twenty."""


def squared_distance(one: Vector, other: Vector, noise: Vector, weights: Vector) -> float:
    """Weighted squared distance without what noise adds to it on average, and so negative at times.

    noise: (L,), of both points together. weights: (L,), 0 where anything is unknown; see `trust`.
    """
    known = weights > 0.0
    gap = (one - other)[known]
    return float(weights[known] @ (gap**2 - noise[known]))


def trust(noise: Vector, centroids: Vector, centroid_noise: Vector) -> Vector:
    """(L,): how much each coordinate of a point with this noise tells of which centroid (M, L) it is near.

    Signal / (signal + noise), from 0 to 1, where the signal is how far apart the centroids truly are. A
    coordinate counts for all centroids or for none, so one that some centroid lacks does not count.
    """
    added = noise + centroid_noise.max(axis=0)
    known = np.isfinite(added)
    added[~known] = 1.0
    own = np.where(known, centroid_noise, 0.0).mean(axis=0)
    signal = np.maximum(np.where(known, centroids, 0.0).var(axis=0) - own, 0.0)
    told = np.where(added > 0.0, signal / np.maximum(signal + added, 1e-300), 1.0)
    result: Vector = np.where(known, told, 0.0)
    return result


def nearest(
    point: Vector, noise: Vector, centroids: Vector, centroid_noise: Vector, names: Sequence[str]
) -> ClusterAssignment:
    """The nearest centroid by weighted distance; abstains where noise may have decided.

    centroids, centroid_noise: (M, L), M at least 1. The distances in the answer are not weighted: a point may
    be far from all centroids where these do not differ. Its confidence is of the weighted ones. With no noise
    and nothing unknown it answers as `shoal.core.server_kit.assign.nearest` does.
    """
    both = noise + centroid_noise
    weights = trust(noise, centroids, centroid_noise)
    every = np.where(np.isfinite(both).all(axis=0), 1.0, 0.0)
    rows = range(len(names))
    near = np.array([squared_distance(point, centroids[m], both[m], weights) for m in rows])
    far = [squared_distance(point, centroids[m], both[m], every) for m in rows]
    distances = np.sqrt(np.maximum(far, 0.0)).tolist()
    order = np.argsort(near, kind="stable").tolist()
    best = order[0]
    if len(names) == 1:
        return ClusterAssignment(names[0], distances[0], reason="the run has one cluster")
    runner_up = order[1]
    confidence = (
        1.0 - float(np.sqrt(max(near[best], 0.0) / near[runner_up])) if near[runner_up] > 0.0 else 0.0
    )
    answer = ClusterAssignment(
        names[best], distances[best], names[runner_up], distances[runner_up], confidence
    )
    # What noise does to the difference of the two squared distances: the point's moves it along the line
    # between the centroids, a centroid's along the line to it.
    error = 2.0 * np.sqrt(
        _power(centroids[runner_up] - centroids[best], noise, weights)
        + _power(point - centroids[best], centroid_noise[best], weights)
        + _power(point - centroids[runner_up], centroid_noise[runner_up], weights)
    )
    if weights.any() and near[runner_up] - near[best] >= SURE * error:
        return answer
    reason = f"noise may have decided between the clusters {answer.cluster} and {answer.runner_up}"
    return replace(answer, abstained=True, reason=reason)


def _power(line: Vector, noise: Vector, weights: Vector) -> float:
    known = weights > 0.0
    return float(((weights * line)[known] ** 2) @ noise[known])


def centroids(points: Vector, noise: Vector, labels: Labels) -> tuple[Vector, Vector]:
    """(M, L) each: the mean of each cluster's points where any is known, and the variance of its noise."""
    known = ~np.isnan(points)
    values, variances = np.where(known, points, 0.0), np.where(known, noise, 0.0)
    members = np.stack([known[labels == m].sum(axis=0) for m in range(labels.max() + 1)])
    sums = np.stack([values[labels == m].sum(axis=0) for m in range(len(members))])
    spread = np.stack([variances[labels == m].sum(axis=0) for m in range(len(members))])
    counted = np.maximum(members, 1)
    return (
        np.where(members > 0, sums / counted, np.nan),
        np.where(members > 0, spread / counted**2, np.inf),
    )


def filled(points: Vector, instead: Vector | None = None) -> Vector:
    """(n, L) points with what is not known put in, so that it makes no difference.

    From `instead`, (n, L), or else the mean of all points that know it, or 0 where none does.
    """
    known = ~np.isnan(points)
    mean = np.where(known, points, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    result: Vector = np.where(known, points, mean)
    if instead is not None:
        result = np.where(known | np.isnan(instead), result, instead)
    return result
