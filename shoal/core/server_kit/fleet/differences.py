"""What separates the clusters of a run: which part of the distribution of their data differs.

FLUX (C.4) and CORNFLQS (2.1) tell four kinds of difference apart, and each asks for something else:

    P(X)    the samples look different, those of all classes: another camera, say, or another site
    P(X|Y)  the samples of some classes look different
    P(Y)    the classes are not as frequent
    P(Y|X)  the same samples have other labels; no model can tell such groups apart without labels

The kind is found by what devices have released for the grouping, so that it costs nothing more: how many
samples of each class there are, and where their latents lie. Two clusters are compared class by class, in
units of how much samples of one class scatter. Noise for privacy makes all of that uncertain: a difference
counts if it is clearly larger than what noise and few samples do by chance, and where they might hide one,
the kind is not known. Noise also joins unlike groups in one cluster. If these name the classes differently,
classes have moved to where no class lies, as if their samples looked different; but all samples together have
not moved, and that tells.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.optimize import linear_sum_assignment
from scipy.special import chdtri

from shoal.core.exchange.parts import Descriptor, FloatArray
from shoal.core.server_kit.descriptors import Table, aligned
from shoal.core.server_kit.fleet.densities import pooled
from shoal.core.server_kit.fleet.evidence import MIN_VARIANCE
from shoal.core.types import DeviceId, ModelKey

INPUTS, SOME_INPUTS, LABELS, NAMES, UNKNOWN = "P(X)", "P(X|Y)", "P(Y)", "P(Y|X)", ""
IN_WORDS = {
    INPUTS: "in what their samples look like, P(X)",
    SOME_INPUTS: "in what the samples of some classes look like, P(X|Y)",
    LABELS: "in how frequent the classes are, P(Y)",
    NAMES: "in which labels the same samples have, P(Y|X), so newcomers need about ten labels of each class",
}
MIN_SAMPLES = 4.0
"""A class with fewer samples in a cluster is not compared."""
MOVED = 0.35
"""A class has moved if the squared distance of its means is above this, in variances of a sample."""
SAME = 0.1
"""Classes lie in one place if the mean of these distances is below this."""
REST = 0.08
"""Classes have other names if this share of their distances is left, or less, once they are renamed. Chosen
at seed 41."""
CLEAR, ERROR = 3.0, 1e-3
"""Standard errors by which a distance must exceed what chance does, and how often chance may make shares
differ as much."""
STILL = 0.05
"""The samples of some classes surely look different, P(X|Y), if those of the others lie in one place by this
mean, and all samples together do not. Images that are turned, which all look different, have digits that
hardly do. Chosen at seeds 40 to 42; see benchmarks/differences.py."""
OFTEN, MAX_MOVED = 0.25, 0.7
"""The distance between shares of the classes from which it counts, and the share of classes that have moved
from which all have."""
MAX_CLUSTERS = 16
"""The largest ones are compared, each with each."""


@dataclass(frozen=True)
class Difference:
    """What separates two clusters. kind: INPUTS, SOME_INPUTS, LABELS or NAMES; UNKNOWN where it is hidden.

    strength: of P(X) and P(X|Y) the distance of the classes that have moved, in standard deviations of a
    sample; of P(Y) the share of samples that would need another class; of P(Y|X) the share of classes with
    other labels; 0 where the kind is unknown.
    """

    first: ModelKey
    second: ModelKey
    kind: str = UNKNOWN
    strength: float = 0.0


def what_separates(described: Mapping[DeviceId, Descriptor], assignments: Mapping[DeviceId, ModelKey]) -> str:
    """The same in one sentence, for people; "" where there are no two clusters that are described."""
    return in_words(differences(described, assignments))


def differences(
    described: Mapping[DeviceId, Descriptor], assignments: Mapping[DeviceId, ModelKey]
) -> list[Difference]:
    """What separates each two of the largest clusters. Devices without a cluster are left out."""
    devices = [device for device in sorted(described) if device in assignments]
    if not devices:
        return []
    table = aligned([described[device] for device in devices])
    sizes = Counter(assignments[device] for device in devices)
    homes = np.array([assignments[device] for device in devices])
    found = {key: _cluster(table, homes == key) for key, _ in sizes.most_common(MAX_CLUSTERS)}
    every = list(combinations(sorted(found), 2))
    compared = [_compared(found[first], found[second]) for first, second in every]
    # The clusters of a fleet mostly differ in one way: what is not sure of a pair counts if the sure ones say
    # the same. If there are none, it counts without noise only, which joins unlike groups in one cluster.
    sure = Counter(kind for kind, _, doubtful in compared if kind and not doubtful)
    noisy = any(cluster.errors.any() for cluster in found.values())
    usual = sure.most_common(1)[0][0] if sure else ""
    return [
        Difference(*pair)
        if doubtful and usual not in ({kind} if noisy else {"", kind})
        else Difference(*pair, kind, strength)
        for pair, (kind, strength, doubtful) in zip(every, compared, strict=True)
    ]


def kin(found: Sequence[Difference], names: Sequence[ModelKey]) -> tuple[int, ...]:
    """For each cluster the number of its kin: clusters that only name the classes differently, so that
    samples without labels do not tell them apart. Clusters that were not compared have no kin.

    Example:
        >>> kin([Difference("c0", "c2", NAMES), Difference("c0", "c1", INPUTS)], ["c0", "c1", "c2"])
        (0, 1, 0)
    """
    numbers = dict(zip(names, range(len(names)), strict=True))
    for each in found:
        if each.kind == NAMES:
            one, other = sorted((numbers[each.first], numbers[each.second]))
            numbers = {name: one if number == other else number for name, number in numbers.items()}
    return tuple(numbers.values())


def in_words(found: Sequence[Difference]) -> str:
    """One sentence, or "" if there are no two clusters.

    Example:
        >>> in_words([Difference("c0", "c1", LABELS, 0.5)])
        'the clusters differ in how frequent the classes are, P(Y)'
    """
    if not found:
        return ""
    kinds = Counter(each.kind for each in found if each.kind)
    if not kinds:
        return "what devices have released does not tell in what way the clusters differ"
    (kind, count), *others = kinds.most_common()
    if count == len(found):
        return f"the clusters differ {IN_WORDS[kind]}"
    if 2 * count > len(found):
        return f"the clusters differ mostly {IN_WORDS[kind]}"
    rest = [f"{number} in {other}" for other, number in others]
    if hidden := len(found) - sum(kinds.values()):
        rest.append(f"in {hidden} it does not show")
    return f"{count} of {len(found)} pairs of clusters differ {IN_WORDS[kind]}; {', '.join(rest)}"


@dataclass(frozen=True, eq=False)
class _Cluster:
    """sizes, size_noise: (1 + U,) samples of each class, and the variance of that by noise; row 0 is of all
    classes. counts: those of them whose means are known. means, variances, errors: (1 + U, l) of a class, of
    one of its samples, and of the mean by noise.
    """

    sizes: FloatArray
    size_noise: FloatArray
    counts: FloatArray
    means: FloatArray
    variances: FloatArray
    errors: FloatArray


def _cluster(table: Table, mine: npt.NDArray[np.bool_]) -> _Cluster:
    # A class whose mean noise hides has samples all the same: with none, it would look like a difference.
    there = np.isfinite(table.count_noise[mine])
    sizes = np.where(there, table.counts[mine], 0.0).sum(axis=0)
    noise = np.where(there, table.count_noise[mine], 0.0).sum(axis=0)
    return _Cluster(sizes, noise, *pooled(table, mine))


def _compared(one: _Cluster, other: _Cluster) -> tuple[str, float, bool]:
    """The kind of difference, its strength, and whether it is in doubt."""
    both = np.flatnonzero((one.counts[1:] >= MIN_SAMPLES) & (other.counts[1:] >= MIN_SAMPLES)) + 1
    apart = _shares_apart(one, other)
    by_label = (LABELS, apart, False) if apart > OFTEN else (UNKNOWN, 0.0, False)
    if len(both) < 2:
        return by_label
    distances, doubt = _distances(one, other, both)
    if share := _renamed(distances, doubt):
        return NAMES, share, False
    own, own_doubt = np.diagonal(distances), np.diagonal(doubt)
    moved = own > np.maximum(MOVED, own_doubt)
    hidden = ~moved & (own + own_doubt > MOVED)
    if by_label[0] and moved.mean() < 0.5:
        return by_label
    if moved.any():
        strength = float(np.sqrt(np.median(own[moved])))
        if moved.mean() > MAX_MOVED:
            return INPUTS, strength, False
        if (moved | hidden).mean() > MAX_MOVED:
            return UNKNOWN, 0.0, False
        still = own[~moved].mean() <= STILL
        # Exchanged names move classes as well, but not all samples together.
        whole, whole_doubt = _distances(one, other, np.zeros(1, np.int64))
        return SOME_INPUTS, strength, not (still and (whole > whole_doubt).all())
    return by_label


def _shares_apart(one: _Cluster, other: _Cluster) -> float:
    """The total variation distance between the shares of the classes; 0 where few samples, or noise, can make
    them as different, by a chi-squared test."""
    sizes = [each.sizes[1:] for each in (one, other)]
    totals = [max(float(each.sum()), 1.0) for each in sizes]
    apart = sizes[0] / totals[0] - sizes[1] / totals[1]
    expected: FloatArray = np.maximum((sizes[0] + sizes[1]) / (totals[0] + totals[1]), 0.0)
    noise = one.size_noise[1:] / totals[0] ** 2 + other.size_noise[1:] / totals[1] ** 2
    spread = expected * (1.0 / totals[0] + 1.0 / totals[1]) + noise
    there = spread > 0.0
    surprise = float((apart[there] ** 2 / spread[there]).sum())
    sure = surprise > chdtri(max(int(there.sum()) - 1, 1), ERROR)
    return 0.5 * float(np.abs(apart).sum()) if sure else 0.0


def _distances(one: _Cluster, other: _Cluster, both: npt.NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """(C, C), of each class of one cluster and each of the other: the squared distance of their means, in
    variances of a sample and without what chance adds on average; and how much of it may be chance."""
    weights = (one.counts[both] + other.counts[both])[:, None]
    unit = (
        one.counts[both][:, None] * one.variances[both] + other.counts[both][:, None] * other.variances[both]
    ).sum(axis=0) / weights.sum()
    unit = np.maximum(unit, max(MIN_VARIANCE * float(unit.max()), 1e-30))
    error = [each.variances[both] / each.counts[both][:, None] + each.errors[both] for each in (one, other)]
    chance = ((error[0][:, None] + error[1][None]) / unit).mean(axis=2)
    apart = ((one.means[both][:, None] - other.means[both][None]) ** 2 / unit).mean(axis=2)
    return apart - chance, CLEAR * np.sqrt(2.0 / one.means.shape[1]) * chance


def _renamed(distances: FloatArray, doubt: FloatArray) -> float:
    """The share of classes that have moved to where another class of the other cluster lies; 0 unless all
    classes then lie where they should, which they do not if the samples differ as well. Where a cluster holds
    several groups, only some of its classes have moved."""
    rows, columns = linear_sum_assignment(distances)
    matched, own = distances[rows, columns], np.diagonal(distances)
    moved = (rows != columns) & (own > np.maximum(MOVED, np.diagonal(doubt)))
    if moved.sum() < 2 or matched.mean() > SAME or matched[moved].sum() > REST * own[moved].sum():
        return 0.0
    return float(moved.mean())
