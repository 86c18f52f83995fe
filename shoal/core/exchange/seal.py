"""What a server signs of a release for the devices that use it: which models are in it, and nothing of those
that trained them, whom its card names.

A model is known by what its tensors are, in the order of their names: so it is the same one in a blob, in the
few bits in which newcomers get it (`shoal.core.exchange.choosing.compact`), and in the file of `fedclient
place`.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from shoal.core.errors import NotGenuine
from shoal.core.exchange.tensors import digest
from shoal.core.types import ModelKey, Tensors

PURPOSE = b"shoal release seal 1\0"
"""What precedes a seal where it is signed."""
MAX_BYTES = 1 << 18
HINT = "do not use it; ask the server's operator"


@dataclass(frozen=True)
class Signed:
    """statement: of a `Seal`. signature: ECDSA with SHA-256 over `PURPOSE` and the statement."""

    statement: bytes
    signature: bytes


@dataclass(frozen=True)
class Seal:
    """release: its name. card: SHA-256 of its card. key: of the public key that signs, all in hexadecimal.
    graph: SHA-256 of its network without weights; "" where it has none. models: for each cluster what
    `fingerprint` gives of its model, and of what that is after it has traveled in few bits.
    """

    release: str
    card: str
    key: str
    graph: str
    models: Mapping[ModelKey, tuple[str, ...]]

    @classmethod
    def read(cls, statement: bytes) -> "Seal":
        """What a statement says. Raises NotGenuine for one that cannot be read."""
        try:
            if len(statement) > MAX_BYTES:
                raise ValueError
            found = json.loads(statement)
            models = {str(key): tuple(map(str, each)) for key, each in found["models"].items()}
            release, card, key, graph = (str(found[name]) for name in ("release", "card", "key", "graph"))
            return cls(release, card, key, graph, models)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise NotGenuine("what the server has signed of a release cannot be read", HINT) from None

    @property
    def statement(self) -> bytes:
        """As it is signed and stored."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    def check(self, release: str, cluster: ModelKey, model: Tensors) -> None:
        """Raises NotGenuine unless this is the model of a cluster in this release."""
        if release != self.release:
            raise NotGenuine(f"what was signed is release {self.release}, and not {release}", HINT)
        if fingerprint(model) not in self.models.get(cluster, ()):
            raise NotGenuine(f"the model of {cluster} is not the one that was signed in {release}", HINT)

    def check_graph(self, graph: str) -> None:
        """graph: SHA-256. Raises NotGenuine unless it is the one of this release."""
        if graph != self.graph:
            raise NotGenuine(f"the graph is not the one that was signed in {self.release}", HINT)


def fingerprint(model: Tensors) -> str:
    """SHA-256 of the tensors in the order of their names, in hexadecimal."""
    return digest({name: model[name] for name in sorted(model)})


def opened(signed: Signed, authority: bytes) -> Seal:
    """What was signed. authority: the server's certificate (PEM), as the device has it.

    Raises NotGenuine unless the server's key has signed it, or one that it had before.
    """
    # A light device spares what checks signatures wherever it need not.
    from shoal.core.identity.certificates import certificate
    from shoal.core.identity.signing import check_signed

    seal = Seal.read(signed.statement)
    check_signed(certificate(authority), seal.key, signed.signature, PURPOSE + signed.statement)
    return seal
