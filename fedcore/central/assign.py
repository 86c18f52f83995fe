"""Which cluster a device is put in, and with how much confidence."""

import numpy as np

from fedcore.central.cluster import Labels
from fedcore.parts import ClusterAssignment, Vector


def nearest(point: Vector, centroids: Vector, names: list[str]) -> ClusterAssignment:
    """The nearest centroid by Euclidean distance (FLUX eq. 9). point: (L,); centroids: (M, L), M >= 1.

    confidence is 1 - nearest / runner-up: 0 when the two are as near, 1 with one cluster alone.
    """
    distances = np.linalg.norm(centroids - point, axis=1)
    order = np.argsort(distances, kind="stable")
    first = float(distances[order[0]])
    if len(names) == 1:
        return ClusterAssignment(names[0], first, reason="the run has one cluster")
    second = float(distances[order[1]])
    confidence = 1.0 - first / second if second > 0.0 else 0.0
    return ClusterAssignment(names[order[0]], first, names[order[1]], second, confidence)


def reach(points: Vector, labels: Labels, centroids: Vector) -> Vector:
    """(M,): how far from its centroid a cluster may be taken to stretch: the farthest of its own points, or
    half-way to the nearest other centroid where that is farther (a cluster of one has no width to go by).

    One cluster alone of fewer than three points has neither: it stretches to infinity.
    """
    own = np.array(
        [np.linalg.norm(points[labels == m] - centre, axis=1).max() for m, centre in enumerate(centroids)]
    )
    if len(centroids) == 1:
        return own if len(points) > 2 else np.array([np.inf])
    apart = np.linalg.norm(centroids[:, None] - centroids[None], axis=2)
    np.fill_diagonal(apart, np.inf)
    stretch: Vector = np.maximum(own, apart.min(axis=1) / 2.0)
    return stretch


def mixing_weights(points: Vector, centroids: Vector) -> Vector:
    """(n, M) rows that sum to 1: how much of each cluster's model suits each point (FLUX D.3, "soft").

    Inverse squared distance; what is below an equal share 1/M is left out, the nearest never is, so that a
    point in the middle of a cluster has that cluster alone and few models travel.
    """
    distances = np.linalg.norm(points[:, None] - centroids[None], axis=2)
    closeness = 1.0 / np.maximum(distances, 1e-12) ** 2
    weights = closeness / closeness.sum(axis=1, keepdims=True)
    weights[weights < 1.0 / len(centroids)] = 0.0
    total: Vector = weights / weights.sum(axis=1, keepdims=True)
    return total
