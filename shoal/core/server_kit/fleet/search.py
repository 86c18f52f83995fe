"""The partition of a fleet with the best score: groups are split, devices moved and groups merged, as long as
the score grows.

A search begins with one group. The scales of a fleet depend on its partition, though: if all devices differ,
one group makes their differences look like the devices' own effects. So a second search begins with the
groups that are found if devices are supposed to have no effects of their own, and the better result counts.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh

from shoal.core.exchange.parts import Descriptor, FloatArray
from shoal.core.server_kit.clustering.cluster import Labels, renumbered
from shoal.core.server_kit.fleet.evidence import Evidence, evidence
from shoal.core.server_kit.fleet.model import Model, fitted, prior, usual_ranks

CLIMBS = 30
"""Times that the scales are fitted again at most."""
SWEEPS = 4
"""Times that all devices are tried in other groups before the scales are fitted again."""
NEAREST = 8
"""A device, or a group, is tried in this many groups: those whose means are nearest."""
DIRECTIONS = 3
"""A group is tried to be split along this many principal directions."""
MIN_GAIN = 1e-6
"""A change must raise the score by this: less could be rounding, and the search would not end."""
CHUNK = 1 << 21
"""Numbers that are compared at a time, which bounds memory."""


def groups(described: Sequence[Descriptor], clusters: int = 0, shares: bool = True) -> Labels:
    """(devices,): the group of each device, numbered by first occurrence.

    clusters: the number of groups; 0 to find it. shares: whether groups may differ by how often the classes
    occur.
    """
    devices = len(described)
    if devices < 2:
        return np.zeros(devices, np.int64)
    # Sums of floating-point numbers depend on their order, so the devices are put into one of their own.
    found = evidence(described, shares)
    order = np.lexsort(found.values.T[::-1])
    found = Evidence(
        found.values[order], found.errors[order], found.unit, found.starts, found.kinds, found.width
    )
    labels = np.empty(devices, np.int64)
    labels[order] = _best(found, min(clusters, devices))
    return renumbered(labels)


def joined(
    described: Sequence[Descriptor], labels: Labels, newcomers: Sequence[Descriptor], shares: bool = True
) -> Labels:
    """(newcomers,): the groups of devices that come after the groups were formed; the others stay. A number
    beyond those in `labels` is a new group, for a device whose data fit none.

    described, labels: the devices with a group, at least one. shares: as in `groups`.
    """
    known = len(described)
    found = evidence([*described, *newcomers], shares)
    model = fitted(found, _extended(labels, len(newcomers)))
    extended = np.concatenate([labels, np.full(len(newcomers), -1, np.int64)])
    state = _Groups(model, extended)
    for device in range(known, known + len(newcomers)):
        state.add(device, state.best(device))
    return state.labels[known:]


def _extended(labels: Labels, newcomers: int) -> Labels:
    """Newcomers as groups of their own: they say nothing yet about the scatter within groups."""
    return np.concatenate([labels, labels.max() + 1 + np.arange(newcomers)])


def _best(found: Evidence, clusters: int) -> Labels:
    one = np.zeros(found.devices, np.int64)
    grown = _climb(found, one, clusters, usual_ranks(found), own_effects=False)
    ranks = fitted(found, grown, own_effects=False).ranks
    starts = [one] if not grown.any() else [grown, one]
    results = [_climb(found, start, clusters, ranks) for start in starts]
    tried = [(labels, fitted(found, labels, ranks)) for labels in results]
    tried.append((grown, fitted(found, grown, ranks, own_effects=False)))
    if not clusters:
        tried.append((one, fitted(found, one, ranks)))
    return max(tried, key=lambda each: each[1].total(each[0]))[0]


def _climb(
    found: Evidence, labels: Labels, clusters: int, ranks: FloatArray, own_effects: bool = True
) -> Labels:
    for _ in range(CLIMBS):
        before = labels
        model = fitted(found, labels, ranks, own_effects)
        labels = _split(model, labels, clusters)
        for _ in range(SWEEPS):
            labels, moved = _moved(model, labels, fixed=bool(clusters))
            if not moved:
                break
        labels = _merged(model, labels, clusters)
        if np.array_equal(before, labels):
            break
    return labels


# -- splits -------------------------------------------------------------------------------------------------


def _split(model: Model, labels: Labels, clusters: int) -> Labels:
    """Each group in two, if that raises the score; with a number of clusters, the best ones as long as there
    are too few groups."""
    proposals = []
    for group in range(int(labels.max()) + 1):
        members = np.flatnonzero(labels == group)
        gain, side = _best_split(model, members)
        if side is not None and (clusters or gain > MIN_GAIN):
            proposals.append((gain, members[side]))
    missing = clusters - int(labels.max()) - 1 if clusters else len(proposals)
    labels = labels.copy()
    for _, members in sorted(proposals, key=lambda each: -each[0])[: max(missing, 0)]:
        labels[members] = labels.max() + 1
    return labels


def _best_split(model: Model, members: npt.NDArray[np.int64]) -> tuple[float, npt.NDArray[np.bool_] | None]:
    """The gain of the best split of a group, and the members that leave."""
    if len(members) < 2:
        return -np.inf, None
    precision, moved = model.precision[members], model.moved[members]
    whole, sums = precision.sum(axis=0), moved.sum(axis=0)
    best: tuple[float, npt.NDArray[np.bool_] | None] = (-np.inf, None)
    together = float(model.score(whole, sums) + prior(len(members)))
    for side in _candidates(precision, moved - precision * (sums / np.maximum(whole, 1e-300))):
        side = _refined(model, precision, moved, side)
        if side.all() or not side.any():
            continue
        left, taken = precision[side].sum(axis=0), moved[side].sum(axis=0)
        parts = model.score(np.stack([left, whole - left]), np.stack([taken, sums - taken])).sum()
        sizes = np.array([side.sum(), len(members) - side.sum()])
        gain = float(parts + prior(sizes).sum()) - together
        if gain > best[0]:
            best = (gain, side)
    return best


def _candidates(precision: FloatArray, moved: FloatArray) -> list[npt.NDArray[np.bool_]]:
    """Ways to split: along each principal direction of the residuals at zero and at the widest gap, and the
    device that is farthest from the mean."""
    root = np.sqrt(precision)
    rows = moved / np.where(root > 0.0, root, 1.0)
    size = len(rows)
    if size <= rows.shape[1]:
        positions = _principal(rows @ rows.T, size - 1)
    else:
        positions = rows @ _principal(rows.T @ rows, rows.shape[1])
    found = [np.arange(size) == int(np.argmax((rows**2).sum(axis=1)))]
    for position in positions.T:
        ascending = np.sort(position)
        widest = int(np.argmax(np.diff(ascending)))
        found.append(position > ascending[widest])
        found.append(position > 0.0)
    return found


def _principal(square: FloatArray, most: int) -> FloatArray:
    """(n, up to DIRECTIONS): the eigenvectors of the largest eigenvalues of a symmetric (n, n) matrix."""
    last = len(square) - 1
    vectors: FloatArray = eigh(square, subset_by_index=(last - min(DIRECTIONS, most) + 1, last))[1][:, ::-1]
    return vectors


def _refined(
    model: Model, precision: FloatArray, moved: FloatArray, side: npt.NDArray[np.bool_]
) -> npt.NDArray[np.bool_]:
    """K-means with two means, each number weighed by its precision."""
    weights = model.evidence.of_blocks(model.ranks)
    for _ in range(10):
        if side.all() or not side.any():
            break
        means = [
            moved[part].sum(axis=0) / np.maximum(precision[part].sum(axis=0), 1e-300)
            for part in (~side, side)
        ]
        # The squares of the values themselves are in both distances and cancel.
        far = [(precision @ (weights * mean**2)) - 2.0 * (moved @ (weights * mean)) for mean in means]
        closer = far[1] < far[0]
        if (closer == side).all():
            break
        side = closer
    return side


# -- moves --------------------------------------------------------------------------------------------------


class _Groups:
    """The sums of each group, kept as devices come and go. Devices with the label -1 are in no group."""

    def __init__(self, model: Model, labels: Labels) -> None:
        inside = labels >= 0
        self.model = model
        self.labels = labels.copy()
        self.sizes = np.bincount(labels[inside]).astype(np.float64)
        self.precision, self.moved = np.zeros((2, len(self.sizes), model.precision.shape[1]))
        np.add.at(self.precision, labels[inside], model.precision[inside])
        np.add.at(self.moved, labels[inside], model.moved[inside])
        self.scores = model.score(self.precision, self.moved)

    def add(self, device: int, group: int) -> None:
        if group == len(self.sizes):
            self.sizes, self.scores = np.append(self.sizes, 0.0), np.append(self.scores, 0.0)
            self.precision, self.moved = (
                np.vstack([rows, np.zeros_like(rows[:1])]) for rows in (self.precision, self.moved)
            )
        self._change(device, group, 1.0)
        self.labels[device] = group

    def remove(self, device: int) -> None:
        self._change(device, int(self.labels[device]), -1.0)
        self.labels[device] = -1

    def _change(self, device: int, group: int, sign: float) -> None:
        self.sizes[group] += sign
        self.precision[group] += sign * self.model.precision[device]
        self.moved[group] += sign * self.model.moved[device]
        if not self.sizes[group]:
            self.precision[group] = self.moved[group] = 0.0
        self.scores[group] = self.model.score(self.precision[group], self.moved[group])

    def best(self, device: int, fixed: bool = False) -> int:
        """The group of a device that is in none now; a new number for a group of its own, unless `fixed`."""
        precision, moved = self.model.precision[device], self.model.moved[device]
        some = np.flatnonzero(self.sizes > 0.0)
        if len(some) > NEAREST:
            some = some[_near(self.model, self.precision[some], self.moved[some], precision, moved)[0]]
        gains = self.model.score(self.precision[some] + precision, self.moved[some] + moved)
        gains = gains - self.scores[some] + np.log(self.sizes[some])
        best = int(np.argmax(gains))
        alone = float(self.model.score(precision, moved) + prior(1))
        if fixed or gains[best] >= alone:
            return int(some[best])
        empty = np.flatnonzero(self.sizes == 0.0)
        return int(empty[0]) if len(empty) else len(self.sizes)


def _moved(model: Model, labels: Labels, fixed: bool) -> tuple[Labels, int]:
    """The labels after each device has been tried in other groups, and the number of those that moved.

    fixed: no device begins a group, and none leaves its group empty.
    """
    state, moves = _Groups(model, labels), 0
    for device in _restless(model, state, fixed):
        own = int(state.labels[device])
        if fixed and state.sizes[own] < 2.0:
            continue
        state.remove(device)
        best = state.best(device, fixed)
        state.add(device, best)
        moves += best != own and state.sizes[best] + state.sizes[own] > 1.0
    return renumbered(state.labels), moves


def _restless(model: Model, state: _Groups, fixed: bool) -> list[int]:
    """The devices that would rather be in another group as the groups are now; nearly all would not, and are
    found out together."""
    found: list[int] = []
    devices, numbers = model.precision.shape
    count = min(NEAREST, len(state.sizes))
    step = max(CHUNK // (numbers * max(count, 1)), 1)
    for first in range(0, devices, step):
        rows = np.arange(first, min(first + step, devices))
        precision, moved, own = model.precision[rows], model.moved[rows], state.labels[rows]
        near = _near(model, state.precision, state.moved, precision, moved)
        gains = model.score(state.precision[near] + precision[:, None], state.moved[near] + moved[:, None])
        gains = gains - state.scores[near] + np.log(np.maximum(state.sizes[near], 1e-300))
        gains = np.where(near == own[:, None], -np.inf, gains)
        rest, left = state.sizes[own] - 1.0, state.precision[own] - precision
        stays = state.scores[own] - model.score(left * (rest > 0.0)[:, None], state.moved[own] - moved)
        alone = model.score(precision, moved) + prior(np.ones(len(rows)))
        stays = np.where(rest > 0.0, stays + np.log(np.maximum(rest, 1.0)), alone)
        other = gains.max(axis=1, initial=-np.inf) if fixed else np.maximum(gains.max(axis=1), alone)
        found += rows[other > stays + MIN_GAIN].tolist()
    return found


def _near(
    model: Model, precision: FloatArray, moved: FloatArray, ones: FloatArray, theirs: FloatArray
) -> npt.NDArray[np.int64]:
    """(n, up to NEAREST): for each of n devices or groups, the groups whose means are nearest, by number.

    precision, moved: (groups, numbers). ones, theirs: the same of the devices or groups.
    """
    ones, theirs = np.atleast_2d(ones), np.atleast_2d(theirs)
    if len(precision) <= NEAREST:
        return np.broadcast_to(np.arange(len(precision)), (len(ones), len(precision)))
    weights = model.evidence.of_blocks(model.ranks)
    means = np.where(precision > 0.0, moved / np.maximum(precision, 1e-300), 0.0)
    far = ones @ (weights * means**2).T - 2.0 * (theirs @ (weights * means).T)
    return np.sort(np.argpartition(far, NEAREST - 1, axis=1)[:, :NEAREST], axis=1)


# -- merges -------------------------------------------------------------------------------------------------


def _merged(model: Model, labels: Labels, clusters: int) -> Labels:
    """The labels after groups were merged as long as that raises the score; with a number of clusters, as
    long as there are too many groups."""
    while (count := int(labels.max()) + 1) > max(clusters, 1):
        precision, moved = model.sums(labels)
        sizes, scores = np.bincount(labels), model.score(precision, moved)
        near = _near(model, precision, moved, precision, moved)
        ones, others = np.repeat(np.arange(count), near.shape[1]), near.ravel()
        ones, others = ones[ones != others], others[ones != others]
        gains = _together(model, precision, moved, ones, others) - scores[ones] - scores[others]
        gains += prior(sizes[ones] + sizes[others]) - prior(sizes[ones]) - prior(sizes[others])
        pairs = _disjoint(gains, ones, others, count - clusters if clusters else 0)
        if not pairs:
            break
        for one, other in pairs:
            labels = np.where(labels == other, one, labels)
        labels = renumbered(labels)
    return labels


def _together(
    model: Model, precision: FloatArray, moved: FloatArray, ones: Labels, others: Labels
) -> FloatArray:
    step = max(CHUNK // precision.shape[1], 1)
    parts = [
        model.score(precision[a] + precision[b], moved[a] + moved[b])
        for a, b in (
            (ones[first : first + step], others[first : first + step]) for first in range(0, len(ones), step)
        )
    ]
    return np.concatenate(parts) if parts else np.zeros(0)


def _disjoint(gains: FloatArray, ones: Labels, others: Labels, needed: int) -> list[tuple[int, int]]:
    """The pairs with the largest gains, each group in one of them at most: those above zero, or the `needed`
    best."""
    found, taken = list[tuple[int, int]](), set[int]()
    for index in np.argsort(-gains, kind="stable").tolist():
        if (len(found) >= needed) if needed else (gains[index] <= MIN_GAIN):
            break
        one, other = int(ones[index]), int(others[index])
        if one not in taken and other not in taken:
            found.append((one, other))
            taken |= {one, other}
    return found
