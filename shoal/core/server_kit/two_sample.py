"""Could two devices' data come from one distribution? A test on their descriptors, instead of a density.

FLUX's elbow asks how densely devices lie, and so cannot tell "all alike" from "all different"; where devices
differ a lot it chains unlike ones together. The descriptors carry enough to ask the right question. For two
devices, over the classes that both have,

    T = ( sum over classes and coordinates of (mean_a - mean_b)^2 / (var_a / n_a + var_b / n_b)
          + chi-square of the class counts ) / degrees of freedom

is about 1 when their data come from one distribution, whatever the data set, the model and the number of
samples, and grows with the number of samples when they do not. Where no class can be compared, all samples
together are.
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
"""How often chance alone may make the most unlike of all pairs look unlike."""
CORRELATION = 2.0
"""The coordinates of a class are correlated, so T spreads like that of this many times fewer of them."""
CHANCE = 0.5
"""About what chance alone makes of a pair, as a share of the most that it could make."""
CLEAR = 1.5
"""A step in unlikeness by this ratio parts groups, once it is more than chance. Not every step does: samples
that hang together, such as those of one recording, make all like devices look unlike, but by degrees and all
about as much."""


def unlikeness(described: Sequence[Descriptor]) -> FloatArray:
    """(n, n): T of every pair, as a multiple of what chance alone could make of the most unlike of as many
    pairs under one distribution; so up to 1 means alike. 0 on the diagonal.

    Where noise makes classes faint, a shift of all samples would drown in them: it is then tested apart too.
    """
    return _unlike(aligned(described), _pairs(len(described)))


def _unlike(table: Table, pairs: float) -> FloatArray:
    """`unlikeness` of the rows, which are `pairs` pairs or are made of as many."""
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

    Of a descriptor with noise, the noise's variances are known: they are added to those of means and counts.
    Classes within noise are left out, and all samples together are compared as well.
    """
    means, counts, known = table.means, table.counts, table.known  # (n, 1 + U, ...)
    errors = table.errors
    # A coordinate that never moves (a dead unit) says nothing, and would divide by nothing.
    least = 1e-12 * np.maximum(means**2, 1.0).max(axis=(0, 1))
    noisy = table.noisy
    statistic, free = np.zeros((2, len(means), len(means)))
    for index in range(len(means)):
        # What a squared difference of means is worth when its variance was itself estimated from few samples.
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

    one, noise: (1 + U,), counts of all samples and of each class, and the variances of their noise, infinite
    where there is no count. others, noises: (n, 1 + U).
    """
    ratio = np.sqrt(np.maximum(others[:, :1], 1.0) / max(one[0], 1.0))
    both = np.maximum(one + others, 0.0)[:, 1:]
    added = (noise * ratio**2 + noises / ratio**2)[:, 1:]
    difference = (one * ratio - others / ratio)[:, 1:]
    counted = np.isfinite(added) & ((both > 0.0) | (added > 0.0))
    terms = np.where(counted, difference**2 / (np.maximum(both, 1.0) + added), 0.0)
    return terms.sum(axis=1), np.maximum(counted.sum(axis=1) - 1.0, 0.0)


def groups(described: Sequence[Descriptor], clusters: int = 0) -> Labels:
    """Devices by group, so that no chain can form.

    clusters: how many groups, at most; 0 where that is to be found.

    Complete linkage: two groups are as unlike as their most unlike pair; or as all of the one and all of the
    other, where that is more, for chance and noise fade over the devices of a group. It can find one group,
    and as many as there are devices.
    """
    if len(described) < 2:
        return np.zeros(len(described), np.int64)
    tree = linkage(squareform(unlikeness(described), checks=False), "complete")
    tree[:, 2] = np.maximum.accumulate(np.maximum(tree[:, 2], _together(aligned(described), tree)))
    return cut(tree, clusters)


def _together(table: Table, tree: FloatArray) -> FloatArray:
    """(n - 1,): how unlike the two sides of each merge are when each is taken as one device."""
    devices = len(table.counts)
    members = [[index] for index in range(devices)]
    found = []
    for one, other in tree[:, :2].astype(int):
        found.append(_unlike(table.pooled([members[one], members[other]]), _pairs(devices))[0, 1])
        members.append(members[one] + members[other])
    return np.array(found)


def cut(tree: FloatArray, clusters: int = 0) -> Labels:
    """The groups of a tree, (n - 1, 4) as `linkage` gives it, heights being unlikeness.

    Going up, it is cut at the first step that is `CLEAR` and leads above chance, which is up to 1; where
    devices differ by degrees and no step is clear, at the largest one.
    """
    if clusters:
        return renumbered(fcluster(tree, clusters, "maxclust"))
    heights = np.maximum(np.concatenate([[CHANCE], tree[:, 2]]), CHANCE)
    steps = np.where(heights[1:] > 1.0, heights[1:] / heights[:-1], 0.0)
    if not steps.any():
        return np.zeros(len(heights), np.int64)
    first = int(np.argmax(steps >= CLEAR if steps.max() >= CLEAR else steps))
    return renumbered(fcluster(tree, (heights[first] + heights[first + 1]) / 2.0, "distance"))
