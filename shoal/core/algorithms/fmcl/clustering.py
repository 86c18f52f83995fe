"""FMCL's decisions: how far apart two devices are, how many groups there are, and where a device belongs."""

from collections.abc import Mapping, Sequence

import numpy as np
from sklearn.metrics import silhouette_score

from shoal.core.algorithms.fmcl import Parameters
from shoal.core.exchange.parts import ClusterAssignment, FloatArray, Prototypes
from shoal.core.server_kit.clustering.assign import nearest_of
from shoal.core.server_kit.clustering.cluster import Labels, agglomerated
from shoal.core.types import DeviceId, ModelKey

MAX_CLUSTERS = 10
"""The largest number of groups that Algorithm 5 tries: the end of its last window."""
LONGEST, TINY = 100.0, 1e-3
"""beta, the upper limit of the factor by which a small overlap of classes increases a distance, and epsilon,
which keeps distances finite (Algorithm 3). alpha, the exponent of the factor, is 1."""
WINDOWS = ((0.35, 1, 3), (0.70, 2, 6), (np.inf, 3, MAX_CLUSTERS))
"""Below a coefficient of variation: the smallest and the largest K to try (section 4.5)."""


def distances(parameters: Parameters, held: Sequence[Prototypes]) -> FloatArray:
    """(n, n) distances of all pairs, infinite for a pair that shares no class (Algorithm 3, up to D_big)."""
    overlap, summed = np.zeros((2, len(held), len(held)))
    for _, holders in sorted(_by_class(held).items()):
        if len(holders) < 2:  # not shared: a device may name thousands of such classes
            continue
        rows, means, weights = _of_class(held, holders)
        norms = np.linalg.norm(means, axis=1)
        cosine = 1.0 - means @ means.T / (np.outer(norms, norms) + TINY)
        shared = np.minimum(weights[:, None], weights[None])
        overlap[np.ix_(rows, rows)] += shared
        summed[np.ix_(rows, rows)] += shared * cosine
    found = summed / (overlap + TINY)
    if parameters.overlap:
        found *= np.minimum(1.0 / np.maximum(overlap, TINY), LONGEST)
    found = np.where(overlap > 0.0, np.maximum(found, 0.0), np.inf)
    np.fill_diagonal(found, 0.0)
    return found


def _by_class(held: Sequence[Prototypes]) -> dict[tuple[float, int], list[tuple[int, int]]]:
    """The holders of each class, as (row in `held`, row of its means), by class and width.

    Only embeddings of one width can be compared: a device with another encoder is far from all others.
    """
    found: dict[tuple[float, int], list[tuple[int, int]]] = {}
    for row, one in enumerate(held):
        for place, label in enumerate(one.classes.tolist()):
            found.setdefault((label, one.means.shape[1]), []).append((row, place))
    return found


def _of_class(
    held: Sequence[Prototypes], holders: Sequence[tuple[int, int]]
) -> tuple[list[int], FloatArray, FloatArray]:
    """For the holders of a class: rows, (m, d) means, and (m,) shares of the class in each device's
    samples."""
    means = np.stack([held[row].means[place] for row, place in holders])
    shares = np.array([held[row].counts[place] / held[row].counts.sum() for row, place in holders])
    return [row for row, _ in holders], means, shares


def beyond(parameters: Parameters, held: Sequence[Prototypes], apart: FloatArray) -> float:
    """D_big: the distance of devices that share no class (Algorithm 3)."""
    pairs = apart[np.triu_indices(len(apart), 1)]
    finite = pairs[np.isfinite(pairs)]
    if not len(finite):
        return 1.0
    shared = float(min(2.0 * np.percentile(finite, 95), np.percentile(finite, 99)))
    return max(shared, between_classes(held)) if parameters.disjoint == "classes" else shared


def between_classes(held: Sequence[Prototypes]) -> float:
    """Mean cosine distance of the mean embeddings of two different classes, over all devices; 0 for one
    class."""
    widths = [one.means.shape[1] for one in held]
    width = max(set(widths), key=widths.count)
    sums: dict[float, FloatArray] = {}
    for one in held:
        if one.means.shape[1] == width:
            for label, mean, count in zip(one.classes, one.means, one.counts, strict=True):
                sums[label] = sums.get(label, np.zeros(width)) + count * mean
    if len(sums) < 2:
        return 0.0
    means = np.stack([sums[label] for label in sorted(sums)])
    means /= np.maximum(np.linalg.norm(means, axis=1, keepdims=True), np.finfo(np.float64).tiny)
    return float(1.0 - (means @ means.T)[np.triu_indices(len(means), 1)].mean())


def group(parameters: Parameters, apart: FloatArray) -> Labels:
    """Average linkage into K groups, or into as many as are found (Algorithms 4 and 5). apart: all finite."""
    if parameters.clusters:
        return agglomerated(apart, "average", clusters=parameters.clusters)
    return agglomerated(apart, "average", clusters=how_many(apart, parameters.search))


def how_many(apart: FloatArray, search: str) -> int:
    """K (Algorithm 5): the highest peak of the silhouette among all K up to `MAX_CLUSTERS`, or among those of
    the paper's "window", which depends on the spread of the distances."""
    pairs = apart[np.triu_indices(len(apart), 1)]
    most = min(MAX_CLUSTERS, len(apart) - 1)
    if most < 2 or pairs.max() - pairs.min() <= 1e-12 * pairs.max():
        return 1
    variation = pairs.std() / pairs.mean()
    first, last = 1, MAX_CLUSTERS
    if search == "window":
        first, last = next((first, last) for limit, first, last in WINDOWS if variation < limit)
    window = range(min(first, most), min(last, most) + 1)
    scores = [silhouette(apart, clusters) for clusters in window]
    peaks = [row for row in range(1, len(scores) - 1) if _is_peak(scores, row)]
    return window[max(peaks or range(len(scores)), key=lambda row: scores[row])]


def silhouette(apart: FloatArray, clusters: int) -> float:
    """Mean silhouette of this many groups; 0 for one."""
    labels = agglomerated(apart, "average", clusters=clusters)
    if not 2 <= labels.max() + 1 < len(apart):
        return 0.0
    return float(silhouette_score(apart, labels, metric="precomputed"))


def _is_peak(scores: Sequence[float], row: int) -> bool:
    """Whether the curve rises before `row` and falls after it, possibly after a plateau."""
    after = next((score for score in scores[row + 1 :] if score != scores[row]), np.inf)
    return scores[row - 1] < scores[row] > after


def place(
    parameters: Parameters,
    held: Mapping[DeviceId, Prototypes],
    assignments: Mapping[DeviceId, ModelKey],
    far: float,
    newcomer: Prototypes,
) -> ClusterAssignment:
    """The cluster with the smallest mean distance to a newcomer. far: D_big."""
    members = sorted(device for device in held if device in assignments)
    row = distances(parameters, [newcomer, *(held[device] for device in members)])[0, 1:]
    homes = np.array([assignments[device] for device in members])
    names = sorted(set(homes.tolist()), key=lambda name: (len(name), name))
    if not np.isfinite(row).any():
        largest = max(names, key=lambda name: int((homes == name).sum()))
        reason = "it shares no class with any device of the run; this is the largest cluster"
        return ClusterAssignment(largest, confidence=0.0, abstained=True, reason=reason)
    row = np.where(np.isfinite(row), row, far)
    return nearest_of(names, [float(row[homes == name].mean()) for name in names])
