"""Decide who is calling: the TLS peer or, on plain loopback, the device that the caller names."""

import functools
import ipaddress
from collections.abc import Callable, Iterable, Mapping
from typing import Any
from urllib.parse import unquote

from grpc import aio

from shoal.core.errors import BadPayload, Unauthenticated
from shoal.core.identity.certificates import Named, certificate, named_by
from shoal.core.identity.joining import check_name
from shoal.core.types import DeviceId

Context = aio.ServicerContext[Any, Any]

TLS = [b"TLSv1.3"]
CACHED = 4096
"""Certificates whose reading is remembered: a device shows the same one at every call."""


Identify = Callable[[Context], DeviceId]
"""Who calls: `named` in plain text, `verified` with certificates. Raises BadPayload or Unauthenticated."""


def named(context: Context) -> DeviceId:
    """A caller in plain text on this machine is believed when it says which device it is."""
    return check_name(_entry(context, "shoal-device"), "a device, in shoal-device", BadPayload)


def verified(context: Context) -> DeviceId:
    """A caller that `authorization` has admitted."""
    return peer_of(context).name


def peer_of(context: Context) -> Named:
    """Read the certificate of the TLS peer. Raises Unauthenticated."""
    return named_in(shown_by(context))


def shown_by(context: Context) -> bytes:
    """The certificate of the TLS peer, PEM. Raises Unauthenticated."""
    found = list(require_tls(context).get("x509_pem_cert", ()))
    if len(found) != 1:
        raise Unauthenticated("there is no certificate", "join first: fedclient join")
    return bytes(found[0])


def require_tls(context: Context) -> Mapping[str, Iterable[bytes]]:
    """What gRPC knows of the peer. It has no option to speak only TLS 1.3, so that is checked here. Raises
    Unauthenticated."""
    facts = context.auth_context()
    if list(facts.get("ssl_tls_version", ())) != TLS:
        raise Unauthenticated("the connection is not TLS 1.3", "use a client that speaks TLS 1.3")
    return facts


def address_of(context: Context) -> str:
    """The network address of a caller, by which limits are kept."""
    return network_of(context.peer())


@functools.lru_cache(CACHED)
def network_of(peer: str) -> str:
    """The address in gRPC's name of a peer, such as "ipv4:10.0.0.7:50051".

    Of an IPv6 address the network of 64 bits, since the owner of one of its addresses has all of them.
    """
    host = unquote(peer.partition(":")[2].rpartition(":")[0]).strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is None:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(getattr(address, "ipv4_mapped", None) or address)


def session(context: Context) -> str:
    """The session that the caller names in its metadata, for calls whose request has no field for it."""
    return _entry(context, "shoal-session")


@functools.lru_cache(CACHED)
def named_in(pem: bytes) -> Named:
    """What a caller's certificate says. Raises Unauthenticated."""
    try:
        return named_by(certificate(pem))
    except BadPayload as error:
        raise Unauthenticated(error.message, error.hint) from None


def _entry(context: Context, name: str) -> str:
    values = [value for key, value in context.invocation_metadata() or () if key == name]
    return values[0] if len(values) == 1 and isinstance(values[0], str) else ""
