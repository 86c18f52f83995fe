"""Groups of devices by how their updates of one model differ, where those differ by more than chance.

Devices whose data are alike pull a common model the same way, apart from what their few samples happen to be.
So any two of them are about as far apart as any other two, and in a partition of such a fleet pairs within
groups are hardly nearer than pairs between them. Updates count by their direction, so that no length matters.
"""

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit.clustering.cluster import Labels, agglomerated
from shoal.core.server_kit.clustering.distances import cosines

CLEAR, CHANCE = 3.5, 10.0
"""Pairs within groups have to be this many standard deviations nearer than pairs between, and with n devices
CHANCE / n more, for among few devices some partition always looks good. In fleets that are alike the best one
had at most 4.9 with 6 devices, 4.7 with 8 and 3.3 with 12, among 1,500 drawn ones each, and 2.7 with digits
and breast cancer; fleets of digits in groups had 4.6 to 25 (seed 41)."""
FEWEST, MOST = 6, 1000
"""Devices: among fewer any angles look like groups, and among more, each pair of updates costs too much."""
MOST_GROUPS = 32


def congruent(products: FloatArray) -> Labels:
    """(n,): labels 0, 1, ... of the groups; all 0 where chance explains how the updates differ.

    products: (n, n), inner products of the updates, from `clustering.distances`.

    Example:
        >>> chance = np.random.default_rng(1)
        >>> middles = np.repeat(chance.normal(size=(2, 50)), 4, axis=0)
        >>> alike, apart = chance.normal(size=(8, 50)), middles + 0.5 * chance.normal(size=(8, 50))
        >>> [congruent(each @ each.T).tolist() for each in (alike, apart)]
        [[0, 0, 0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 1, 1, 1, 1]]
    """
    devices = len(products)
    one = np.zeros(devices, np.int64)
    if not FEWEST <= devices <= MOST:
        return one
    alike = cosines(products)
    apart = 1.0 - alike
    np.fill_diagonal(apart, 0.0)
    numbers = range(2, min(devices // 2, MOST_GROUPS) + 1)
    found = [agglomerated(apart, "average", clusters=number) for number in numbers]
    clear = [_separation(alike, labels) for labels in found]
    best = int(np.argmax(clear))
    return found[best] if clear[best] >= CLEAR + CHANCE / devices else one


def _separation(alike: FloatArray, labels: Labels) -> float:
    """How much nearer pairs within groups are than pairs between, in standard deviations of both; 0 where
    there are too few pairs to tell."""
    upper = np.triu_indices(len(labels), 1)
    same, values = (labels[:, None] == labels)[upper], alike[upper]
    within, between = values[same], values[~same]
    if min(len(within), len(between)) < 2:
        return 0.0
    scatter = np.square(within - within.mean()).sum() + np.square(between - between.mean()).sum()
    return float((within.mean() - between.mean()) / max(np.sqrt(scatter / len(values)), 1e-9))
