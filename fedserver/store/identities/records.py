"""What the registry holds. Clock times are seconds since 1970."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from shoal.core.identity.joining import Role
from shoal.core.types import DeviceId

DAY = 86400.0
"""Seconds."""
DEVICE_BACK = DAY
"""How long before it was issued a device's certificate begins: its `not_valid_before` plus this is when."""

PublicKey = ec.EllipticCurvePublicKey


class TokenStanding(Enum):
    """Whether a token admits devices, its uses and its end apart."""

    OPEN = "open"
    REVOKED = "revoked"
    LOCKED = "locked"


class DeviceStanding(Enum):
    """Whether a device may call."""

    PENDING = "pending"
    APPROVED = "approved"
    REVOKED = "revoked"


@dataclass(frozen=True)
class Terms:
    """What a token is good for. ttl: seconds. labels: go to every device that it admits.

    pattern: the names that it admits, with * and ? as in a shell. hold: an operator approves each device.
    """

    role: Role = Role.TRAIN
    uses: int = 1
    ttl: float = 3600.0
    labels: Mapping[str, str] | None = None
    pattern: str = "*"
    hold: bool = False


@dataclass(frozen=True)
class Token:
    """A token as it is kept: never its secret, only key = SHA-256(secret), and that not in here.

    used: how many devices it admitted. wrong: proofs that were.
    """

    token: str
    role: Role
    uses: int
    used: int
    created: float
    expires: float
    labels: Mapping[str, str]
    pattern: str
    hold: bool
    wrong: int
    standing: TokenStanding


@dataclass(frozen=True)
class Certified:
    """One certificate of a device. serial: in hexadecimal. spki: SHA-256 of its key, in hexadecimal.

    root: who signed. bundle: the roots that were handed out with it. first_used: None: not yet.
    """

    serial: str
    spki: str
    pem: bytes
    root: str
    bundle: tuple[str, ...]
    issued: float
    expires: float
    first_used: float | None


@dataclass(frozen=True)
class Registered:
    """A device. device: its name for good, as in its certificates. display: what people call it.

    spki: of the key that it joined with. token: that admitted it. certificates: those that are not void,
    oldest first.
    """

    device: DeviceId
    display: str
    role: Role
    labels: Mapping[str, str]
    standing: DeviceStanding
    created: float
    spki: str
    token: str
    certificates: tuple[Certified, ...] = ()


@dataclass(frozen=True)
class Issued:
    """A device's certificate. serial: in hexadecimal. spki: SHA-256 of its key. issued, expires: clock times.

    root: the name of the one that signed.
    """

    pem: bytes
    serial: str
    spki: bytes
    root: str
    issued: float
    expires: float


class Issuer(Protocol):
    """What signs certificates and recognizes its own signature: `fedserver.authority.roots.Authority`."""

    @property
    def roots(self) -> Mapping[str, object]:
        """The trusted roots by name."""

    def issue(self, device: DeviceId, key: PublicKey) -> Issued:
        """A certificate for a device's key, from now on."""

    def signer(self, certificate: x509.Certificate) -> str:
        """The name of the root that signed it; "" for a foreign certificate."""
