"""The records of the registry. Clock times are in seconds since 1970."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from shoal.core.identity.joining import OperatorRole, Role
from shoal.core.types import DeviceId

if TYPE_CHECKING:  # the page also reads records, and does without the memory of cryptography
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as PublicKey

DAY = 86400.0
"""Seconds."""
DEVICE_BACK = DAY
"""How long before its issue a device's certificate becomes valid, in seconds. `not_valid_before` plus this is
the time of issue."""


class TokenStanding(Enum):
    """Whether a token admits devices, regardless of its uses and its expiry."""

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
    """What a token allows.

    ttl: how many seconds it is valid. labels: given to every device that it admits. pattern: the device names
    that it admits, with * and ? as in a shell. hold: an operator has to approve each device.
    """

    role: Role = Role.TRAIN
    uses: int = 1
    ttl: float = 3600.0
    labels: Mapping[str, str] | None = None
    pattern: str = "*"
    hold: bool = False


@dataclass(frozen=True)
class Token:
    """A token without its key. The server never stores the secret, only key = SHA-256(secret).

    used: how many devices it has admitted. wrong: how many wrong proofs were sent for it.
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

    def state(self, now: float) -> str:
        """ "open" if it admits devices, else why it does not. now: clock time."""
        if self.standing is not TokenStanding.OPEN:
            return str(self.standing.value)
        if now >= self.expires:
            return "expired"
        return "used up" if self.used >= self.uses else "open"


@dataclass(frozen=True)
class Certified:
    """A certificate of a device. serial: in hexadecimal. spki: SHA-256 of its key, in hexadecimal.

    root: the name of the root that signed it. bundle: the roots that were sent with it. first_used: when the
    device first called with it, or None.
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
    """A device.

    device: its permanent name, as in its certificates. display: the name that is displayed. spki: SHA-256 of
    the key that it joined with. token: the token that admitted it. certificates: those that are not void,
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
class Operator:
    """A person who may call over the network, and the only certificate that is valid for the name.

    serial, spki, root, bundle, issued, expires: as of `Certified`. revoked: whether the certificate was.
    """

    name: str
    role: OperatorRole
    serial: str
    spki: str
    root: str
    bundle: tuple[str, ...]
    issued: float
    expires: float
    revoked: bool = False


@dataclass(frozen=True)
class Issued:
    """A new certificate. serial: in hexadecimal. spki: SHA-256 of its key. issued, expires: clock times.

    root: the name of the root that signed it.
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

    def issue(self, device: DeviceId, key: "PublicKey") -> Issued:
        """Issue a certificate for a device's key, valid from now on."""

    def signer(self, certificate: "x509.Certificate") -> str:
        """The name of the root that signed a certificate; "" if none of ours did."""
