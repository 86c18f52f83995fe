"""Keys on disk: each in one PEM file with its certificate, so that there is never one without the other."""

import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from fedserver.authority.issuing import Key
from shoal.core.errors import BadPayload, ConfigError, StorageFault
from shoal.core.identity.certificates import certificate, key_from_pem, key_to_pem, pin_of
from shoal.shell import disk

MODE = 0o600
LARGEST = 1 << 16


@dataclass(frozen=True)
class KeyPair:
    """A private key and the certificate of its public half."""

    key: Key
    certificate: x509.Certificate

    @property
    def key_pem(self) -> bytes:
        return key_to_pem(self.key)

    @property
    def pem(self) -> bytes:
        """The certificate alone."""
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def pin(self) -> bytes:
        return pin_of(self.key.public_key())


def save(pair: KeyPair, path: Path) -> None:
    """Put it in the place of `path` in one step, for this user's eyes alone. Raises StorageFault."""
    with disk.replacing(path) as file:
        os.fchmod(file.fileno(), MODE)
        file.write(pair.key_pem + pair.pem)


def load(path: Path) -> KeyPair:
    """Raises ConfigError when others may read the file, StorageFault when it is not what `save` wrote."""
    with disk.storing(path), path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & ~MODE:
            raise ConfigError(f"{path} holds a key, and its mode is {mode:04o}", f"chmod 600 {path}")
        pem = file.read(LARGEST)
    try:
        pair = KeyPair(key_from_pem(pem), certificate(pem))
    except (StorageFault, BadPayload) as error:
        raise StorageFault(f"{path}: {error.message}", "restore the state folder from a backup") from None
    if pair.certificate.public_key() != pair.key.public_key():
        raise StorageFault(f"{path}: the certificate is not of that key", "restore it from a backup")
    return pair
