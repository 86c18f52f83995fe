"""FEROMA's decisions, without the exchange around them: the models that a profile is mapped to, and their
weights."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from scipy.sparse.csgraph import connected_components
from scipy.spatial.distance import cdist

from shoal.core.algorithms.feroma import Parameters, two_sample
from shoal.core.algorithms.feroma.state import Row
from shoal.core.exchange.parts import ClusterAssignment, Descriptor, FloatArray, Moments
from shoal.core.server_kit import descriptors
from shoal.core.server_kit.aggregation.influence import believed
from shoal.core.server_kit.clustering.cluster import agglomerated
from shoal.core.types import DeviceId, ModelKey

SLIGHT = 1e-3
"""In units of an equal share: a smaller weight is dropped, so that its model need not be read."""
SURE = 0.05
"""A newcomer is not placed with less confidence."""
NEAREST = 1e-8
"""Added to distances before they are inverted, as in the authors' code."""


def owned(rows: Mapping[ModelKey, Row], keys: Sequence[ModelKey]) -> npt.NDArray[np.bool_]:
    """Which rows belong to a device that still has that data."""
    return np.array([bool(rows[key].device) for key in keys])


def fading(parameters: Parameters, rows: Mapping[ModelKey, Row], progress: int) -> dict[ModelKey, float]:
    """The factor of each row for its age, after `progress` rounds, without rows whose factor is 0. The rows
    of the last round have the factor 1."""
    aged = {key: parameters.fading ** (progress - row.round) for key, row in rows.items()}
    return {key: weight for key, weight in aged.items() if weight > 0.0}


def mapped(
    parameters: Parameters,
    profiles: Mapping[DeviceId, Descriptor],
    rows: Mapping[ModelKey, Row],
    progress: int,
    scaler: descriptors.BlockScaler,
    served: bool = False,
) -> dict[DeviceId, dict[ModelKey, float]]:
    """The weights w(k, j) p_j of eq. 5 for each device, in key order, only those above 0; they sum to 1. A
    device gets an empty mapping if there is nothing to map to.

    A row that no device has any more counts only for data that could come from its distribution.
    served: the mixture is for use and not to train from: only models of like data count, if there are any.
    """
    aged = fading(parameters, rows, progress)
    devices, keys = sorted(profiles), sorted(aged)
    if not devices or not keys:
        return {device: {} for device in devices}
    apart = distances(
        "likeness" if parameters.weighting == "likeness" else parameters.distance,
        [profiles[device] for device in devices],
        [rows[key].profile for key in keys],
        scaler,
        parameters.classes,
    )
    alike = (
        two_sample.between([profiles[device] for device in devices], [rows[key].profile for key in keys])
        <= 1.0
    )
    # Eq. 3 and 4 first, then p_j: the threshold tau is on how near profiles are, not on how many samples a
    # source has. What is dropped at each step is made up for by normalizing the rows again.
    weights = closeness(parameters.weighting, apart) * np.array([aged[key] for key in keys])
    weights = np.where(alike | owned(rows, keys), weights, 0.0)
    if served:
        weights = np.where(alike.any(axis=1, keepdims=True) & ~alike, 0.0, weights)
    weights = above(normalized(weights), parameters.threshold) * sizes(
        parameters, [rows[key] for key in keys]
    )
    # What is held back counts only in its own device's model.
    foreign = np.array([[rows[key].device != device for key in keys] for device in devices])
    held_back = np.array([rows[key].held_back for key in keys])
    weights = normalized(np.where(foreign & held_back, 0.0, weights))
    weights = normalized(np.where(weights < SLIGHT / len(keys), 0.0, weights))
    return {
        device: {key: float(weight) for key, weight in zip(keys, row, strict=True) if weight > 0.0}
        for device, row in zip(devices, weights, strict=True)
    }


def with_like_data(profiles: Mapping[DeviceId, Descriptor]) -> list[list[DeviceId]]:
    """The groups of devices that are connected by profiles which could be of one distribution."""
    devices = sorted(profiles)
    if not devices:
        return []
    alike = two_sample.unlikeness([profiles[device] for device in devices]) <= 1.0
    count, labels = connected_components(alike, directed=False)
    return [[devices[index] for index in np.flatnonzero(labels == label)] for label in range(count)]


def grouped(profiles: Mapping[DeviceId, Descriptor], apart: Collection[DeviceId]) -> list[list[DeviceId]]:
    """The groups of devices to have one model: all of a group are alike, each with each (complete linkage).
    That some in between are like two groups does not make one of these. apart: those of no group but their
    own."""
    devices = sorted(profiles.keys() - apart)
    unlike = two_sample.unlikeness([profiles[device] for device in devices]) if devices else np.zeros((0, 0))
    labels = agglomerated(unlike, "complete", below=1.0)
    found: dict[int, list[DeviceId]] = {}
    for device, label in zip(devices, labels.tolist(), strict=True):
        found.setdefault(label, []).append(device)
    return [*found.values(), *([device] for device in sorted(profiles.keys() & apart))]


def mean_of(weights: Sequence[Mapping[ModelKey, float]]) -> dict[ModelKey, float]:
    """The mean of mixtures of models. Each mapping has the weights of one, which sum to 1."""
    keys = sorted({key for each in weights for key in each})
    return {key: sum(each.get(key, 0.0) for each in weights) / len(weights) for key in keys}


