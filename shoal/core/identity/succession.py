"""How a caller that knows a server by its key follows it to the next key: the former key signs the next one.

The proofs are in the server's certificate, oldest first, each under the length of the former key (2 bytes):
the key (SubjectPublicKeyInfo, DER), and its signature (ECDSA with SHA-256) on the hash of the next one.
"""

import hashlib
from itertools import pairwise

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key

from shoal.core.identity.certificates import pin_of

OID = x509.ObjectIdentifier("2.25.1832405913")
"""Of the extension with the proofs."""
MAX_LINKS = 8
"""How many changes of the key a caller may have slept through."""
PURPOSE = b"shoal: the next key of this server"

Link = tuple[bytes, bytes]
"""A former key, and its signature."""


def succeeded(links: tuple[Link, ...], former: ec.EllipticCurvePrivateKey, pin: bytes) -> tuple[Link, ...]:
    """The proofs that lead to the next key. links: those that lead to the former one. pin: of the next."""
    key = former.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return (*links, (key, former.sign(PURPOSE + pin, ec.ECDSA(SHA256()))))[-MAX_LINKS:]


def extension(links: tuple[Link, ...]) -> x509.UnrecognizedExtension:
    """As it stands in a certificate."""
    parts = (len(part).to_bytes(2, "big") + part for link in links for part in link)
    return x509.UnrecognizedExtension(OID, b"".join(parts))


def links_in(certificate: x509.Certificate) -> tuple[Link, ...]:
    """The proofs in a server's certificate; none if there are none that can be read."""
    try:
        found = certificate.extensions.get_extension_for_oid(OID).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    parts, rest = list[bytes](), found.value if isinstance(found, x509.UnrecognizedExtension) else b""
    while rest:
        size = 2 + int.from_bytes(rest[:2], "big")
        parts.append(rest[2:size])
        rest = rest[size:]
    return tuple(zip(parts[::2], parts[1::2], strict=False))[-MAX_LINKS:]


def leads(pin: bytes, certificate: x509.Certificate) -> bool:
    """Whether the server with this certificate is the one whose key had this pin: it still has that key, or
    one that the former keys have named, one after another, since then."""
    links = links_in(certificate)
    pins = [*(hashlib.sha256(key).digest() for key, _ in links), pin_of(certificate.public_key())]
    if pin not in pins:
        return False
    since = pins.index(pin)
    steps = zip(links[since:], pairwise(pins[since:]), strict=True)
    return all(_signed(key, signature, following) for (key, signature), (_, following) in steps)


def key_with(pin: bytes, certificate: x509.Certificate) -> ec.EllipticCurvePublicKey | None:
    """The server's key that has this pin: its present one, or one from which the proofs lead to that; None
    if it has none."""
    if not leads(pin, certificate):
        return None
    former = [key for key, _ in links_in(certificate) if hashlib.sha256(key).digest() == pin]
    found = load_der_public_key(former[0]) if former else certificate.public_key()
    assert isinstance(found, ec.EllipticCurvePublicKey)
    return found


def _signed(key: bytes, signature: bytes, pin: bytes) -> bool:
    try:
        found = load_der_public_key(key)
        if not isinstance(found, ec.EllipticCurvePublicKey):
            return False
        found.verify(signature, PURPOSE + pin, ec.ECDSA(SHA256()))
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature):
        return False
    return True
