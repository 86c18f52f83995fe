"""The records of the registry. Clock times are in seconds since 1970."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from shoal.core.identity.joining import OperatorRole, Role
from shoal.core.types import DeviceId

DAY = 86400.0
"""Seconds."""


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
    WITHDRAWN = "withdrawn"

    @property
    def ended(self) -> bool:
        """Whether the device may not call any more: one that was revoked may join again under its name, and
        one that was withdrawn may not."""
        return self in (DeviceStanding.REVOKED, DeviceStanding.WITHDRAWN)


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
class Successor:
    """A key that waits to take the place of the one that a device has. spki: its SHA-256, in hexadecimal.

    token: the one with which it came; "" if this server has certified the key and has forgotten it since.
    """

    spki: str
    role: Role
    labels: Mapping[str, str]
    token: str
    created: float


@dataclass(frozen=True)
class Registered:
    """A device.

    device: its permanent name. spki: SHA-256 of its key, in hexadecimal.
    token: the token that admitted it; "" as of `Successor`. successor: the key that waits to replace its key.
    """

    device: DeviceId
    role: Role
    labels: Mapping[str, str]
    standing: DeviceStanding
    created: float
    spki: str
    token: str
    successor: Successor | None = None

    @property
    def waits(self) -> bool:
        """Whether an operator has to approve a key of it."""
        return self.standing is DeviceStanding.PENDING or self.successor is not None

    @property
    def waiting_key(self) -> str:
        """SHA-256, in hexadecimal, of the key that an operator would approve; "" if none waits."""
        if self.successor is not None:
            return self.successor.spki
        return self.spki if self.standing is DeviceStanding.PENDING else ""


@dataclass(frozen=True)
class Operator:
    """A person who may call over the network. spki: SHA-256 of the only key that is valid for the name, in
    hexadecimal."""

    name: str
    role: OperatorRole
    spki: str
    created: float
    revoked: bool = False
