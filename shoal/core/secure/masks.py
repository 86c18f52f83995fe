"""Keys (X25519), sealed letters (ChaCha20-Poly1305), and masks that a key expands to (ChaCha20)."""

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from shoal.core.errors import BadPayload

Words = npt.NDArray[np.uint32]
"""Numbers of 32 bits, which are added modulo 2^32."""
KEY = 32


def public_of(private: bytes) -> bytes:
    """The public key of a private one: 32 bytes each."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, digest: bytes, purpose: str) -> bytes:
    """The key that two devices have in common, for one cohort and one purpose.

    Raises BadPayload for a public key with which all private ones give the same.
    """
    try:
        secret = X25519PrivateKey.from_private_bytes(private).exchange(
            X25519PublicKey.from_public_bytes(public)
        )
    except ValueError:
        raise BadPayload("a public key in the manifest of a cohort is not a sound one") from None
    return HKDF(SHA256(), KEY, digest, purpose.encode()).derive(secret)


def sealed(key: bytes, letter: bytes) -> bytes:
    """A letter that only the owner of the key can read. One key seals one letter."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), letter, None)


def opened(key: bytes, letter: bytes) -> bytes | None:
    """What was sealed; None if it was changed, or sealed with another key."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), letter, None)
    except InvalidTag:
        return None


def expanded(key: bytes, count: int) -> Words:
    """(count,) words that look random without the key. One key makes one mask."""
    stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(4 * count))
    return np.frombuffer(stream, "<u4")


class Stream:
    """Entropy from a key: the same bytes again for a task that is done again."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(ChaCha20(key, bytes(16)), None).encryptor()

    def __call__(self, count: int) -> bytes:
        return self._cipher.update(bytes(count))
