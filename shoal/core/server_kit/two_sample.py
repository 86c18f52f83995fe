"""Could the data of two devices come from one distribution? A test on their descriptors, instead of a
density.

FLUX's elbow looks at how densely devices lie, and so cannot tell "all alike" from "all different"; where many
devices differ, it chains different ones together. The descriptors contain enough for the direct question. For
two devices, over the classes that both have,

    T = ( sum over classes and coordinates of (mean_a - mean_b)^2 / (var_a / n_a + var_b / n_b)
          + chi-square of the class counts ) / degrees of freedom

is about 1 if their data come from one distribution, whatever the data set, the model and the number of
samples. Otherwise it grows with the number of samples. If no class can be compared, the moments of all
samples together are compared instead.
"""

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from scipy.special import chdtri

from shoal.core.exchange.parts import Descriptor, FloatArray
from shoal.core.server_kit.cluster import Labels, renumbered
from shoal.core.server_kit.descriptors import Table, aligned

ERROR = 0.01
"""How often chance by itself may make the most unlike of all pairs look unlike."""
CORRELATION = 2.0
"""The coordinates of a class are correlated, so T spreads like the statistic of this many times fewer
coordinates."""
CHANCE = 0.5
"""The typical unlikeness of a pair by chance, as a share of the largest that chance makes plausible."""
CLEAR = 1.5
"""A step in unlikeness by this ratio separates groups, once it is above chance. Smaller steps do not: samples
that depend on each other, such as those of one recording, make even similar devices look unlike, but
gradually and all to about the same degree."""


def unlikeness(described: Sequence[Descriptor]) -> FloatArray:
    """(n, n): T of every pair, divided by the largest T that chance makes plausible among this many pairs of
    one distribution. Up to 1 therefore means alike. The diagonal is 0.

    If there is noise, a shift of all samples could be too faint in the single classes: all samples together
    are then tested separately as well.
    """
    return _unlike(aligned(described), _pairs(len(described)))


def _unlike(table: Table, pairs: float) -> FloatArray:
    """`unlikeness` of the rows. pairs: the number of pairs that the rows are, or were chosen from."""
    tables = [table, table.without_classes()] if table.noisy.any() else [table]
    found = []
    for each in tables:
        statistic, free = statistics(each)
        fewer = np.maximum(free / CORRELATION, 1.0)
        found.append(statistic / (chdtri(fewer, ERROR / pairs / len(tables)) / fewer))
    result: FloatArray = np.max(found, axis=0)
    np.fill_diagonal(result, 0.0)
    return (result + result.T) / 2.0


def between(ones: Sequence[Descriptor], others: Sequence[Descriptor]) -> FloatArray:
    """(n, m): `unlikeness` of each of `ones` to each of `others`; up to 1 means alike."""
    return unlikeness([*ones, *others])[: len(ones), len(ones) :]


def _pairs(devices: int) -> float:
    return max(devices * (devices - 1) / 2, 1.0)


def statistics(table: Table) -> tuple[FloatArray, FloatArray]:
    """(n, n) each: T of every pair, and its degrees of freedom.

    If a descriptor has noise, the variances of the noise are known and are added to those of means and
    counts. Classes that noise hides are left out, and all samples together are compared as well.
    """
    means, counts, known = table.means, table.counts, table.known  # (n, 1 + U, ...)
    errors = table.errors
    # A coordinate that never varies (a dead unit) carries no information, and would cause a division by zero.
    least = 1e-12 * np.maximum(means**2, 1.0).max(axis=(0, 1))
    noisy = table.noisy
    statistic, free = np.zeros((2, len(means), len(means)))
    for index in range(len(means)):
        # The variance in the denominator is itself an estimate. With m degrees of freedom, the squared
        # t statistic has the mean m / (m - 2) instead of 1: this factor brings it back to 1.
        samples = counts[index] + counts - 2.0
        worth = np.maximum(samples - 2.0, 0.0) / np.maximum(samples, 1.0)
        shared = known[index] & known & (worth > 0.0)
        shared[:, 0] = ~shared[:, 1:].any(axis=1) | noisy[index] | noisy
        terms = (means[index] - means) ** 2 / (errors[index] + errors + least)
        moved = (terms.sum(axis=2) * worth * shared).sum(axis=1)
        skewed, classes = _counts_differ(counts[index], counts, table.count_noise[index], table.count_noise)
        free[index] = shared.sum(axis=1) * means.shape[2] + classes
        statistic[index] = (moved + skewed) / free[index]
    return statistic, free


