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
from scipy.stats import chi2

from fedcore.central.cluster import Labels, renumbered
from fedcore.central.descriptors import Table, aligned
from fedcore.parts import Descriptor, Vector

ERROR = 0.01
"""How often chance alone may make the most unlike of all pairs look unlike."""
CORRELATION = 2.0
"""The coordinates of a class are correlated, so T spreads like that of this many times fewer of them."""
CLEAR = 2.0
"""A step in unlikeness by this ratio parts groups. Not every step does: samples that were drawn several times
over make all like devices look unlike, but by degrees and all about as much."""


def unlikeness(described: Sequence[Descriptor]) -> Vector:
    """(n, n): T of every pair, as a multiple of what chance alone could make of the most unlike of as many
    pairs under one distribution; so up to 1 means alike. 0 on the diagonal.

    Where noise makes classes faint, a shift of all samples would drown in them: it is then tested apart too.
    """
    table = aligned(described)
    tables = [table, table.without_classes()] if table.noisy.any() else [table]
    pairs = max(len(described) * (len(described) - 1) / 2, 1.0)
    found = []
    for each in tables:
        statistic, free = statistics(each)
        fewer = np.maximum(free / CORRELATION, 1.0)
        found.append(statistic / (chi2.isf(ERROR / pairs / len(tables), fewer) / fewer))
    result: Vector = np.max(found, axis=0)
    np.fill_diagonal(result, 0.0)
    return (result + result.T) / 2.0


def between(ones: Sequence[Descriptor], others: Sequence[Descriptor]) -> Vector:
    """(n, m): `unlikeness` of each of `ones` to each of `others`; up to 1 means alike."""
    return unlikeness([*ones, *others])[: len(ones), len(ones) :]


def statistics(table: Table) -> tuple[Vector, Vector]:
    """(n, n) each: T of every pair, and its degrees of freedom.

    Of a descriptor with noise, the noise's variances are known: they are added to those of means and counts.
    Classes within noise are left out, and all samples together are compared as well.
    """
    means, counts, known = table.means, table.counts, table.known  # (n, 1 + U, ...)
    errors = table.variances / np.maximum(counts - 1.0, 1.0)[:, :, None]  # of each mean, without bias
    errors += table.mean_noise
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


def _counts_differ(one: Vector, others: Vector, noise: Vector, noises: Vector) -> tuple[Vector, Vector]:
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


def groups(unlike: Vector, clusters: int = 0) -> Labels:
    """Devices by group, so that no chain can form. unlike: (n, n), what `unlikeness` gives.

    clusters: how many groups, at most; 0 where that is to be found.

    Complete linkage: two groups are as unlike as their most unlike pair. Going up from alike (1), the tree is
    cut at the first step that is `CLEAR`; where devices differ by degrees and no step is, at the largest one.
    So it can find one group, and as many as there are devices.
    """
    if len(unlike) < 2:
        return np.zeros(len(unlike), np.int64)
    tree = linkage(squareform(unlike, checks=False), "complete")
    if clusters:
        return renumbered(fcluster(tree, clusters, "maxclust"))
    heights = np.concatenate([[1.0], np.maximum(tree[:, 2], 1.0)])
    steps = heights[1:] / heights[:-1]
    if steps.max() <= 1.0:
        return np.zeros(len(unlike), np.int64)
    cut = int(np.argmax(steps >= CLEAR if steps.max() >= CLEAR else steps))  # earlier merges are made
    return renumbered(fcluster(tree, (heights[cut] + heights[cut + 1]) / 2.0, "distance"))
