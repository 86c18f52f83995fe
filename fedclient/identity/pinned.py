"""The certificate of a port of which only its key's hash is known: looked at before anything is sent."""

import asyncio
import ssl

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fedclient.faults import SomeoneElse
from fedclient.identity.keyring import EnrolPort
from shoal.core.engine.timeouts import CONNECTION
from shoal.core.errors import Unavailable
from shoal.core.identity.certificates import pin_of


async def shown(port: EnrolPort) -> x509.Certificate:
    """The certificate that is shown at `port`, if its key has the pin: from then on that is whom to trust.

    A handshake of TLS 1.3 and nothing else: no name, no token, no byte of ours.
    Raises Unavailable when nobody answers, SomeoneElse when it is another.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the pin is checked instead
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(CONNECTION):
            _, writer = await asyncio.open_connection(port.host.strip("[]"), port.port, ssl=context)
    except ssl.SSLError:
        raise SomeoneElse(
            f"{port.address} is no enrolment port: it speaks no TLS 1.3", "ask for a new join string"
        ) from None
    except (OSError, TimeoutError) as error:
        why = getattr(error, "strerror", None) or str(error) or "no answer in time"
        hint = "is the server running there, and may this device reach it?"
        raise Unavailable(f"{port.address} does not answer: {why}", hint) from None
    data = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    try:
        certificate = x509.load_der_x509_certificate(data)
        found = pin_of(certificate.public_key())  # type: ignore[arg-type]
    except (ValueError, UnsupportedAlgorithm):
        found = b""
    if found != port.pin:
        raise SomeoneElse(
            f"someone else answers at {port.address}: its key is not the one that the join string names",
            "nothing was sent; ask the server's operator for a new join string, and how it can be that",
        )
    return certificate


def to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def name_in(certificate: x509.Certificate) -> str:
    """A name that the certificate is for, whichever: its key is what is trusted. "" when it has none."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(common[0].value) if common else ""
    found = [*names.get_values_for_type(x509.DNSName), *names.get_values_for_type(x509.IPAddress)]
    return str(found[0]) if found else ""
