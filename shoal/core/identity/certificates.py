"""Create and read keys, certificate requests and certificates, all on P-256.

A certificate is how a key gets through TLS, and says nothing else that counts: who a key belongs to, and
whether it may call, is in the server's registry. So it is valid from `BEGIN` to `END`, and no clock matters.
A caller's certificate names it by one URI: spiffe://FEDERATION/ROLE/NAME, where ROLE is that of a device when
it joined, or "operator".
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime

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

BEGIN, END = datetime(1950, 1, 1), datetime(9999, 12, 31, 23, 59, 59)
"""The earliest and the latest time, UTC, that a certificate can have (RFC 5280)."""
OPERATOR = "operator"
URI = re.compile(
    r"spiffe://([A-Za-z0-9][A-Za-z0-9._-]{0,63})/(train|infer-only|observer|operator)/([A-Za-z0-9][A-Za-z0-9._-]{0,63})"
)


@dataclass(frozen=True)
class Named:
    """What a caller's certificate says. kind: a device's role, or "operator". spki: SHA-256 of its key, in
    hexadecimal."""

    federation: str
    kind: str
    name: str
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


def uri_of(federation: str, kind: str, name: DeviceId) -> str:
    return f"spiffe://{federation}/{kind}/{name}"


def named_by(found: x509.Certificate) -> Named:
    """Read whom a certificate names. Raises BadPayload if it names no caller of a federation."""
    match = URI.fullmatch(_uri_in(found))
    if match is None:
        raise BadPayload("the certificate does not name a caller of a federation", "join again")
    return Named(match[1], match[2], match[3], pin_of(key_in(found)).hex())


def key_in(found: x509.Certificate) -> ec.EllipticCurvePublicKey:
    """The key of a certificate. Raises BadPayload for one that is not on the curve P-256."""
    try:
        key = found.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise BadPayload("the key of the certificate is not on the curve P-256", "get another certificate")
    return key


def _uri_in(found: x509.Certificate) -> str:
    """The URI of a certificate; "" unless it has exactly one."""
    try:
        names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except (x509.ExtensionNotFound, ValueError):
        return ""
    return uris[0] if len(uris) == 1 else ""
