"""Which cluster a device is assigned to, and with how much confidence; for exact points and for noisy ones.

A noisy point has a known amount of noise in each coordinate, and may have unknown coordinates. point: (L,),
NaN where it is unknown. noise: (L,), the variance of the noise in each coordinate, infinite where the point
is unknown. Both may be stacked, (n, L).
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shoal.core.exchange.parts import ClusterAssignment, FloatArray
from shoal.core.server_kit.clustering.cluster import Labels
from shoal.core.types import ModelKey

FAR = 1e150
"""Limit of a coordinate's magnitude, so that no device's numbers have infinite squares."""
SURE = 1.645
"""Standard errors between the nearest and the runner-up below which noise may have decided: one case in
twenty."""


def euclidean(points: FloatArray, centroids: FloatArray) -> FloatArray:
    """(n, M): distance of each point to each centroid. points: (n, L); centroids: (M, L)."""
    distances: FloatArray = np.linalg.norm(points[:, None] - centroids[None], axis=2)
    return distances


def divergence(points: FloatArray, samples: FloatArray, centroids: FloatArray) -> FloatArray:
    """(n, M): how much more likely a device's samples and a cluster's are under two distributions than under
    one.

    points: (n, 2 l), the means and then the deviations of l coordinates. samples: (n,), the number behind
    each point. centroids: (M, 2 l), in the same layout.

    The result is the square root of minus twice the logarithm of the likelihood ratio per sample, for equally
    many samples on both sides, if all coordinates are normal and independent. A coordinate therefore counts
    relative to the spread of the samples in it, and large distances grow so slowly that no single coordinate
    decides. By chance, the square times `samples` is at most about chi-square with 2 l degrees of freedom.
    """
    dims = points.shape[1] // 2
    points, centroids = np.clip(points, -FAR, FAR), np.clip(centroids, -FAR, FAR)
    # A coordinate that never varies (a dead unit) would cause a division by zero.
    least = 1e-12 * max(float(np.square(centroids[:, :dims]).max()), 1.0)
    theirs = centroids[None, :, dims:] ** 2 + least
    # The expected shortfall of the variance of n samples, if they came from the cluster's distribution.
    short = theirs / np.maximum(samples, 1.0)[:, None, None]
    own = points[:, None, dims:] ** 2 + short + least
    gaps = (points[:, None, :dims] - centroids[None, :, :dims]) ** 2
    ratio = 2.0 * np.log((own + theirs) / 2.0 + gaps / 4.0) - np.log(own) - np.log(theirs)
    distances: FloatArray = np.sqrt(np.maximum(ratio.sum(axis=2), 0.0))
    return distances


def nearest(point: FloatArray, centroids: FloatArray, names: Sequence[ModelKey]) -> ClusterAssignment:
    """The nearest centroid by Euclidean distance (FLUX eq. 9). point: (L,); centroids: (M, L), M >= 1."""
    return nearest_of(names, euclidean(point[None], centroids)[0].tolist())


def nearest_of(names: Sequence[ModelKey], distances: Sequence[float]) -> ClusterAssignment:
    """The cluster with the smallest distance, or loss. names and distances: at least one of each.

    confidence: 1 - smallest / second smallest, from 0 if the two are equal to 1 if there is only one cluster.
    """
    order = np.argsort(distances, kind="stable")
    first = distances[order[0]]
    if len(names) == 1:
        return ClusterAssignment(names[0], first, reason="the run has one cluster")
    second = distances[order[1]]
    confidence = float(np.clip(1.0 - first / second, 0.0, 1.0)) if second > 0.0 else 0.0
    return ClusterAssignment(names[order[0]], first, names[order[1]], second, confidence)


def radii(apart: FloatArray, labels: Labels, between: FloatArray) -> FloatArray:
    """(M,): the radius of each cluster: the distance of its farthest point from its centroid, or half the
    distance to the nearest other centroid if that is larger, because a cluster of one point has no width of
    its own.

    apart: (n, M), distances of points to centroids. between: (M, M), distances of centroids to each other. If
    there is only one cluster and it has fewer than three points, neither exists and the radius is infinite.
    """
    own = np.array([apart[labels == m, m].max() for m in range(len(between))])
    if len(between) == 1:
        return own if len(apart) > 2 else np.array([np.inf])
    stretch: FloatArray = np.maximum(
        own, np.where(np.eye(len(between)) > 0, np.inf, between).min(axis=1) / 2.0
    )
    return stretch


def mixing_weights(points: FloatArray, centroids: FloatArray) -> FloatArray:
    """(n, M) rows that sum to 1: how much of each cluster's model suits each point (FLUX D.3, "soft").

    A weight is the inverse squared distance. Weights below an equal share 1 / M are dropped, but never the
    largest: a point in the middle of a cluster then uses only that cluster's model, and few models are sent.
    """
    closeness = 1.0 / np.maximum(euclidean(points, centroids), 1e-12) ** 2
    weights = closeness / closeness.sum(axis=1, keepdims=True)
    weights[weights < 1.0 / len(centroids)] = 0.0
    total: FloatArray = weights / weights.sum(axis=1, keepdims=True)
    return total


# -- points with known noise ---------------------------------------------------------------------------------


def noisy_squared_distance(
    one: FloatArray, other: FloatArray, noise: FloatArray, weights: FloatArray
) -> float:
    """The weighted squared distance without the amount that noise adds to it on average. It can be negative.

    noise: (L,), the variance of the noise of both points together. weights: (L,), 0 for unknown coordinates;
    see `trust`.
    """
    known = weights > 0.0
    gap = (one - other)[known]
    return float(weights[known] @ (gap**2 - noise[known]))


def trust(noise: FloatArray, centroids: FloatArray, centroid_noise: FloatArray) -> FloatArray:
    """(L,): how much each coordinate of a point with this noise reveals about which centroid (M, L) is near.

    It is signal / (signal + noise), from 0 to 1, where the signal is the variance of the centroids without
    their own noise. A coordinate counts for all centroids or for none, so one that some centroid lacks does
    not count.
    """
    added = noise + centroid_noise.max(axis=0)
    known = np.isfinite(added)
    added[~known] = 1.0
    own = np.where(known, centroid_noise, 0.0).mean(axis=0)
    signal = np.maximum(np.where(known, centroids, 0.0).var(axis=0) - own, 0.0)
    ratio = np.where(added > 0.0, signal / np.maximum(signal + added, 1e-300), 1.0)
    result: FloatArray = np.where(known, ratio, 0.0)
    return result


def nearest_noisy(
    point: FloatArray,
    noise: FloatArray,
    centroids: FloatArray,
    centroid_noise: FloatArray,
    names: Sequence[str],
) -> ClusterAssignment:
    """The nearest centroid by weighted distance; it abstains if noise may have decided.

    centroids, centroid_noise: (M, L), with M at least 1. The distances in the answer are not weighted,
    because a point may be far from all centroids in coordinates in which these do not differ. The confidence
    is that of the weighted distances. Without noise and unknown coordinates the answer is that of `nearest`.
    """
    both = noise + centroid_noise
    weights = trust(noise, centroids, centroid_noise)
    every = np.where(np.isfinite(both).all(axis=0), 1.0, 0.0)
    rows = range(len(names))
    near = np.array([noisy_squared_distance(point, centroids[m], both[m], weights) for m in rows])
    far = [noisy_squared_distance(point, centroids[m], both[m], every) for m in rows]
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
    # The standard error of the difference of the two squared distances: the point's noise changes it along
    # the line between the centroids, a centroid's noise along the line from the point to that centroid.
    error = 2.0 * np.sqrt(
        _noise_along(centroids[runner_up] - centroids[best], noise, weights)
        + _noise_along(point - centroids[best], centroid_noise[best], weights)
        + _noise_along(point - centroids[runner_up], centroid_noise[runner_up], weights)
    )
    if weights.any() and near[runner_up] - near[best] >= SURE * error:
        return answer
    reason = f"noise may have decided between the clusters {answer.cluster} and {answer.runner_up}"
    return replace(answer, abstained=True, reason=reason)


def _noise_along(line: FloatArray, noise: FloatArray, weights: FloatArray) -> float:
    known = weights > 0.0
    return float(((weights * line)[known] ** 2) @ noise[known])


def noisy_centroids(points: FloatArray, noise: FloatArray, labels: Labels) -> tuple[FloatArray, FloatArray]:
    """(M, L) each: the mean of each cluster's known points in each coordinate, and the variance of its
    noise."""
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


def filled(points: FloatArray, instead: FloatArray | None = None) -> FloatArray:
    """(n, L) points whose unknown coordinates are filled in such that they make no difference.

    The values come from `instead`, (n, L), if it is given; else from the mean of all points that know the
    coordinate, or 0 if none does.
    """
    known = ~np.isnan(points)
    mean = np.where(known, points, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)
    result: FloatArray = np.where(known, points, mean)
    if instead is not None:
        result = np.where(known | np.isnan(instead), result, instead)
    return result
