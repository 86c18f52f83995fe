"""The key of a server, by which callers know it, and which issues their certificates.

It is one file, <state>/authority/server.pem: the key, and its certificate. Join strings carry its pin. When
it changes, the former key signs the next one, and the proof is part of the next certificate; the former key
is deleted.
"""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey as PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from fedserver.authority import issuing
from fedserver.authority.issuing import Key
from shoal.core.errors import BadPayload, ConfigError, StorageFault
from shoal.core.identity.certificates import certificate as parsed
from shoal.core.identity.certificates import key_from_pem, key_to_pem, new_key, pin_of, uri_of
from shoal.core.identity.signing import Signatures
from shoal.core.identity.succession import links_in, succeeded
from shoal.core.types import DeviceId
from shoal.shell import disk

FOLDER, SERVER = "authority", "server.pem"
RESTORE = "restore the state folder from a backup"
MODE = 0o600
LARGEST = 1 << 16


@dataclass(frozen=True)
class KeyPair:
    """A private key and the certificate of its public half."""

    key: Key
    certificate: x509.Certificate

    @property
    def pem(self) -> bytes:
        """Only the certificate, without the key."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def pin(self) -> bytes:
        return pin_of(self.key.public_key())


class Authority:
    """The key that `make` has created; see `open`."""

    def __init__(self, path: Path) -> None:
        self._path, self.pair = path, _load(path)
        self.federation = issuing.federation_of(self.pair.certificate)

    @classmethod
    def open(cls, state: Path) -> "Authority":
        """Raises ConfigError where it is missing or others may read it, StorageFault where it is damaged."""
        if not exists(state):
            raise ConfigError(
                f"{state} has no key, so devices cannot prove who they are",
                f"create it with: fedserver init --state {state} --host NAME; or serve plain text, to this "
                "machine only, with --insecure-loopback",
            )
        return cls(state / FOLDER / SERVER)

    @property
    def pin(self) -> bytes:
        """SHA-256 of the public key, by which callers know this server."""
        return self.pair.pin

    @property
    def pem(self) -> bytes:
        """The certificate, which is all that callers and this server trust."""
        return self.pair.pem

    @property
    def shown(self) -> tuple[bytes, bytes]:
        """Key and certificate, PEM. gRPC's threads call it too."""
        pair = self.pair
        return key_to_pem(pair.key), pair.pem

    def issue(self, kind: str, name: DeviceId, key: PublicKey) -> bytes:
        """A certificate (PEM) for a caller's key. kind: a device's role, or "operator"."""
        pair, uri = self.pair, uri_of(self.federation, kind, name)
        return issuing.caller(pair.key, pair.certificate, key, uri).public_bytes(Encoding.PEM)

    @property
    def signatures(self) -> Signatures:
        return Signatures(self.federation, self.pair.certificate)

    def check(self, device: DeviceId, proof: bytes, data: bytes) -> None:
        """Raise BadPayload unless this device has signed these data, with a certificate that was issued here:
        as the other devices check what it announces to them."""
        self.signatures.check(device, proof, data)

    def sign(self, data: bytes) -> tuple[str, bytes]:
        """Sign data: the pin of the key, in hexadecimal, and an ECDSA signature with SHA-256. What the data
        begin with must tell them from a certificate."""
        return self.pin.hex(), self.pair.key.sign(data, ECDSA(SHA256()))

    def has_issued(self, found: x509.Certificate) -> bool:
        """Whether the present key has issued this certificate."""
        return self.signatures.has_issued(found)

    def rotate(self) -> None:
        """Replace the key by a new one, which new connections meet from now on. Raises StorageFault."""
        key, former = new_key(), self.pair
        links = succeeded(links_in(former.certificate), former.key, pin_of(key.public_key()))
        pair = KeyPair(key, issuing.server(key, self.federation, links))
        _save(pair, self._path)
        self.pair = pair


def exists(state: Path) -> bool:
    return (state / FOLDER / SERVER).is_file()


def make(state: Path, federation: str) -> None:
    """Create the key of a server. Raises StorageFault."""
    disk.make_folder(state / FOLDER)
    key = new_key()
    _save(KeyPair(key, issuing.server(key, federation, ())), state / FOLDER / SERVER)


def _save(pair: KeyPair, path: Path) -> None:
    """Write it to `path` in one step, readable by this user only. Raises StorageFault."""
    with disk.replacing(path) as file:
        os.fchmod(file.fileno(), MODE)
        file.write(key_to_pem(pair.key) + pair.pem)


def _load(path: Path) -> KeyPair:
    """Raises ConfigError if other users may read the file, StorageFault if it is damaged."""
    with disk.storing(path), path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & ~MODE:
            raise ConfigError(
                f"{path} contains a key and is readable by other users (mode {mode:04o})", f"chmod 600 {path}"
            )
        pem = file.read(LARGEST)
    try:
        pair = KeyPair(key_from_pem(pem), parsed(pem))
    except (StorageFault, BadPayload) as error:
        raise StorageFault(f"{path}: {error.message}", RESTORE) from None
    if pair.certificate.public_key() != pair.key.public_key():
        raise StorageFault(f"{path}: the certificate does not belong to the key", RESTORE)
    return pair
