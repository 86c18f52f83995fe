"""A release of this software: what its maker signs of it.

A statement is one line with a signature (Ed25519, in base64) and, below it, what is signed: a JSON object
with the version, and the SHA-256 and the size of its wheel.
"""

import base64
import binascii
import hashlib
import json
import re
from dataclasses import asdict, dataclass

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from shoal.core.errors import BadPayload, ConfigError

LONGEST, LARGEST = 4096, 64 << 20
"""Bytes of a statement, and of a wheel."""
CONTEXT = b"a release of Shoal\n"
"""It is signed before each statement, so that no other signature by the same key can be taken for one."""
MAKER = b"""-----BEGIN PUBLIC KEY-----
MCowBQYDK2VwAyEAQuY1o5NPDRPQ5HosI9lx0qpPQDInFHKK3CemIkPvVZs=
-----END PUBLIC KEY-----
"""
"""The public key of this project's releases."""
HINT = "publish what scripts/release has written"


@dataclass(frozen=True)
class Release:
    """version: MAJOR.MINOR.PATCH. sha256, size: of its wheel, in hexadecimal digits and in bytes.

    Raises BadPayload for what is no release.
    """

    version: str
    sha256: str
    size: int

    def __post_init__(self) -> None:
        numbers(self.version)
        if not re.fullmatch(r"[0-9a-f]{64}", self.sha256) or not 0 < self.size <= LARGEST:
            raise BadPayload(f"version {self.version} has no SHA-256, or a size that is not allowed", HINT)

    @property
    def wheel(self) -> str:
        """The name of its wheel."""
        return f"shoal_fed-{self.version}-py3-none-any.whl"

    @property
    def statement(self) -> str:
        """The name of the newest statement of its series."""
        return f"shoal-{'.'.join(self.version.split('.')[:2])}.release"

    def check(self, wheel: bytes) -> None:
        """Raises BadPayload unless this is its wheel."""
        if len(wheel) != self.size or hashlib.sha256(wheel).hexdigest() != self.sha256:
            raise BadPayload(f"the wheel of version {self.version} is not the one that is signed", HINT)

    def signed(self, key: Ed25519PrivateKey) -> bytes:
        """The statement."""
        text = json.dumps(asdict(self)).encode()
        return base64.b64encode(key.sign(CONTEXT + text)) + b"\n" + text + b"\n"


def read(statement: bytes, key: Ed25519PublicKey) -> Release:
    """The release of a statement that this key has signed. Raises BadPayload.

    Example:
        >>> key = Ed25519PrivateKey.generate()
        >>> release = Release("0.3.1", "ab" * 32, 1_600_000)
        >>> read(release.signed(key), key.public_key()) == release
        True
    """
    line, _, text = statement[:LONGEST].partition(b"\n")
    text = text.removesuffix(b"\n")
    try:
        key.verify(base64.b64decode(line, validate=True), CONTEXT + text)
    except (binascii.Error, InvalidSignature):
        hint = "set updates.key to the key of the maker, if you trust it"
        raise BadPayload("the statement of a release is not signed by the key that is set", hint) from None
    try:
        found = json.loads(text)
        parts = [found[name] for name in ("version", "sha256", "size")]
    except (ValueError, TypeError, KeyError, RecursionError):
        parts = []
    if [type(each) for each in parts] != [str, str, int]:
        raise BadPayload("the statement of a release lacks its version, SHA-256 or size", HINT)
    return Release(*parts)


def numbers(version: str) -> tuple[int, int, int]:
    """The parts of a version, which are compared in this order. Raises BadPayload.

    Example:
        >>> numbers("0.10.2") > numbers("0.9.3")
        True
    """
    found = re.fullmatch(r"(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})\.(0|[1-9][0-9]{0,5})", version)
    if found is None:
        raise BadPayload(f"{version!r} is not a version", "write MAJOR.MINOR.PATCH")
    major, minor, patch = map(int, found.groups())
    return major, minor, patch


def statements(version: str) -> tuple[str, str]:
    """The names of the statements that a device of this version looks for: first of the next minor version,
    then of its own. No version is skipped, since only adjacent ones open each other's folders.

    Example:
        >>> statements("0.2.7")
        ('shoal-0.3.release', 'shoal-0.2.release')
    """
    major, minor, _ = numbers(version)
    return f"shoal-{major}.{minor + 1}.release", f"shoal-{major}.{minor}.release"


def public_key(pem: bytes) -> Ed25519PublicKey:
    """Raises ConfigError."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        raise ConfigError("this is not a public key (Ed25519, PEM)", "openssl pkey -in release.key -pubout")
    return key


def private_key(pem: bytes) -> Ed25519PrivateKey:
    """Raises ConfigError."""
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError("this is not a private key (Ed25519, PEM)", "openssl genpkey -algorithm ed25519")
    return key
