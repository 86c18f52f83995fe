"""Which points belong together. Labels are 0, 1, ... for each point, in the order of the points.

scikit-learn and kneed, which loads matplotlib, are imported where they are used: a server whose runs need
neither does without their 100 MB.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import squareform

from shoal.core.exchange.parts import FloatArray
from shoal.core.types import DeviceId, ModelKey

Labels = npt.NDArray[np.int64]

SLACK = 1e-9
"""Relative: far above rounding, far below any difference between devices."""


def adaptive_dbscan(points: FloatArray, scaling: float = 1.0) -> Labels:
    """Density clustering whose radius comes from the points (FLUX section 4.2.1 and appendix D.2).

    points: (n, L). The radius is the elbow of the sorted distances to the nearest other point, times
    `scaling`; any pair within it joins; a point that joins none is a cluster of its own, after the others.

    The paper says "second-nearest neighbour": in the call that made its tables the nearest one is the
    point itself, so it is the first other point.
    """
    if len(points) < 2:
        return np.zeros(len(points), np.int64)
    from sklearn.cluster import DBSCAN
    from sklearn.neighbors import NearestNeighbors

    distances, _ = NearestNeighbors(n_neighbors=2).fit(points).kneighbors(points)
    # The elbow is some point's own distance to its neighbour: without slack the last bit would decide whether
    # the two join, and another machine would decide otherwise.
    radius = elbow(np.sort(distances[:, 1])) * scaling * (1.0 + SLACK)
    if radius <= 0.0:  # the elbow lies among points that are the same: those, and only those, join
        radius = np.finfo(np.float64).tiny
    labels: Labels = DBSCAN(eps=radius, min_samples=2).fit_predict(points).astype(np.int64)
    return with_singletons(labels)


def elbow(curve: FloatArray) -> float:
    """The value of an ascending curve where it turns from dense to sparse: its knee (Kneedle).

    Where there is no knee (a flat or straight curve, about one random curve in twenty), the authors' code
    stops with an error. Here: the highest value when no value is over twice the median, which makes one
    cluster of points that all lie alike; else the middle of the widest gap.
    """
    from kneed import KneeLocator

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "no knee found": that is handled here
        found = KneeLocator(range(len(curve)), curve, curve="convex", direction="increasing").elbow
    if found is not None:
        return float(curve[int(found)])
    if curve[-1] <= 2.0 * np.median(curve):
        return float(curve[-1])
    widest = int(np.argmax(np.diff(curve)))
    return float(curve[widest] + curve[widest + 1]) / 2.0


def with_singletons(labels: Labels) -> Labels:
    """Labels in which every noise point (-1) has a cluster of its own, numbered after the others."""
    result = labels.copy()
    noise = np.flatnonzero(labels < 0)
    result[noise] = np.arange(len(noise)) + labels.max(initial=-1) + 1
    return result


def renumbered(labels: npt.NDArray[np.integer[Any]]) -> Labels:
    """The same groups, numbered 0, 1, ... in the order in which each is first met."""
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
    """Groups that were merged step by step, the two nearest at each. distances: (n, n), symmetric.

    method: how far two groups are apart, as scipy's `linkage` names it; "ward" wants Euclidean distances.
    clusters: at most so many groups; fewer where there are fewer points, or where those left are the same.
    below: or instead, only groups at most so far apart are merged.
    """
    if len(distances) < 2:
        return np.zeros(len(distances), np.int64)
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
    """Groups of devices under the names that most of their devices had before, each name once.

    labels: (n,) 0, 1, ...; at most as many groups as `names`. A group without such a name gets a free one.
    """
    overlap = np.zeros((int(labels.max()) + 1, len(names)))
    for device, label in zip(devices, labels, strict=True):
        if before.get(device) in names:
            overlap[label, names.index(before[device])] += 1.0
    # Of names that suit as well, the first: so that the result does not hang on how the solver breaks ties.
    rows, columns = linear_sum_assignment(-overlap + 1e-9 * np.arange(len(names)))
    name = {int(row): names[int(column)] for row, column in zip(rows, columns, strict=True)}
    return {device: name[int(label)] for device, label in zip(devices, labels, strict=True)}