def distances(
    measure: str,
    ones: Sequence[Descriptor],
    others: Sequence[Descriptor],
    scaler: descriptors.BlockScaler,
    classes: int,
) -> FloatArray:
    """(n, m): "likeness" is the unlikeness as a multiple of what chance makes plausible within one
    distribution; "euclidean" and "cosine" are distances of scaled profiles with this many classes, 0 for
    label-free ones."""
    if measure == "likeness":
        return two_sample.between(ones, others)
    taken = 2 * scaler.width * (1 + classes)
    points, to = (
        np.stack([scaler.transform(descriptors.vector(one, classes)[:taken]) for one in side])
        for side in (ones, others)
    )
    found: FloatArray = cdist(points, to, measure)
    return np.nan_to_num(found, nan=1.0)  # cosine: a profile of zeros has no direction


def closeness(weighting: str, apart: FloatArray) -> FloatArray:
    """Eq. 3 without its sum: the weight of each distance.

    "likeness" is flat up to 1, where two profiles could come from one distribution. Above that it falls as 1
    / T, because T is a squared difference in units of its squared standard error, and an estimate with that
    much bias should weigh the inverse of its squared error. With few samples devices therefore share more,
    and with many they choose.
    """
    found: FloatArray
    if weighting == "softmax":
        found = np.exp(apart.min(axis=1, keepdims=True) - apart)
    elif weighting == "inverse":
        found = 1.0 / (apart + NEAREST)
    else:
        found = 1.0 / np.maximum(apart, 1.0)
    return found


def normalized(weights: FloatArray) -> FloatArray:
    """Rows that sum to 1, or to 0 if no weight is above 0."""
    total = weights.sum(axis=1, keepdims=True)
    found: FloatArray = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0.0)
    return found


def above(weights: FloatArray, threshold: float) -> FloatArray:
    """Eq. 4: without the weights below tau; all equal if none is left (the global fallback)."""
    if not threshold:
        return weights
    tau = threshold if threshold > 0.0 else 1.0 / weights.shape[1]
    left = np.where(weights < tau * (1.0 - 1e-9), 0.0, weights)
    return normalized(np.where(left.any(axis=1, keepdims=True), left, 1.0))


def sizes(parameters: Parameters, rows: Sequence[Row]) -> FloatArray:
    """(m,): p_j, the samples of each source, none above its share unless reported numbers are trusted."""
    claimed = {str(index): float(row.examples) for index, row in enumerate(rows)}
    if parameters.aggregation != "mean":
        claimed = believed(claimed)
    return np.array([claimed[str(index)] for index in range(len(rows))])


def place(
    parameters: Parameters,
    profile: Descriptor,
    rows: Mapping[ModelKey, Row],
    progress: int,
    scaler: descriptors.BlockScaler,
) -> ClusterAssignment:
    """Algorithm 2: the model of the nearest profile, or within that profile's distribution the one to which
    the newcomer would be mapped with the largest weight; or the answer that no profile is near, or that two
    distributions are.

    The runner-up is the nearest profile of another distribution: two equally near models of one distribution
    would not be a reason for doubt. A likeness is a squared distance, so the distances in the answer are its
    square roots.
    """
    aged = fading(parameters, rows, progress)
    keys = sorted(key for key in aged if not rows[key].held_back) or sorted(aged)
    profiles = [rows[key].profile for key in keys]
    measure = parameters.distance_at_test
    root = 0.5 if measure == "likeness" else 1.0
    apart = distances(measure, [profile], profiles, scaler, profile.classes)[0]
    alike = two_sample.between([profiles[int(np.argmin(apart))]], profiles)[0] <= 1.0
    weights = closeness("likeness" if measure == "likeness" else "inverse", apart)
    weights *= np.array([aged[key] for key in keys]) * alike
    best = int(np.lexsort((apart, -weights))[0])
    first = float(apart[best] ** root)
    unlike = two_sample.between([profiles[best]], profiles)[0] > 1.0
    if not unlike.any():
        return ClusterAssignment(keys[best], first, reason="all models are of one distribution")
    next_best = int(np.argmin(np.where(unlike, apart, np.inf)))
    second = float(apart[next_best] ** root)
    confidence = max(0.0, 1.0 - first / second) if second > 0.0 else 0.0
    answer = ClusterAssignment(keys[best], first, keys[next_best], second, confidence)
    if parameters.as_published:
        return answer
    gap = np.inf
    if not profile.noisy:
        seen = seen_as(profile, profiles[best])
        between = distances(measure, [seen], profiles, scaler, profile.classes)[0]
        gap = float(between[unlike].min() ** root)
    return doubted(parameters, answer, gap)


def seen_as(profile: Descriptor, other: Descriptor) -> Descriptor:
    """`other` with only the rows that `profile` has: without classes, if that one has none."""
    assert isinstance(other.statistics, Moments)  # noisy profiles are never compared this way
    return replace(other, statistics=other.statistics.first(profile.classes + 1))


def doubted(parameters: Parameters, answer: ClusterAssignment, gap: float) -> ClusterAssignment:
    """The answer, or that the newcomer fits nowhere. gap: the distance of the nearest profile from the next
    distribution."""
    likeness = parameters.distance_at_test == "likeness"
    alike = f"{answer.cluster} and {answer.runner_up}"
    reason = ""
    if answer.distance > max(gap, float(likeness)):
        reason = (
            f"its data are {answer.distance:.2f} away from those of the nearest model {answer.cluster}, "
            f"which are {gap:.2f} away from others: no device has had such data"
        )
    elif likeness and answer.runner_up_distance <= 1.0:
        reason = f"its data could be those of {alike}: set labels_at_test=true to use labels"
    elif answer.confidence < SURE:
        reason = f"the models {alike} are equally near"
    return replace(answer, abstained=True, reason=reason) if reason else answer
