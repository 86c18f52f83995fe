"""Keys (X25519), sealed letters (ChaCha20-Poly1305), and masks that a key expands to (ChaCha20)."""

import hmac
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from shoal.core.errors import BadPayload

Words = npt.NDArray[np.uint32]
"""Numbers of 32 bits, which are added modulo 2^32."""


def public_of(private: bytes) -> bytes:
    """The public key of a private one: 32 bytes each."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def agreed(private: bytes, public: bytes, digest: bytes, purpose: str) -> bytes:
    """The key that two devices have in common, for one cohort and one purpose.

    Raises BadPayload for a public key with which all private ones give the same.
    """
    return derived(exchanged(private, public), digest, purpose)


def exchanged(private: bytes, public: bytes) -> bytes:
    """The secret that two devices have in common. Raises BadPayload as `agreed` does."""
    try:
        return _private(private).exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        raise BadPayload("a public key in the manifest of a cohort is not a sound one") from None


def derived(secret: bytes, digest: bytes, purpose: str) -> bytes:
    """HKDF with SHA-256 (RFC 5869): one block, salted with the digest of the cohort."""
    return hmac.digest(hmac.digest(digest, secret, "sha256"), purpose.encode() + b"\x01", "sha256")


@lru_cache(4)
def _private(private: bytes) -> X25519PrivateKey:
    return X25519PrivateKey.from_private_bytes(private)


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
    stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(_zeros(4 * count))
    return np.frombuffer(stream, "<u4")


@lru_cache(2)
def _zeros(count: int) -> bytes:
    return bytes(count)


class Stream:
    """Entropy from a key: the same bytes again for a task that is done again."""

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(ChaCha20(key, bytes(16)), None).encryptor()

    def __call__(self, count: int) -> bytes:
        return self._cipher.update(bytes(count))
