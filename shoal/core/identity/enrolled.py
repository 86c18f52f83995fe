"""What the two sides say to each other on the way to a certificate."""

from dataclasses import dataclass
from enum import Enum

from shoal.core.types import DeviceId


class Role(Enum):
    """What a device may do. OBSERVER: see how runs stand, and nothing else."""

    TRAIN = "train"
    INFER_ONLY = "infer-only"
    OBSERVER = "observer"


@dataclass(frozen=True)
class Challenge:
    """nonce: 32 bytes, used once, good for `valid` seconds. clock: the server's, seconds since 1970."""

    nonce: bytes
    valid: float
    clock: float


@dataclass(frozen=True)
class Joining:
    """A device with a join string asks. csr: PKCS #10, DER. proof: see `shoal.core.identity.proof`."""

    token: str
    nonce: bytes
    csr: bytes
    proof: bytes
    device: DeviceId


@dataclass(frozen=True)
class Rejoining:
    """A device whose certificate (PEM) has expired asks, with its last key's signature."""

    certificate: bytes
    nonce: bytes
    csr: bytes
    signature: bytes


@dataclass(frozen=True)
class Enrolled:
    """A device is known. certificate, authorities: PEM. address: where devices call, "host:port".

    renew_in: seconds until it should ask for the next certificate.
    """

    certificate: bytes
    authorities: bytes
    federation: str
    device: DeviceId
    role: Role
    address: str
    renew_in: float


@dataclass(frozen=True)
class Pending:
    """An operator has to approve first. fingerprint: of the device's key. retry_in: seconds."""

    fingerprint: bytes
    retry_in: float
