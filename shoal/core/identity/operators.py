"""How the certificate of an operator, who calls a server over the network, names that person."""

import re
from dataclasses import dataclass

from cryptography import x509

from shoal.core.errors import BadPayload
from shoal.core.identity.certificates import key_hash, uri_in

URI = re.compile(r"spiffe://([A-Za-z0-9][A-Za-z0-9._-]{0,63})/operator/([A-Za-z0-9][A-Za-z0-9._-]{0,63})")


@dataclass(frozen=True)
class NamedOperator:
    """What an operator's certificate says. serial, and spki, the SHA-256 of its key: in hexadecimal."""

    federation: str
    name: str
    serial: str
    spki: str


def operator_uri(federation: str, name: str) -> str:
    return f"spiffe://{federation}/operator/{name}"


def operator_named_by(found: x509.Certificate) -> NamedOperator:
    """Read which operator a certificate names. Raises BadPayload if it is not an operator's certificate."""
    match = URI.fullmatch(uri_in(found))
    if match is None:
        raise BadPayload(
            "the certificate does not name an operator of a federation",
            "get one with: fedserver operator add NAME",
        )
    return NamedOperator(match[1], match[2], f"{found.serial_number:x}", key_hash(found))
