"""Sign with the key of a device's certificate, and check what the server and other devices have signed.

A proof is the length of the signature (2 bytes), the signature (ECDSA with SHA-256) and the certificate
(DER).
"""

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from shoal.core.errors import BadPayload, NotGenuine
from shoal.core.identity.certificates import certificate, key_from_pem, key_in, named_by
from shoal.core.identity.succession import key_with
from shoal.core.types import DeviceId


class Signatures:
    """Checks what devices of a federation have signed. authority: who issued their certificates."""

    def __init__(self, federation: str, authority: x509.Certificate) -> None:
        self._federation, self._authority = federation, authority

    def check(self, device: DeviceId, proof: bytes, data: bytes) -> None:
        """Raise BadPayload unless this device of the federation has signed these data."""
        size = int.from_bytes(proof[:2], "big")
        try:
            found = x509.load_der_x509_certificate(proof[2 + size :])
            named = named_by(found)
            key_in(found).verify(proof[2 : 2 + size], data, ECDSA(SHA256()))
        except (ValueError, InvalidSignature, BadPayload, x509.InvalidVersion):
            raise BadPayload(f"{device!r} of the cohort did not sign its keys") from None
        if (named.federation, named.name) != (self._federation, device) or not self.has_issued(found):
            raise BadPayload(f"the keys of {device!r} of the cohort are signed by another device")

    def has_issued(self, found: x509.Certificate) -> bool:
        """Whether the authority of the federation has issued this certificate."""
        try:
            found.verify_directly_issued_by(self._authority)
        except (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm):
            return False
        return True


class Certified(Signatures):
    """The identity of one device, which also signs. key, own, authority: PEM."""

    def __init__(self, key: bytes, own: bytes, authority: bytes) -> None:
        self._key, self._own = key_from_pem(key), certificate(own)
        super().__init__(named_by(self._own).federation, certificate(authority))

    def sign(self, data: bytes) -> bytes:
        signature = self._key.sign(data, ECDSA(SHA256()))
        return len(signature).to_bytes(2, "big") + signature + self._own.public_bytes(Encoding.DER)


def check_signed(server: x509.Certificate, signer: str, signature: bytes, data: bytes) -> None:
    """Check what a server has signed. signer: the pin of the key by which it is said to be, in hexadecimal.

    Raises NotGenuine unless the server with this certificate has that key, or had it before, and it has
    signed the data.
    """
    try:
        key = key_with(bytes.fromhex(signer), server)
    except ValueError:
        key = None
    if key is None:
        raise NotGenuine(
            f"it is signed by key {signer[:64]}, from which no proof leads to the server's present key",
            "ask the server's operator for another release",
        )
    try:
        key.verify(signature, data, ECDSA(SHA256()))
    except InvalidSignature:
        raise NotGenuine("it is not what the server's key has signed", "do not use it") from None
