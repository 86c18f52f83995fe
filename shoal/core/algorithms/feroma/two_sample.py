"""Could the data of two devices come from one distribution? A test on their descriptors.

For two devices, over the classes that both have,

    T = ( sum over classes and coordinates of (mean_a - mean_b)^2 / (var_a / n_a + var_b / n_b)
          + chi-square of the class counts ) / degrees of freedom

is about 1 if their data come from one distribution, whatever the data set, the model and the number of
samples. Otherwise it grows with the number of samples. If no class can be compared, the moments of all
samples together are compared instead.
"""

from collections.abc import Sequence

import numpy as np
from scipy.special import chdtri

from shoal.core.exchange.parts import Descriptor, FloatArray
from shoal.core.server_kit.descriptors import Table, aligned

ERROR = 0.01
"""How often chance by itself may make the most unlike of all pairs look unlike."""
CORRELATION = 2.0
"""The coordinates of a class are correlated, so T spreads like the statistic of this many times fewer
coordinates."""


def unlikeness(described: Sequence[Descriptor]) -> FloatArray:
    """(n, n): T of every pair, divided by the largest T that chance makes plausible among this many pairs of
    one distribution. Up to 1 therefore means alike. The diagonal is 0.

    If there is noise, a shift of all samples could be too faint in the single classes: all samples together
    are then tested separately as well.
    """
    table = aligned(described)
    pairs = max(len(described) * (len(described) - 1) / 2, 1.0)
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


def statistics(table: Table) -> tuple[FloatArray, FloatArray]:
    """(n, n) each: T of every pair, and its degrees of freedom.

    If a descriptor has noise, the variances of the noise are known and are added to those of means and
    counts. Classes that noise hides are left out, and all samples together are compared as well.
    """
    means, counts, known = table.means, table.counts, table.known  # (n, 1 + U, ...)
    errors = table.errors
    noisy = table.noisy
    statistic, free = np.zeros((2, len(means), len(means)))
    for index in range(len(means)):
        # The variance in the denominator is itself an estimate. With m degrees of freedom, the squared
        # t statistic has the mean m / (m - 2) instead of 1: this factor brings it back to 1.
        samples = counts[index] + counts - 2.0
        worth = np.maximum(samples - 2.0, 0.0) / np.maximum(samples, 1.0)
        shared = known[index] & known & (worth > 0.0)
        shared[:, 0] = ~shared[:, 1:].any(axis=1) | noisy[index] | noisy
        # A coordinate that never varies (a dead unit) carries no information, and would cause a division by
        # zero. The bound is each pair's own: one device's numbers must not change how others compare.
        least = 1e-12 * np.maximum(np.maximum(means[index] ** 2, means**2), 1.0)
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
