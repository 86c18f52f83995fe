"""A private vote: a newcomer names one cluster, by a mechanism with a guarantee, and gets that model only.

It serves where a newcomer may not have the models of all clusters. What it fetches is the encoder in few bits
and where each cluster's data lie; what leaves it is a name, which any of its samples changes little
(`shoal.core.privacy.noise.vote`).
"""

from dataclasses import dataclass
from hashlib import sha256
from typing import ClassVar

from shoal.core.data.scale import scale_of
from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing import HINT, ClusterDensities
from shoal.core.exchange.choosing.compact import Unpacked, narrowed, packed, widened
from shoal.core.exchange.encoding.quantizer import FINE
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import MAX_MODELS, Ballot
from shoal.core.exchange.tensors import Manifest, digest
from shoal.core.types import ModelKey, Tensors


@dataclass(frozen=True, eq=False)
class Voted(Message):
    """The cluster that a newcomer has voted for."""

    kind: ClassVar[str] = "voted"
    ballot: Ballot


@dataclass(frozen=True, eq=False)
class Vote(Message):
    """Vote for one of the clusters `names`, separated by spaces, at this epsilon.

    encoder: in few bits, as `shoal.core.exchange.choosing.compact.packed` makes one model of 8 bits.
    projector, densities: those of `ClusterDensities`, as float32. scale: of the encoder's inputs, if it has
    one (`shoal.core.data.scale`).
    """

    kind: ClassVar[str] = "vote"
    reply: ClassVar[type[Message]] = Voted
    names: str
    epsilon: float
    encoder: Tensors
    projector: Tensors
    densities: Tensors
    scale: Tensors | None = None

    def __post_init__(self) -> None:
        if not 2 <= len(set(self.keys)) == len(self.keys) <= MAX_MODELS:
            raise BadPayload(f"a vote on {len(self.keys)} names, of which some may be equal", HINT)
        for key in self.keys:
            Ballot(key, self.epsilon)

    @property
    def keys(self) -> tuple[ModelKey, ...]:
        """The names of the clusters."""
        return tuple(self.names.split(" "))

    @property
    def digest(self) -> str:
        """SHA-256 of the question: a device answers the same one only once."""
        parts = (digest(each) for each in (self.encoder, self.projector, self.densities))
        return sha256(" ".join((*parts, self.names)).encode()).hexdigest()

    def opened(self, manifest: Manifest) -> ClusterDensities:
        """Where the clusters' data lie, with an encoder of this manifest. Raises BadPayload."""
        encoder = Unpacked(manifest, self.encoder, FINE)
        found = ClusterDensities(encoder, widened(self.projector), widened(self.densities))
        if len(found.clusters["shares"]) != len(self.keys):
            raise BadPayload(f"{len(found.clusters['shares'])} densities of {len(self.keys)} clusters", HINT)
        return found


def vote_on(names: tuple[ModelKey, ...], described: ClusterDensities, epsilon: float) -> Vote:
    """The question of which of these clusters a newcomer's data are."""
    encoder = packed([described.encoder], FINE)
    return Vote(
        " ".join(names),
        epsilon,
        encoder,
        narrowed(described.projector),
        narrowed(described.clusters),
        scale_of(described.encoder) or None,
    )
