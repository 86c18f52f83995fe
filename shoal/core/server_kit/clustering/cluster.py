"""Which points belong together. Labels are 0, 1, ... for each point, in the order of the points.

SciPy, scikit-learn and kneed, which loads matplotlib, are imported where they are used: a server whose runs
need none of them does without their 140 MB.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.exchange.parts import FloatArray
from shoal.core.types import DeviceId, ModelKey

Labels = npt.NDArray[np.int64]

SLACK = 1e-9
"""Relative tolerance: far above rounding errors, and far below any difference between devices."""


def adaptive_dbscan(points: FloatArray, scaling: float = 1.0) -> Labels:
    """Density clustering whose radius comes from the points (FLUX section 4.2.1 and appendix D.2).

    points: (n, L). The radius is the elbow of the sorted distances to the nearest other point, times
    `scaling`. Any two points within the radius are in one cluster; a point that is near no other is a cluster
    of its own, numbered after the others.

    The paper says "second-nearest neighbor": in the call that produced its tables the nearest point is the
    point itself, so the second-nearest is the first other point.
    """
    if len(points) < 2:
        return np.zeros(len(points), np.int64)
    from sklearn.cluster import DBSCAN
    from sklearn.neighbors import NearestNeighbors

    distances, _ = NearestNeighbors(n_neighbors=2).fit(points).kneighbors(points)
    # The elbow is the distance of some point to its neighbor: without slack the last bit would decide whether
    # the two are in one cluster, and another machine would decide differently.
    radius = elbow(np.sort(distances[:, 1])) * scaling * (1.0 + SLACK)
    if radius <= 0.0:  # the elbow is between identical points: only those are in one cluster
        radius = np.finfo(np.float64).tiny
    labels: Labels = DBSCAN(eps=radius, min_samples=2).fit_predict(points).astype(np.int64)
    return with_singletons(labels)


def elbow(curve: FloatArray) -> float:
    """The value of an ascending curve at its turn from dense to sparse: its knee (Kneedle).

    If there is no knee (a flat or straight curve, about one random curve in twenty), the authors' code stops
    with an error. Here the result is then the highest value, if no value is more than twice the median, so
    that points that are all about equally dense are one cluster; otherwise it is the middle of the widest
    gap.
    """
    from kneed import KneeLocator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "no knee found": this case is handled below
        found = KneeLocator(range(len(curve)), curve, curve="convex", direction="increasing").elbow
    if found is not None:
        return float(curve[int(found)])
    if curve[-1] <= 2.0 * np.median(curve):
        return float(curve[-1])
    widest = int(np.argmax(np.diff(curve)))
    return float(curve[widest] + curve[widest + 1]) / 2.0


def with_singletons(labels: Labels) -> Labels:
    """Labels in which every noise point (-1) is a cluster of its own, numbered after the others."""
    result = labels.copy()
    noise = np.flatnonzero(labels < 0)
    result[noise] = np.arange(len(noise)) + labels.max(initial=-1) + 1
    return result


def renumbered(labels: npt.NDArray[np.integer[Any]]) -> Labels:
    """The same groups, numbered 0, 1, ... in the order of their first points."""
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    result: Labels = rank[inverse].astype(np.int64)
    return result


def kmeans(points: FloatArray, clusters: int) -> Labels:
    """K-means with a known number of clusters, at most one for each distinct point (FLUX-prior, D.2)."""
    clusters = min(clusters, len(np.unique(points, axis=0)))
    from sklearn.cluster import KMeans

    labels: Labels = KMeans(clusters, random_state=42).fit_predict(points).astype(np.int64)
    return labels


def agglomerated(distances: FloatArray, method: str, *, clusters: int = 0, below: float = 0.0) -> Labels:
    """Groups from hierarchical clustering, which merges the two nearest groups at each step. distances: (n,
    n), symmetric.

    method: the distance of two groups, by the name that SciPy's `linkage` has for it; "ward" requires
    Euclidean distances.
    clusters: the largest number of groups; there are fewer if there are fewer points, or if the remaining
    ones are equal.
    below: the alternative to clusters: only groups up to this distance are merged.
    """
    if len(distances) < 2:
        return np.zeros(len(distances), np.int64)
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    tree = linkage(squareform(distances, checks=False), method)
    if 0 < clusters < len(distances):
        return renumbered(fcluster(tree, clusters, "maxclust"))
    return renumbered(fcluster(tree, 0.0 if clusters else below, "distance"))


def centroids(points: FloatArray, labels: Labels) -> FloatArray:
    """(M, L): the mean of each cluster's points (FLUX Algorithm 1, line 11)."""
    return np.stack([points[labels == label].mean(axis=0) for label in range(labels.max() + 1)])


def matched(
    devices: Sequence[DeviceId],
    labels: Labels,
    before: Mapping[DeviceId, ModelKey],
    names: Sequence[ModelKey],
) -> dict[DeviceId, ModelKey]:
    """Groups of devices under the names that most of their devices had before, each name at most once.

    labels: (n,) 0, 1, ...; at most as many groups as `names`. A group without such a name gets a free one.
    """
    from scipy.optimize import linear_sum_assignment

    overlap = np.zeros((int(labels.max()) + 1, len(names)))
    for device, label in zip(devices, labels, strict=True):
        if before.get(device) in names:
            overlap[label, names.index(before[device])] += 1.0
    # Among equally good names the first one wins, so that the result does not depend on the solver's ties.
    rows, columns = linear_sum_assignment(-overlap + 1e-9 * np.arange(len(names)))
    name = {int(row): names[int(column)] for row, column in zip(rows, columns, strict=True)}
    return {device: name[int(label)] for device, label in zip(devices, labels, strict=True)}
