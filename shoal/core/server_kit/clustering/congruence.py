"""Groups of devices by how their updates of one model differ, where those differ by more than chance.

Devices whose data are alike pull a common model the same way, apart from what their few samples happen to be.
So a device is about as near to any other of them, and in a partition of such a fleet hardly nearer to its own
group than to the next one. Updates count by their direction, so that no length matters.

A few liars who agree must neither hide groups nor make some. Each device counts once and up to a limit, by
its own row: whatever it sends, it changes one entry in the rows of others.

- Copies of an update, or of one another, count as no nearer than neighbors usually are (`_comparable`).
- A mean of others' updates is more like each of them than they are, as chance cancels in it. So what a device
  has in common with nearly everyone does not count beyond what is usual.
- `_clearness`: a group of liars is compared with as one group, however many they are and wherever they point.
"""

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit.clustering.cluster import Labels, agglomerated
from shoal.core.server_kit.clustering.distances import cosines

MIN_CLEARNESS, CHANCE_AMONG_FEW = 2.5, 12.0
"""Devices have to be this many standard deviations nearer to their own group than to the next one, and with
n devices CHANCE_AMONG_FEW / n more, for among few devices some partition always looks good. Of drawn fleets
that are alike, 99 % had at most 4.1 with 6 devices, 3.0 with 8, 2.1 with 12 and 1.7 with 30; digits and
Fashion-MNIST 2.4, also with 20 to 300 and 50 to 2,000 samples. Fleets of digits in groups had 3.6 to 25
(seeds 41 and 42). Where the chance in drawn updates differs between devices by a factor of 16, a fifth to two
fifths look like groups."""
NEARLY_AS_CLEAR = 0.9
"""Of partitions that are nearly as clear as the best one, the one with the fewest groups counts."""
COMMON_SHARE = 0.75
"""The share of a device's lowest similarities that tell what it has in common with nearly everyone."""
MAX_CLEARNESS, MAX_SCATTER = 2.0, 3.0
"""In units of the middle device: how much nearer to its group a device counts as being, and how much its row
counts as scattering."""
MIN_DEVICES, MAX_DEVICES = 6, 1000
"""Devices: among fewer any angles look like groups, and among more, each pair of updates costs too much."""
MAX_GROUPS = 32


def can_tell(devices: int) -> bool:
    """Whether updates of this many devices can show groups: else no one needs their inner products."""
    return MIN_DEVICES <= devices <= MAX_DEVICES


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
    if not can_tell(devices):
        return one
    alike = _comparable(cosines(products))
    apart = alike.max() - alike
    np.fill_diagonal(apart, 0.0)
    numbers = range(2, min(devices // 2, MAX_GROUPS) + 1)
    found = [agglomerated(apart, "average", clusters=number) for number in numbers]
    clear = np.array([_clearness(alike, labels) for labels in found])
    if clear.max() < MIN_CLEARNESS + CHANCE_AMONG_FEW / devices:
        return one
    return found[int(np.argmax(clear >= NEARLY_AS_CLEAR * clear.max()))]


def _comparable(alike: FloatArray) -> FloatArray:
    """(n, n): the similarities of devices as they count, 0 on the diagonal. alike: (n, n) cosines."""
    found: FloatArray = alike.copy()
    np.fill_diagonal(found, -1.0)
    np.minimum(found, np.sort(found.max(axis=1))[(len(found) - 1) // 2], out=found)
    others = np.sort(found, axis=1)[:, 1:]
    common = others[:, : int(np.ceil(COMMON_SHARE * others.shape[1]))].mean(axis=1)
    more = np.maximum(common - np.median(common), 0.0)
    found -= more[:, None] + more
    np.fill_diagonal(found, 0.0)
    return found


def _clearness(alike: FloatArray, labels: Labels) -> float:
    """How much nearer devices are to their own group than to the next one, in standard deviations of what
    they have in common with the devices of one group. A device that is alone is no nearer to itself.

    alike: (n, n), 0 on the diagonal.
    """
    rows = np.arange(len(labels))
    member = np.eye(int(labels.max()) + 1)[labels]
    mates = member.sum(axis=0) - member
    to_groups = np.divide(alike @ member, mates, out=np.full_like(mates, -np.inf), where=mates > 0.0)
    own, others = to_groups[rows, labels], to_groups.copy()
    others[rows, labels] = -np.inf
    nearer = np.where(np.isfinite(own), own - others.max(axis=1), 0.0)
    most = MAX_CLEARNESS * abs(float(np.median(nearer)))
    left = alike - np.where(np.isfinite(to_groups), to_groups, 0.0)[:, labels]
    np.fill_diagonal(left, 0.0)
    free = np.maximum(len(labels) - 1 - (mates > 0.0).sum(axis=1), 1)
    scatter = np.square(left).sum(axis=1) / free
    usual = np.minimum(scatter, MAX_SCATTER * np.median(scatter)).mean()
    return float(np.clip(nearer, -most, most).mean() / max(float(np.sqrt(usual)), 1e-9))
