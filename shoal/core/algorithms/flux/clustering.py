"""FLUX's decisions, without the exchange around them: when to cluster, how, and where a device belongs."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import chdtri

from shoal.core.algorithms.flux import Parameters
from shoal.core.algorithms.flux.state import Clustering
from shoal.core.exchange.parts import ClusterAssignment, Descriptor, FloatArray
from shoal.core.exchange.privacy_modes import mode_of
from shoal.core.server_kit import assign, cluster, descriptors, two_sample
from shoal.core.server_kit.assign import nearest_of
from shoal.core.server_kit.clustered import cluster_names
from shoal.core.server_kit.estimates import estimate
from shoal.core.types import DeviceId, ModelKey, Tensors

ERROR = 0.01
"""How often, by chance, samples of a cluster may look as if they belonged to no cluster."""


def warm_up_is_over(parameters: Parameters, accuracies: Mapping[str, float], progress: int) -> bool:
    """Eq. 14, at the end of round `progress`: the global model gained less than `threshold` in some round, or
    little time is left. At least one round is left to form the clusters in."""
    if progress >= min(parameters.latest * parameters.rounds, parameters.rounds - 1):
        return True
    if progress < parameters.earliest:
        return False
    first = 2 if parameters.history == "whole" else parameters.earliest
    gains = [
        accuracies[str(later)] - accuracies[str(later - 1)]
        for later in range(first, progress + 1)
        if str(later) in accuracies and str(later - 1) in accuracies
    ]
    return min(gains, default=np.inf) < parameters.threshold


def form_clusters(
    parameters: Parameters,
    round: int,
    encoder: Tensors,
    projector: Tensors,
    described: Mapping[DeviceId, Descriptor],
    scaler: descriptors.BlockScaler | None = None,
) -> tuple[Clustering, dict[DeviceId, ModelKey]]:
    """Cluster the devices by their descriptors (section 4.2.1). The order of `described` does not matter.

    scaler: None to fit one to these descriptors.
    """
    devices = sorted(described)
    chosen = [described[device] for device in devices]
    private = chosen[0].noisy
    raw = [descriptors.vector(one, parameters.classes) for one in chosen]
    scaler = scaler or descriptors.BlockScaler.fit(
        raw, projector["components"].shape[0], "unknown" if private else parameters.absent
    )
    points = np.stack([scaler.transform(vector) for vector in raw])
    labels = find_groups(parameters, points, chosen)
    noise = None
    # With noise, a class that is hidden in some descriptors is NaN there: centroids are means of what is
    # known, and unknown coordinates get the centroid's value, so that they change no distance.
    if private:
        added = [scaler.transform_noise(descriptors.noise_vector(one, parameters.classes)) for one in chosen]
        centroids, noise = assign.noisy_centroids(points, np.stack(added), labels)
        centroids = assign.filled(centroids)
        points = assign.filled(points, centroids[labels])
    else:
        centroids = cluster.centroids(points, labels)
    middles = centroids[:, : 2 * scaler.width]
    samples = np.array([estimate(one).counts[0] for one in chosen])
    apart = _apart(parameters, scaler, points[:, : 2 * scaler.width], samples, middles)
    between = _apart(parameters, scaler, middles, np.full(len(middles), np.inf), middles)
    names = cluster_names(len(centroids))
    found = Clustering(
        round=round,
        encoder=encoder,
        projector=projector,
        scaler=scaler,
        names=names,
        described=described,
        vectors=dict(zip(devices, points, strict=True)),
        centroids=centroids,
        reach=assign.radii(apart, labels, between),
        noise=noise,
        classless=sum(1 for one in chosen if private and not one.classes),
    )
    return found, {device: names[label] for device, label in zip(devices, labels, strict=True)}


def find_groups(
    parameters: Parameters, points: FloatArray, described: Sequence[Descriptor]
) -> cluster.Labels:
    """K-means if the number of clusters is known (FLUX-prior), else by the test or by density (D.2).

    Noisy descriptors are always grouped by the test: it is the only method that takes the noise into account.
    """
    if described[0].noisy:
        return two_sample.groups(described, parameters.clusters)
    if parameters.clusters:
        return cluster.kmeans(points, parameters.clusters)
    if parameters.grouping == "test":
        return two_sample.groups(described)
    return cluster.adaptive_dbscan(points, parameters.scaling)


def add_device(
    clustering: Clustering, device: DeviceId, descriptor: Descriptor
) -> tuple[Clustering, ModelKey]:
    """A late joiner is assigned to the nearest centroid by its full descriptor (Algorithm 1, line 26)."""
    answer, point = _nearest(clustering, descriptor, len(clustering.scaler.low) // 2 - 1)
    if clustering.noise is not None:
        row = clustering.names.index(answer.cluster)
        point = assign.filled(point[None], clustering.centroids[row][None])[0]
    vectors, described = {**clustering.vectors, device: point}, {**clustering.described, device: descriptor}
    return replace(clustering, vectors=vectors, described=described), answer.cluster


def place(parameters: Parameters, clustering: Clustering, descriptor: Descriptor) -> ClusterAssignment:
    """The cluster of a newcomer without labels (eq. 9, Algorithm 2), or the answer that it fits none.

    The likelihood is meaningless for data that belong to no cluster: in that case the answer names the
    cluster that is nearest by distance.
    """
    answer, chance = _placed(parameters, clustering, descriptor)
    radius = float(clustering.reach[clustering.names.index(answer.cluster)])
    farthest = parameters.abstain_beyond * radius
    if parameters.abstain_beyond and answer.distance**2 > farthest**2 + chance:
        reason = (
            f"its data are {answer.distance:.2f} away from the best cluster {answer.cluster}, whose radius "
            "is "
            f"{radius:.2f}: no cluster has seen such data"
        )
        return replace(_nearest(clustering, descriptor, 0)[0], abstained=True, reason=reason)
    if answer.abstained:
        return answer
    if len(clustering.names) > 1 and answer.confidence < parameters.least_confidence:
        reason = f"clusters {answer.cluster} and {answer.runner_up} are equally near"
        return replace(answer, abstained=True, reason=reason)
    return answer


def _placed(
    parameters: Parameters, clustering: Clustering, descriptor: Descriptor
) -> tuple[ClusterAssignment, float]:
    """The nearest cluster to a newcomer, and the largest squared distance to it that chance makes
    plausible."""
    if not _by_likelihood(parameters):
        return _nearest(clustering, descriptor, 0)[0], 0.0
    taken, samples = clustering.label_free, estimate(descriptor).counts[:1]
    point = clustering.scaler.transform(descriptors.vector(descriptor)[:taken])
    apart = _apart(parameters, clustering.scaler, point[None], samples, clustering.centroids[:, :taken])
    chance = chdtri(taken, ERROR) / max(float(samples[0]), 1.0)
    return nearest_of(clustering.names, apart[0].tolist()), chance


def _by_likelihood(parameters: Parameters) -> bool:
    """Whether newcomers are placed by likelihood, which needs descriptors without noise: noise would look
    like spread."""
    return parameters.placing == "likelihood" and mode_of(parameters.privacy).exact


def _apart(
    parameters: Parameters,
    scaler: descriptors.BlockScaler,
    points: FloatArray,
    samples: FloatArray,
    centroids: FloatArray,
) -> FloatArray:
    """(n, M): distances of newcomers to clusters. points: (n, 2 l), scaled; samples: (n,), the number behind
    each."""
    if _by_likelihood(parameters):
        return assign.divergence(scaler.restored(points), samples, scaler.restored(centroids))
    return assign.euclidean(points, centroids)


def _nearest(
    clustering: Clustering, descriptor: Descriptor, classes: int
) -> tuple[ClusterAssignment, FloatArray]:
    """The nearest centroid, in the coordinates of this many classes, and the scaled point."""
    names, taken = list(clustering.names), (1 + classes) * clustering.label_free
    point = clustering.scaler.transform(descriptors.vector(descriptor, classes)[:taken])
    centroids = clustering.centroids[:, :taken]
    if clustering.noise is None:
        return assign.nearest(point, centroids, names), point
    noise = clustering.scaler.transform_noise(descriptors.noise_vector(descriptor, classes)[:taken])
    return assign.nearest_noisy(point, noise, centroids, clustering.noise[:, :taken], names), point


def mixing_weights(clustering: Clustering, device: DeviceId) -> dict[ModelKey, float]:
    """FLUX-soft: how much of each cluster's model suits a device; only the weights above 0."""
    row = assign.mixing_weights(clustering.vectors[device][None], clustering.centroids)[0]
    return {name: float(weight) for name, weight in zip(clustering.names, row, strict=True) if weight > 0.0}
