"""What a device that only infers may have in a day: set by the operator, counted on disk.

Each model that a newcomer gets says something about the devices of its cluster, and a newcomer with
made-up data could collect them all. The model of a later round is the same cluster's, and costs nothing.
"""

from collections.abc import Collection

from fedserver.authority.peers import Peers
from fedserver.coordinator.visits.visitor import Quota
from shoal.core.errors import TooOften
from shoal.core.identity.joining import Role
from shoal.core.types import DeviceId, ModelKey, RunId


class DailyQuota(Quota):
    """clusters: of one run, whose models a device may have; 0: all of them. placements: how many."""

    def __init__(self, peers: Peers, clusters: int, placements: int) -> None:
        self._peers, self._clusters, self._placements = peers, clusters, placements
        self._storage = peers.storage

    async def allows(self, device: DeviceId, run: RunId, clusters: Collection[ModelKey]) -> bool:
        if not self._clusters or not self._counts(device):
            return True
        had = await self._storage.call(self._storage.identities.registry.models_of_today, device, run)
        return len(had.union(clusters)) <= self._clusters

    async def spend(self, device: DeviceId, run: RunId, clusters: Collection[ModelKey]) -> None:
        if not self._counts(device):
            return
        if not await self._storage.call(
            self._storage.identities.registry.spend_models, device, run, clusters, self._clusters
        ):
            raise TooOften(
                f"device {device} may have the models of {self._clusters} clusters of run {run} in a day",
                "try again tomorrow, or ask the server's operator; the server's setting is cadence.clusters",
            )

    async def spent(self, device: DeviceId) -> int:
        if not self._counts(device):
            return 0
        return await self._storage.call(self._storage.identities.registry.count_models_of_today, device)

    async def spend_placement(self, device: DeviceId) -> None:
        if not self._counts(device):
            return
        if not await self._storage.call(
            self._storage.identities.registry.spend_placement, device, self._placements
        ):
            raise TooOften(
                f"device {device} has had its {self._placements} placements of today",
                "try again tomorrow; the server's setting is cadence.placements",
            )

    def _counts(self, device: DeviceId) -> bool:
        return self._peers.role(device) is Role.INFER_ONLY
