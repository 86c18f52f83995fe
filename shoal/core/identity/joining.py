"""The messages by which a device gets its certificate, and the roles of devices and of operators."""

import re
from dataclasses import dataclass
from enum import Enum

from shoal.core.errors import ConfigError, ShoalError
from shoal.core.types import DeviceId

NONCE = 32
"""Bytes of a challenge."""
MAX_REQUEST = 4096
"""Bytes of a certificate request."""
TLS_NAME = "shoal"
"""The name in every server's certificate. Callers trust its key and not its name, which TLS wants all the
same."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What devices, operators, runs, releases, channels and federations may be called."""


def check_name(text: str, what: str, error: type[ShoalError] = ConfigError) -> str:
    """The text, if it can be the name of a device, a run and so on. what: of which. Raises `error`."""
    if not NAME.fullmatch(text):
        raise error(
            f"{text[:64]!r} is not a name for {what}",
            "use 1 to 64 letters, digits, dots, dashes and underscores, a letter or digit first",
        )
    return text


class Role(Enum):
    """What a device may do. An OBSERVER may see how runs stand, and nothing else."""

    TRAIN = "train"
    INFER_ONLY = "infer-only"
    OBSERVER = "observer"


class OperatorRole(Enum):
    """What an operator may do. An OPERATOR may do all that a VIEWER may."""

    VIEWER = "viewer"
    OPERATOR = "operator"

    def suffices(self, needed: "OperatorRole") -> bool:
        """Whether this role may make a call that needs `needed`.

        Example:
            >>> OperatorRole.OPERATOR.suffices(OperatorRole.VIEWER)
            True
        """
        return self is OperatorRole.OPERATOR or needed is OperatorRole.VIEWER


@dataclass(frozen=True)
class Challenge:
    """What a caller has to answer first. nonce: 32 bytes, used once, valid for `valid` seconds.

    clock: the server's, in seconds since 1970.
    """

    nonce: bytes
    valid: float
    clock: float


@dataclass(frozen=True)
class Joining:
    """A device asks with a join string. csr: PKCS #10, DER. proof: see `shoal.core.identity.proof`."""

    token: str
    nonce: bytes
    csr: bytes
    proof: bytes
    device: DeviceId


@dataclass(frozen=True)
class Returning:
    """A device that has a key already asks for a certificate. certificate: its last one, PEM.

    csr: for the key in that, or for the key that is to take its place. signature: by the key in that.
    """

    certificate: bytes
    nonce: bytes
    csr: bytes
    signature: bytes


@dataclass(frozen=True)
class IssuedIdentity:
    """What a device gets when it has joined. certificate: PEM. authority: the server's certificate, PEM,
    which is the only one to trust. address: where devices call, "host:port".
    """

    certificate: bytes
    authority: bytes
    federation: str
    device: DeviceId
    role: Role
    address: str


@dataclass(frozen=True)
class Pending:
    """An operator has to approve the device first. fingerprint: of the device's key. retry_in: seconds."""

    fingerprint: bytes
    retry_in: float
