"""FLUX's decisions, without the exchange around them: when to cluster, how, and where a device belongs."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import chdtri

from shoal.core.algorithm import most_rounds
from shoal.core.algorithms.flux import Parameters
from shoal.core.algorithms.flux.state import Clustering, Kept
from shoal.core.exchange.parts import ClusterAssignment, Descriptor, FloatArray
from shoal.core.exchange.privacy_modes import mode_of
from shoal.core.server_kit import descriptors, fleet
from shoal.core.server_kit.clustering import assign, cluster
from shoal.core.server_kit.clustering.assign import nearest_of
from shoal.core.server_kit.estimates import estimate
from shoal.core.server_kit.fleet.differences import differences, kin
from shoal.core.server_kit.initial import cluster_names
from shoal.core.types import DeviceId, ModelKey, Tensors

BEYOND = 2.0
"""In radii of its cluster: a newcomer that is farther away, by more than chance, is not placed."""
SURE = 0.05
"""A newcomer is not placed with less confidence."""
ERROR = 0.01
"""How often, by chance, samples of a cluster may look as if they belonged to no cluster."""
KEPT = 8
"""Most clusters without devices. A newcomer fetches the model of each."""


def warm_up_is_over(
    parameters: Parameters, accuracies: Mapping[str, float], progress: int, lost: bool = False
) -> bool:
    """Eq. 14, at the end of round `progress`: the global model gained less than `THRESHOLD` in some round, or
    little time is left. At least one round is left to form the clusters in.

    accuracies: by round; without any, as where devices hold nothing out, only `earliest` counts. lost:
    whether the model is worse than it was at first: nothing can be learned of data by such a model.
    """
    rounds = most_rounds(parameters)
    if progress >= min(parameters.LATEST * rounds, rounds - 1):
        return True
    if progress < parameters.earliest or lost:
        return False
    if not accuracies:
        return True
    first = 2 if parameters.as_published else parameters.earliest
    gains = [
        accuracies[str(later)] - accuracies[str(later - 1)]
        for later in range(first, progress + 1)
        if str(later) in accuracies and str(later - 1) in accuracies
    ]
    return min(gains, default=np.inf) < parameters.THRESHOLD


def form_clusters(
    parameters: Parameters,
    round: int,
    encoder: Tensors,
    projector: Tensors,
    described: Mapping[DeviceId, Descriptor],
) -> tuple[Clustering, dict[DeviceId, ModelKey]]:
    """Cluster the devices by their descriptors (section 4.2.1). The order of `described` does not matter."""
    devices = sorted(described)
    chosen = [described[device] for device in devices]
    raw = [descriptors.vector(one, parameters.classes) for one in chosen]
    width = projector["components"].shape[0]
    scaler = descriptors.BlockScaler.fit(raw, width, parameters.as_published, chosen[0].noisy)
    labels = find_groups(parameters, scaler, chosen)
    names = cluster_names(int(labels.max()) + 1)
    assignments = {device: names[label] for device, label in zip(devices, labels, strict=True)}
    return arranged(parameters, round, encoder, projector, scaler, described, assignments), assignments


def arranged(
    parameters: Parameters,
    round: int,
    encoder: Tensors,
    projector: Tensors,
    scaler: descriptors.BlockScaler,
    described: Mapping[DeviceId, Descriptor],
    assignments: Mapping[DeviceId, ModelKey],
    kept: Kept = (),
) -> Clustering:
    """The clustering with these assignments of the described devices: its centroids, radii and noise.

    kept: clusters without devices; those that have some again are no longer among them.
    """
    homes = {assignments[device] for device in described}
    kept = tuple((name, one) for name, one in kept if name not in homes)
    everyone, assignments = with_kept(described, assignments, kept)
    devices = sorted(everyone)
    chosen = [everyone[device] for device in devices]
    names = tuple(sorted({*homes, *dict(kept)}, key=number_of))
    labels = np.array([names.index(assignments[device]) for device in devices], np.int64)
    private = chosen[0].noisy
    points = np.stack([scaler.transform(descriptors.vector(one, parameters.classes)) for one in chosen])
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
    return Clustering(
        round=round,
        encoder=encoder,
        projector=projector,
        scaler=scaler,
        names=names,
        described=described,
        vectors={device: row for device, row in zip(devices, points, strict=True) if device in described},
        centroids=centroids,
        reach=assign.radii(apart, labels, between),
        noise=noise,
        classless=sum(1 for one in described.values() if private and not one.classes),
        kin=kin(differences(everyone, assignments), names),
        kept=kept,
    )


def find_groups(
    parameters: Parameters, scaler: descriptors.BlockScaler, described: Sequence[Descriptor]
) -> cluster.Labels:
    """The groups by the statistical model of the fleet, by K-means if their number is known (FLUX-prior), or
    by density (D.2).

    Noisy descriptors are always grouped by the model: no other method takes the noise into account.
    """
    if described[0].noisy or (parameters.grouping != "density" and not parameters.clusters):
        return fleet.groups(described, parameters.clusters, parameters.class_shares)
    points = np.stack([scaler.transform(descriptors.vector(one, parameters.classes)) for one in described])
    if parameters.clusters:
        return cluster.kmeans(points, parameters.clusters)
    return cluster.adaptive_dbscan(points, parameters.scaling)


def add_devices(
    parameters: Parameters,
    clustering: Clustering,
    assignments: Mapping[DeviceId, ModelKey],
    described: Mapping[DeviceId, Descriptor],
) -> tuple[Clustering, dict[DeviceId, ModelKey], dict[ModelKey, ModelKey]]:
    """The clustering with late joiners, their clusters, and for each cluster that they begin the nearest one
    that was there before.

    By density or with a given number of clusters, a device is assigned to the nearest centroid by its full
    descriptor (Algorithm 1, line 26). By the model of the fleet, a device that fits no cluster begins one.
    """
    classes = len(clustering.scaler.low) // 2 - 1
    nearest = {device: _nearest(clustering, one, classes).cluster for device, one in described.items()}
    if parameters.grouping == "density" or parameters.clusters:
        joined = nearest
    else:
        everyone, homes = with_kept(clustering.described, assignments, clustering.kept)
        known, new = sorted(everyone), sorted(described)
        labels = np.array([clustering.names.index(homes[device]) for device in known], np.int64)
        found = fleet.joined(
            [everyone[device] for device in known],
            labels,
            [described[one] for one in new],
            parameters.class_shares,
        )
        names = _with_new(clustering.names, int(found.max()) + 1)
        joined = {device: names[label] for device, label in zip(new, found.tolist(), strict=True)}
    sources = {joined[device]: nearest[device] for device in sorted(joined, reverse=True)}
    begun = {name: old for name, old in sources.items() if name not in clustering.names}
    together = {**{device: assignments[device] for device in clustering.described}, **joined}
    latest = {**clustering.described, **described}
    return rearranged(parameters, clustering, clustering.round, latest, together), joined, begun


def rearranged(
    parameters: Parameters,
    clustering: Clustering,
    round: int,
    described: Mapping[DeviceId, Descriptor],
    assignments: Mapping[DeviceId, ModelKey],
    kept: Kept | None = None,
) -> Clustering:
    """The clustering of other descriptors or assignments, in the space of the present one.

    kept: the clusters without devices, by default those of the present one.
    """
    encoder, projector, scaler = clustering.encoder, clustering.projector, clustering.scaler
    kept = clustering.kept if kept is None else kept
    return arranged(parameters, round, encoder, projector, scaler, described, assignments, kept)


def with_kept(
    described: Mapping[DeviceId, Descriptor],
    assignments: Mapping[DeviceId, ModelKey],
    kept: Kept,
) -> tuple[dict[DeviceId, Descriptor], dict[DeviceId, ModelKey]]:
    """Descriptors and clusters of the devices and of stand-ins, one for each cluster without devices.

    No device has the name of a stand-in, which begins with a space.
    """
    homes = {f" {name}": name for name, _ in kept}
    return {**described, **{f" {name}": one for name, one in kept}}, {**assignments, **homes}


def number_of(name: ModelKey) -> int:
    """The number in the name of a cluster, by which clusters are ordered."""
    return int(name[1:])


def _with_new(names: Sequence[ModelKey], count: int) -> tuple[ModelKey, ...]:
    """The names and as many new ones as are missing to this many."""
    first = max(map(number_of, names)) + 1
    return (*names, *(f"c{first + extra}" for extra in range(count - len(names))))


def regrouped(
    parameters: Parameters,
    clustering: Clustering,
    assignments: Mapping[DeviceId, ModelKey],
    round: int,
    described: Mapping[DeviceId, Descriptor],
) -> tuple[Clustering, dict[DeviceId, ModelKey], dict[ModelKey, ModelKey]]:
    """FLUX-dynamic: the clusters of the current data, the cluster of each described device, and for each
    cluster the one whose model it continues.

    The paper's variant (D.3) forms the groups once again, in a round that is known in advance, and a new one
    begins with the model of the old cluster whose centroid is nearest. Here they are formed again with every
    description. A group continues the cluster to which most of its devices' present data belong, whatever
    devices that cluster had before: a model goes where its data have gone. If two groups claim one cluster,
    the one to which it belongs less is new, and continues that cluster's model. Unchanged data give the same
    descriptors, and so the same groups.

    A cluster that no device's data fit any more stays, with its model, for data that come back and for
    newcomers (`_kept`), as in FEROMA. So a group whose data fit no cluster begins one, with the model of the
    nearest. By density or with a given number of clusters no cluster stays: any group continues one.

    The encoder and the scaler stay those of the first clustering: old and new centroids lie in one space.

    described: descriptors of the devices that are present; for the others, their last descriptors are used.
    """
    latest = {**clustering.described, **described}
    devices = sorted(latest)
    present = [latest[device] for device in devices]
    labels = find_groups(parameters, clustering.scaler, present)
    likeness = _likeness(parameters, clustering, assignments, present, labels)
    # Above 1 the data of a device of the group fit the cluster.
    fit = likeness > (1.0 if parameters.finds_groups else 0.0)
    heirs = _heirs(np.where(fit, likeness, 0.0))
    names = list(_with_new(clustering.names, len(clustering.names) + len(likeness)))[len(clustering.names) :]
    names = [
        clustering.names[heirs[label]] if label in heirs else names.pop(0) for label in range(len(likeness))
    ]
    found = {device: names[label] for device, label in zip(devices, labels, strict=True)}
    sources = {name: clustering.names[int(row.argmax())] for name, row in zip(names, likeness, strict=True)}
    there = {name for name, some in zip(clustering.names, fit.T, strict=True) if some.any()}
    kept = _kept(clustering, assignments, {*names, *there})
    again = rearranged(parameters, clustering, round, latest, found, kept)
    return again, found, {**sources, **{name: name for name, _ in kept}}


def _kept(
    clustering: Clustering, assignments: Mapping[DeviceId, ModelKey], names: Collection[ModelKey]
) -> Kept:
    """The descriptors of the clusters that stay without devices, at most `KEPT`; those that have lost them
    last come first, and go last.

    The descriptor of the device that was nearest to a cluster's centroid stands for it. names: of the
    clusters that go on, and of those that the data of some device fit.
    """
    gone = dict[ModelKey, Descriptor]()
    for name, centroid in zip(clustering.names, clustering.centroids, strict=True):
        own = [device for device in sorted(clustering.described) if assignments.get(device) == name]
        if own and name not in names:
            far = [float(np.linalg.norm(clustering.vectors[device] - centroid)) for device in own]
            gone[name] = clustering.described[own[int(np.argmin(far))]]
    return (*gone.items(), *(each for each in clustering.kept if each[0] not in names))[:KEPT]


def _likeness(
    parameters: Parameters,
    clustering: Clustering,
    assignments: Mapping[DeviceId, ModelKey],
    present: Sequence[Descriptor],
    labels: cluster.Labels,
) -> FloatArray:
    """(groups, clusters): how well the data of each new group fit each cluster as it was, above 0.

    By the model of the fleet it is the number of devices whose data fit no other cluster better; where these
    are equal, as where data fit none, the nearer centroid counts. By density only the centroid counts.
    """
    points = np.stack(
        [clustering.scaler.transform(descriptors.vector(one, parameters.classes)) for one in present]
    )
    middles = cluster.centroids(assign.filled(points), labels)
    found: FloatArray = 1.0 / (2.0 + assign.euclidean(middles, clustering.centroids))
    if parameters.grouping != "density" or present[0].noisy:
        everyone, whose = with_kept(clustering.described, assignments, clustering.kept)
        known = [device for device in sorted(everyone) if device in whose]
        homes = np.array([clustering.names.index(whose[device]) for device in known], np.int64)
        before = [everyone[device] for device in known]
        fitting = fleet.joined(before, homes, present, parameters.class_shares)
        for label, home in zip(labels, fitting, strict=True):
            if home < len(clustering.names):
                found[label, home] += 1.0
    return found


def _heirs(likeness: FloatArray) -> dict[int, int]:
    """Which new group continues which old cluster: the pairs that are most alike, each once, above 0."""
    found = dict[int, int]()
    for index in np.argsort(-likeness, axis=None, kind="stable").tolist():
        new, old = divmod(index, likeness.shape[1])
        if likeness[new, old] > 0.0 and new not in found and old not in found.values():
            found[new] = old
    return found


def place(parameters: Parameters, clustering: Clustering, descriptor: Descriptor) -> ClusterAssignment:
    """The cluster of a newcomer without labels (eq. 9, Algorithm 2), or the answer that it fits none.

    The likelihood is meaningless for data that belong to no cluster: in that case the answer names the
    cluster that is nearest by distance.
    """
    answer, chance = _placed(parameters, clustering, descriptor)
    if parameters.as_published:
        return answer
    radius = float(clustering.reach[clustering.names.index(answer.cluster)])
    if answer.distance**2 > (BEYOND * radius) ** 2 + chance:
        reason = (
            f"its data are {answer.distance:.2f} away from the best cluster {answer.cluster}, whose radius "
            f"is {radius:.2f}: no cluster has seen such data"
        )
        return replace(_nearest(clustering, descriptor, 0), abstained=True, reason=reason)
    if answer.abstained:
        return answer
    if len(clustering.names) > 1 and answer.confidence < SURE:
        reason = f"clusters {answer.cluster} and {answer.runner_up} are equally near"
        return replace(answer, abstained=True, reason=reason)
    return answer


def _placed(
    parameters: Parameters, clustering: Clustering, descriptor: Descriptor
) -> tuple[ClusterAssignment, float]:
    """The nearest cluster to a newcomer, and the largest squared distance to it that chance makes
    plausible."""
    if not _by_likelihood(parameters):
        return _nearest(clustering, descriptor, 0), 0.0
    taken, samples = clustering.label_free, estimate(descriptor).counts[:1]
    point = clustering.scaler.transform(descriptors.vector(descriptor)[:taken])
    apart = _apart(parameters, clustering.scaler, point[None], samples, clustering.centroids[:, :taken])
    chance = chdtri(taken, ERROR) / max(float(samples[0]), 1.0)
    return nearest_of(clustering.names, apart[0].tolist()), chance


def _by_likelihood(parameters: Parameters) -> bool:
    """Whether newcomers that send a descriptor are placed by likelihood, which needs descriptors without
    noise: noise would look like spread."""
    return parameters.placing != "distance" and mode_of(parameters.privacy).exact


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


def _nearest(clustering: Clustering, descriptor: Descriptor, classes: int) -> ClusterAssignment:
    """The nearest centroid, in the coordinates of this many classes."""
    names, taken = list(clustering.names), (1 + classes) * clustering.label_free
    point = clustering.scaler.transform(descriptors.vector(descriptor, classes)[:taken])
    centroids = clustering.centroids[:, :taken]
    if clustering.noise is None:
        return assign.nearest(point, centroids, names)
    noise = clustering.scaler.transform_noise(descriptors.noise_vector(descriptor, classes)[:taken])
    return assign.nearest_noisy(point, noise, centroids, clustering.noise[:, :taken], names)


def mixing_weights(clustering: Clustering, device: DeviceId) -> dict[ModelKey, float]:
    """FLUX-soft: how much of each cluster's model suits a device; only the weights above 0."""
    row = assign.mixing_weights(clustering.vectors[device][None], clustering.centroids)[0]
    return {name: float(weight) for name, weight in zip(clustering.names, row, strict=True) if weight > 0.0}
