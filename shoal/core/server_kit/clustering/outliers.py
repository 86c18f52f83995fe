"""Outliers among updates: a single hostile device should not decide the clusters of all others.

An algorithm that has to find K clusters gives one of them to a device that looks like no other, and the
honest devices share those that are left: one hostile update undoes their groups. An algorithm that measures
whether a cluster pulls apart measures that device. So outliers are set aside before the updates are
clustered: an update is one if it is much longer than is usual, or points away from the others as a whole,
and no other outlier points in the same direction. Two that stand out together are a group of their own. The
others are clustered, and an outlier joins the devices that it resembles most, in a cluster of three or
more: there the rule that combines models bounds what it can do.

A hostile device that reports an update of the usual length in a direction of its own cannot be
distinguished from an honest one with unusual data, and still gets a cluster. The preset `paper` of each
algorithm clusters as published.
"""

from collections.abc import Callable

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit.clustering.cluster import Labels, renumbered
from shoal.core.server_kit.clustering.distances import cosines

AGREED = 0.3
"""The cosine from which on two point in the same direction."""
LONG = 2.0
"""In median lengths. Honest devices with data of their own had 1.0 to 1.2."""
AWAY = -0.1
"""Mean cosine with all others. Honest devices with data of their own had -0.01 to 0.33. Both figures: digits,
levels 3, 5 and 8, ten devices, FedGroup and FL+HC, seeds 39 to 42."""
BOUNDED = 3
"""Devices that a cluster needs so that an outlier may join it, if there is such a cluster."""
DEVICES_PER_OUTLIER = 4
"""At most one of this many devices is set aside: more of them are no exceptions, but how the fleet is."""


def without_outliers(
    products: FloatArray, cluster: Callable[[FloatArray, Labels], Labels], aggregation: str
) -> Labels:
    """(n,): the clusters of n updates, none of which was made for an outlier.

    products: (n, n), inner products of the updates, from `clustering.distances`. cluster: labels 0, 1, ...
    from the inner products of some of them, and their indices. aggregation: how models are combined. With
    "mean", which bounds no device, the clusters are those of `cluster`.
    """
    everyone = np.arange(len(products))
    aside = outliers(products) if aggregation != "mean" else everyone[:0]
    kept = np.setdiff1d(everyone, aside)
    labels = cluster(products[np.ix_(kept, kept)], kept)
    if not len(aside):
        return labels
    alike, sizes = cosines(products), np.bincount(labels)
    joinable = np.flatnonzero(sizes >= min(BOUNDED, sizes.max()))
    found = np.empty(len(products), np.int64)
    found[kept] = labels
    for device in aside:
        near = [float(alike[device, kept[labels == label]].mean()) for label in joinable]
        found[device] = joinable[int(np.argmax(near))]
    return renumbered(found)


def outliers(products: FloatArray) -> Labels:
    """The indices of the outliers, those that point away the most first.

    >>> honest = np.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]])
    >>> updates = np.concatenate([honest, [[-9.0, 0.0]]])
    >>> outliers(updates @ updates.T).tolist()
    [4]
    """
    if len(products) < DEVICES_PER_OUTLIER:
        return np.zeros(0, np.int64)
    lengths = np.sqrt(np.diagonal(products))
    alike = cosines(products)
    np.fill_diagonal(alike, 0.0)
    mean = alike.sum(axis=1) / (len(alike) - 1)
    strange = np.flatnonzero((lengths > LONG * np.median(lengths)) | (mean < AWAY))
    single = strange[alike[np.ix_(strange, strange)].max(axis=1, initial=0.0) < AGREED]
    first: Labels = single[np.argsort(mean[single], kind="stable")][: len(products) // DEVICES_PER_OUTLIER]
    return first
