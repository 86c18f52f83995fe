"""Groups of devices by how their updates of one model differ, where those differ by more than chance.

Devices whose data are alike pull a common model the same way, apart from what their few samples happen to be.
So the updates are brought to one length, and their mean, which all share, is taken away. What is left has an
angle for each pair of devices. In a fleet whose data are alike these angles differ by chance alone, about
-1 / (n - 1), and any partition of it has pairs within that are hardly nearer than pairs between.
"""

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit.clustering.cluster import Labels, agglomerated
from shoal.core.server_kit.clustering.distances import cosines

CLEAR = 6.0
"""How many standard deviations nearer pairs within groups have to be than pairs between them. In fleets that
are alike the best partition had less in all but 3 of 4,000 draws of six devices, and in 4,000 of eight;
fleets of digits in groups had 8 to 26 with 40 to 300 samples a device (seed 41)."""
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
    angles = cosines(products)
    angles = angles - angles.mean(axis=0) - angles.mean(axis=1)[:, None] + angles.mean()
    alike = cosines((angles + angles.T) / 2.0)
    apart = 1.0 - alike
    np.fill_diagonal(apart, 0.0)
    numbers = range(2, min(devices // 2, MOST_GROUPS) + 1)
    found = [agglomerated(apart, "average", clusters=number) for number in numbers]
    clear = [_separation(alike, labels) for labels in found]
    best = int(np.argmax(clear))
    return found[best] if clear[best] >= CLEAR else one


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
