"""FLUX-dynamic: clusters formed anew when devices' data have changed.

The paper's variant does so once, in a round that is known beforehand. Here each device describes its data
again from time to time, and is held to what it last said by the test that also groups devices: identical data
say the same and never trigger, and data of one distribution rarely do.

The encoder and the scaler stay those of the first clustering, so that old and new centroids can be compared:
each new cluster goes on with the model of the old one nearest to it.
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
    """Whose data are unlike those that the clusters were formed with, in order."""
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
    """Clusters of the data as they are now, who is in which, and each new cluster's nearest old one.

    described: of the devices that are here; of others it is taken what they last said.
    """
    latest = {**clustering.described, **described}
    found, assignments = form_clusters(
        parameters, round, clustering.encoder, clustering.projector, latest, clustering.scaler
    )
    nearest = cdist(found.centroids, clustering.centroids).argmin(axis=1).tolist()
    sources = {name: clustering.names[old] for name, old in zip(found.names, nearest, strict=True)}
    return found, assignments, sources