def _counts_differ(
    one: FloatArray, others: FloatArray, noise: FloatArray, noises: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Chi-square statistic of one device's class counts against each of `others`, and its degrees of freedom.

    one, noise: (1 + U,), counts of all samples and of each class, and the variances of their noise, which are
    infinite where there is no count. others, noises: (n, 1 + U).
    """
    ratio = np.sqrt(np.maximum(others[:, :1], 1.0) / max(one[0], 1.0))
    both = np.maximum(one + others, 0.0)[:, 1:]
    added = (noise * ratio**2 + noises / ratio**2)[:, 1:]
    difference = (one * ratio - others / ratio)[:, 1:]
    counted = np.isfinite(added) & ((both > 0.0) | (added > 0.0))
    terms = np.where(counted, difference**2 / (np.maximum(both, 1.0) + added), 0.0)
    return terms.sum(axis=1), np.maximum(counted.sum(axis=1) - 1.0, 0.0)


def groups(described: Sequence[Descriptor], clusters: int = 0) -> Labels:
    """Devices by group, in such a way that no chain can form.

    clusters: the largest number of groups; 0 to find it.

    The linkage is complete: two groups are as unlike as their most unlike pair. Pooling all devices of one
    group and all of the other gives a second, sharper test, because chance and noise average out over the
    devices of a group; the larger of the two values counts. The result can be one group, or as many as there
    are devices.
    """
    if len(described) < 2:
        return np.zeros(len(described), np.int64)
    tree = linkage(squareform(unlikeness(described), checks=False), "complete")
    # Heights must not decrease on the way up, or cutting the tree at a height would be ambiguous.
    tree[:, 2] = np.maximum.accumulate(np.maximum(tree[:, 2], _together(aligned(described), tree)))
    return cut(tree, clusters)


def _together(table: Table, tree: FloatArray) -> FloatArray:
    """(n - 1,): how unlike the two sides of each merge are if each is pooled into one device."""
    devices = len(table.counts)
    members = [[index] for index in range(devices)]
    found = []
    for one, other in tree[:, :2].astype(int):
        found.append(_unlike(table.pooled([members[one], members[other]]), _pairs(devices))[0, 1])
        members.append(members[one] + members[other])
    return np.array(found)


def cut(tree: FloatArray, clusters: int = 0) -> Labels:
    """The groups of a tree, (n - 1, 4) as `linkage` returns it, whose heights are unlikeness.

    From the bottom up, the tree is cut at the first step that is `CLEAR` and ends above chance, which is up
    to 1. If devices differ by degrees and no step is clear, it is cut at the largest one.
    """
    if clusters:
        return renumbered(fcluster(tree, clusters, "maxclust"))
    # Below CHANCE all heights count as equal: ratios of tiny values would look like clear steps.
    heights = np.maximum(np.concatenate([[CHANCE], tree[:, 2]]), CHANCE)
    steps = np.where(heights[1:] > 1.0, heights[1:] / heights[:-1], 0.0)
    if not steps.any():
        return np.zeros(len(heights), np.int64)
    first = int(np.argmax(steps >= CLEAR if steps.max() >= CLEAR else steps))
    return renumbered(fcluster(tree, (heights[first] + heights[first + 1]) / 2.0, "distance"))
