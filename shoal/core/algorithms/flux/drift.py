"""FLUX-dynamic: form the clusters again when devices' data have changed.

The paper's variant does that once, in a round that is known in advance. Here each device describes its data
again from time to time, and the new descriptor is compared with its last one by the same test that groups
devices. Unchanged data give the same descriptor and never trigger it, and new data of the same distribution
rarely do.

The encoder and the scaler stay those of the first clustering: old and new centroids then lie in one space,
and each new cluster continues the model of the nearest old one instead of starting over.
"""

from collections.abc import Mapping

import numpy as np
from scipy.spatial.distance import cdist

from shoal.core.algorithms.flux import Parameters
from shoal.core.algorithms.flux.clustering import form_clusters
from shoal.core.algorithms.flux.state import Clustering
from shoal.core.exchange.parts import Descriptor
from shoal.core.server_kit import two_sample
from shoal.core.types import DeviceId, ModelKey


def drifted(clustering: Clustering, described: Mapping[DeviceId, Descriptor]) -> list[DeviceId]:
    """The devices whose data are unlike those that the clusters were formed with, in order."""
    known = sorted(set(described) & set(clustering.described))
    if not known:
        return []
    now, before = ([each[device] for device in known] for each in (described, clustering.described))
    unlike = np.diag(two_sample.between(now, before))
    return [device for device, value in zip(known, unlike.tolist(), strict=True) if value > 1.0]


def recluster(
    parameters: Parameters,
    clustering: Clustering,
    round: int,
    described: Mapping[DeviceId, Descriptor],
) -> tuple[Clustering, dict[DeviceId, ModelKey], dict[ModelKey, ModelKey]]:
    """The clusters of the current data, the cluster of each device, and the nearest old cluster of each new
    one.

    described: descriptors of the devices that are present; for the others, their last descriptors are used.
    """
    latest = {**clustering.described, **described}
    found, assignments = form_clusters(
        parameters, round, clustering.encoder, clustering.projector, latest, clustering.scaler
    )
    nearest = cdist(found.centroids, clustering.centroids).argmin(axis=1).tolist()
    sources = {name: clustering.names[old] for name, old in zip(found.names, nearest, strict=True)}
    return found, assignments, sources
