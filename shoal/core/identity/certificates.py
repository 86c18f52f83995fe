"""Create and read keys, certificate requests and certificates, all on P-256.

A device's certificate names it by one URI, spiffe://FEDERATION/device/NAME, and nothing else is read from it.
"""

import hashlib
import re
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from shoal.core.errors import BadPayload, StorageFault
from shoal.core.identity.joining import MAX_REQUEST
from shoal.core.types import DeviceId

URI = re.compile(r"spiffe://([A-Za-z0-9][A-Za-z0-9._-]{0,63})/device/([A-Za-z0-9][A-Za-z0-9._-]{0,63})")


@dataclass(frozen=True)
class Named:
    """What a device's certificate says. serial: in hexadecimal. spki: SHA-256 of its key, in hexadecimal."""

    federation: str
    device: DeviceId
    serial: str
    spki: str


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def key_to_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Encode a key as PKCS #8, unencrypted: the file's mode protects it."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def key_from_pem(pem: bytes) -> ec.EllipticCurvePrivateKey:
    """Read a key. Raises StorageFault if it is not a P-256 key."""
    try:
        key = load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise StorageFault(f"a key cannot be read: {error}", "join again with a new join string") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise StorageFault("a key is not on the curve P-256", "join again with a new join string")
    return key


def pin_of(key: CertificatePublicKeyTypes) -> bytes:
    """Return the SHA-256 of a public key as certificates carry it (SubjectPublicKeyInfo, DER)."""
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()


def fingerprint(pin: bytes) -> str:
    """Format a key's hash so that people can compare two screens: hexadecimal in groups of four."""
    digits = pin.hex()
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def request(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Create a certificate request, DER. It has no name in it: the server writes the names."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    return builder.sign(key, SHA256()).public_bytes(Encoding.DER)


def key_of_request(csr: bytes) -> ec.EllipticCurvePublicKey:
    """Read the key of a request, which has to be signed by that key. Raises BadPayload."""
    if len(csr) > MAX_REQUEST:
        raise BadPayload(f"a certificate request of {len(csr)} bytes", f"{MAX_REQUEST} are enough")
    try:
        asked = x509.load_der_x509_csr(csr)
        key, sound = asked.public_key(), asked.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature, x509.InvalidVersion):
        raise BadPayload("that is not a certificate request", "send PKCS #10, DER") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadPayload("the key of the certificate request is not on the curve P-256", "make such a key")
    if not sound:
        raise BadPayload("the certificate request is not signed by its own key", "sign it with that key")
    return key


def certificate(pem: bytes) -> x509.Certificate:
    """Read the first certificate in `pem`. Raises BadPayload."""
    try:
        return x509.load_pem_x509_certificate(pem)
    except (ValueError, TypeError, x509.InvalidVersion):
        raise BadPayload("that is not a certificate", "send PEM") from None


def key_in(found: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """The key of a certificate that an authority of ours has signed. Raises BadPayload for any other key."""
    key = found.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise BadPayload("the key of the certificate is not on the curve P-256", "get another certificate")
    return key


def uri_of(federation: str, device: DeviceId) -> str:
    return f"spiffe://{federation}/device/{device}"


def named_by(found: x509.Certificate) -> Named:
    """Read which device a certificate names. Raises BadPayload if it is not a device's certificate."""
    match = URI.fullmatch(uri_in(found))
    if match is None:
        raise BadPayload("the certificate does not name a device of a federation", "join again")
    return Named(match[1], match[2], f"{found.serial_number:x}", key_hash(found))


def uri_in(found: x509.Certificate) -> str:
    """The URI of a certificate; "" unless it has exactly one."""
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        return ""
    return uris[0] if len(uris) == 1 else ""


def key_hash(found: x509.Certificate) -> str:
    """SHA-256 of a certificate's key, in hexadecimal. Raises BadPayload if the key cannot be read."""
    try:
        return pin_of(found.public_key()).hex()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadPayload("the key of the certificate cannot be read", "get another certificate") from None
