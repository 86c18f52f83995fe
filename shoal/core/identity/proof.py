"""Prove that a device knows its token's secret, or holds a key, without sending either."""

import hashlib
import hmac

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ec import (
    ECDSA,
    EllipticCurvePrivateKey,
    EllipticCurvePublicKey,
)
from cryptography.hazmat.primitives.hashes import SHA256


def key_of(secret: bytes) -> bytes:
    """The key of proofs, made from a token's secret. The server stores only this."""
    return hashlib.sha256(secret).digest()


def prove(key: bytes, nonce: bytes, pin: bytes, csr: bytes) -> bytes:
    """Compute HMAC-SHA-256 over the challenge, the server's pin and the request, so none can be exchanged."""
    return hmac.new(key, _signed(nonce, pin, csr), hashlib.sha256).digest()


def is_proved(key: bytes, nonce: bytes, pin: bytes, csr: bytes, proof: bytes) -> bool:
    """Whether a proof is right, in a time that does not depend on where it is wrong."""
    return hmac.compare_digest(prove(key, nonce, pin, csr), proof)


def sign(key: EllipticCurvePrivateKey, nonce: bytes, pin: bytes, csr: bytes) -> bytes:
    """Sign the same with the key of a device: ECDSA with SHA-256."""
    return key.sign(_signed(nonce, pin, csr), ECDSA(SHA256()))


def is_signed(key: EllipticCurvePublicKey, nonce: bytes, pin: bytes, csr: bytes, signature: bytes) -> bool:
    try:
        key.verify(signature, _signed(nonce, pin, csr), ECDSA(SHA256()))
    except InvalidSignature:
        return False
    return True


def _signed(nonce: bytes, pin: bytes, csr: bytes) -> bytes:
    return nonce + pin + hashlib.sha256(csr).digest()
