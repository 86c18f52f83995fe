"""How many clusters' models a device that only infers may have in a day: set by the operator, kept on disk.

Each model that a newcomer gets says something about the devices of its cluster, and a newcomer with
made-up data could collect them all. The model of a later round is the same cluster's, and costs nothing.
"""

from collections.abc import Collection

from fedserver.authority.peers import Peers
from shoal.core.errors import TooOften
from shoal.core.identity.joining import Role
from shoal.core.types import DeviceId, ModelKey, RunId


class ModelQuota:
    """most: clusters of one run, for each device and day; 0: all of them."""

    def __init__(self, peers: Peers, most: int) -> None:
        self._peers, self._most = peers, most
        self._storage = peers.storage

    async def allows(self, device: DeviceId, run: RunId, clusters: Collection[ModelKey]) -> bool:
        """Whether a device may have the models of these clusters today, beside those that it has had."""
        if not self._most or self._peers.role(device) is not Role.INFER_ONLY:
            return True
        had = await self._storage.call(self._storage.identities.registry.models_of_today, device, run)
        return len(had.union(clusters)) <= self._most

    async def spend(self, device: DeviceId, run: RunId, clusters: Collection[ModelKey]) -> None:
        """Count the models of these clusters, with a line of the audit log. Raises TooOften."""
        if self._peers.role(device) is not Role.INFER_ONLY:
            return
        if not await self._storage.call(
            self._storage.identities.registry.spend_models, device, run, clusters, self._most
        ):
            raise TooOften(
                f"device {device} may have the models of {self._most} clusters of run {run} in a day",
                "try again tomorrow, or ask the server's operator; the server's setting is cadence.clusters",
            )
