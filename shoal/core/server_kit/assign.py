"""Which cluster a device is put in, and with how much confidence."""

from collections.abc import Sequence

import numpy as np

from shoal.core.exchange.parts import ClusterAssignment, Vector
from shoal.core.server_kit.cluster import Labels
from shoal.core.types import ModelKey

FAR = 1e150
"""As far as a coordinate counts, so that no device's numbers have infinite squares."""


def euclidean(points: Vector, centroids: Vector) -> Vector:
    """(n, M): distance of each point to each centroid. points: (n, L); centroids: (M, L)."""
    distances: Vector = np.linalg.norm(points[:, None] - centroids[None], axis=2)
    return distances


def divergence(points: Vector, samples: Vector, centroids: Vector) -> Vector:
    """(n, M): how much likelier two distributions make a device's samples and a cluster's than one does.

    points: (n, 2 l), means and then deviations of l coordinates; samples: (n,), behind each point; centroids:
    (M, 2 l) likewise. The root of minus twice the logarithm of the likelihood ratio, for each sample of as
    many on both sides, all coordinates normal and independent. So a coordinate counts by how much samples
    spread in it; and far away distances grow so slowly that no single coordinate decides.
    Its square, times `samples`, is no more than about chi-square of 2 l degrees of freedom by chance alone.
    """
    dims = points.shape[1] // 2
    points, centroids = np.clip(points, -FAR, FAR), np.clip(centroids, -FAR, FAR)
    # A coordinate that never moves (a dead unit) would divide by nothing.
    least = 1e-12 * max(float(np.square(centroids[:, :dims]).max()), 1.0)
    theirs = centroids[None, :, dims:] ** 2 + least
    # What n samples fall short of their distribution's variance on average, were it the cluster's.
    short = theirs / np.maximum(samples, 1.0)[:, None, None]
    own = points[:, None, dims:] ** 2 + short + least
    gaps = (points[:, None, :dims] - centroids[None, :, :dims]) ** 2
    ratio = 2.0 * np.log((own + theirs) / 2.0 + gaps / 4.0) - np.log(own) - np.log(theirs)
    distances: Vector = np.sqrt(np.maximum(ratio.sum(axis=2), 0.0))
    return distances


def nearest(point: Vector, centroids: Vector, names: Sequence[ModelKey]) -> ClusterAssignment:
    """The nearest centroid by Euclidean distance (FLUX eq. 9). point: (L,); centroids: (M, L), M >= 1."""
    return nearest_of(names, euclidean(point[None], centroids)[0].tolist())


def nearest_of(names: Sequence[ModelKey], distances: Sequence[float]) -> ClusterAssignment:
    """The cluster of the least distance, or loss: at least one. confidence: 1 - least / second, 0 to 1: 0
    when the two are as near, 1 with one cluster alone."""
    order = np.argsort(distances, kind="stable")
    first = distances[order[0]]
    if len(names) == 1:
        return ClusterAssignment(names[0], first, reason="the run has one cluster")
    second = distances[order[1]]
    confidence = float(np.clip(1.0 - first / second, 0.0, 1.0)) if second > 0.0 else 0.0
    return ClusterAssignment(names[order[0]], first, names[order[1]], second, confidence)


def reach(apart: Vector, labels: Labels, between: Vector) -> Vector:
    """(M,): how far from its centroid a cluster may be taken to stretch: the farthest of its own points, or
    half-way to the nearest other centroid where that is farther (a cluster of one has no width to go by).

    apart: (n, M), of points to centroids; between: (M, M), of centroids.
    One cluster alone of fewer than three points has neither: it stretches to infinity.
    """
    own = np.array([apart[labels == m, m].max() for m in range(len(between))])
    if len(between) == 1:
        return own if len(apart) > 2 else np.array([np.inf])
    stretch: Vector = np.maximum(own, np.where(np.eye(len(between)) > 0, np.inf, between).min(axis=1) / 2.0)
    return stretch


def mixing_weights(points: Vector, centroids: Vector) -> Vector:
    """(n, M) rows that sum to 1: how much of each cluster's model suits each point (FLUX D.3, "soft").

    Inverse squared distance; what is below an equal share 1/M is left out, the nearest never is, so that a
    point in the middle of a cluster has that cluster alone and few models travel.
    """
    closeness = 1.0 / np.maximum(euclidean(points, centroids), 1e-12) ** 2
    weights = closeness / closeness.sum(axis=1, keepdims=True)
    weights[weights < 1.0 / len(centroids)] = 0.0
    total: Vector = weights / weights.sum(axis=1, keepdims=True)
    return total
