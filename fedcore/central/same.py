"""Could two devices' data come from one distribution? A test on their descriptors, instead of a density.

FLUX's elbow asks how densely devices lie, and so cannot tell "all alike" from "all different"; where devices
differ a lot it chains unlike ones together. The descriptors carry enough to ask the right question. For two
devices, over the classes that both have,

    T = ( sum over classes and coordinates of (mean_a - mean_b)^2 / (var_a / n_a + var_b / n_b)
          + chi-square of the class counts ) / degrees of freedom

is about 1 when their data come from one distribution, whatever the data set, the model and the number of
samples, and grows with the number of samples when they do not.
"""

from collections.abc import Sequence

import numpy as np
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform

from fedcore.central.cluster import Labels, renumbered
from fedcore.central.descriptors import FEWEST
from fedcore.parts import Descriptor, Vector

CHANCE = 2.0
"""T that chance may reach: twice what it is on the average under one distribution. The coordinates of a class
are correlated, so T spreads more than its degrees of freedom say."""


def unlikeness(described: Sequence[Descriptor]) -> Vector:
    """(n, n): T of every pair, 0 on the diagonal. Descriptors with classes, all of one shape."""
    means = np.stack([one.means[1:] for one in described])  # (n, U, l)
    counts = np.stack([one.counts[1:] for one in described])  # (n, U)
    spread = np.stack([one.deviations[1:] for one in described]) ** 2
    errors = spread / np.maximum(counts, 1.0)[:, :, None]  # variance of each mean
    # A coordinate that never moves (a dead unit) says nothing, and would divide by nothing.
    least = 1e-12 * np.maximum(means**2, 1.0).max(axis=(0, 1))
    result = np.zeros((len(described), len(described)))
    for index in range(len(described)):
        shared = (counts[index] >= FEWEST) & (counts >= FEWEST)  # (n, U)
        terms = (means[index] - means) ** 2 / (errors[index] + errors + least)
        moved = (terms.sum(axis=2) * shared).sum(axis=1)
        skewed, free = _counts_differ(counts[index], counts)
        result[index] = (moved + skewed) / np.maximum(shared.sum(axis=1) * means.shape[2] + free, 1.0)
    np.fill_diagonal(result, 0.0)
    return (result + result.T) / 2.0


def _counts_differ(one: Vector, others: Vector) -> tuple[Vector, Vector]:
    """Chi-square statistic of one device's class counts (U,) against each of `others` (n, U), and its degrees
    of freedom."""
    total, totals = max(one.sum(), 1.0), np.maximum(others.sum(axis=1, keepdims=True), 1.0)
    both = one + others
    difference = one * np.sqrt(totals / total) - others * np.sqrt(total / totals)
    terms = np.where(both > 0.0, difference**2 / np.maximum(both, 1.0), 0.0)
    return terms.sum(axis=1), np.maximum((both > 0.0).sum(axis=1) - 1.0, 0.0)


def groups(unlike: Vector) -> Labels:
    """Devices that chance alone could tell apart, grouped so that no chain can form.

    Complete linkage: two groups are as unlike as their most unlike pair. The tree is cut where the unlikeness
    takes its largest step, as a ratio, from what merged before (at least 1, which is "alike") to what would
    merge next; below `CHANCE` everything merges. So it can find one group, and as many as there are devices.
    """
    if len(unlike) < 2:
        return np.zeros(len(unlike), np.int64)
    tree = linkage(squareform(unlike, checks=False), "complete")
    heights = np.concatenate([[1.0], np.maximum(tree[:, 2], 1.0)])
    steps = np.where(heights[1:] > CHANCE, heights[1:] / heights[:-1], 0.0)
    if not steps.any():
        return np.zeros(len(unlike), np.int64)
    cut = int(np.argmax(steps))  # merges before this one are made
    return renumbered(fcluster(tree, (heights[cut] + heights[cut + 1]) / 2.0, "distance"))
