"""Decide who is calling: the TLS peer or, on plain loopback, the device that the caller names."""

import functools
import ipaddress
from collections.abc import Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import unquote

from grpc import aio

from fedserver.authority.peers import Peers
from shoal.core.errors import BadPayload, TooOften, Unauthenticated
from shoal.core.identity.certificates import Named, certificate, named_by
from shoal.core.identity.joining import Role, check_name
from shoal.core.types import DeviceId

Context = aio.ServicerContext[Any, Any]

TLS = [b"TLSv1.3"]
CACHED = 4096
"""Certificates whose reading is remembered: a device shows the same one at every call."""


class Callers(Protocol):
    """What the services ask about a caller."""

    def identify(self, context: Context) -> DeviceId:
        """Who calls. Raises BadPayload or Unauthenticated."""

    async def models_today(self, context: Context) -> int:
        """How many clusters' models the caller has had today; 0 where that is not counted."""

    async def placed(self, context: Context) -> None:
        """Count that the caller is about to be given its model. Raises TooOften."""


class Unverified:
    """Callers in plain text on this machine. They are believed when they say which device they are."""

    def identify(self, context: Context) -> DeviceId:
        return check_name(_entry(context, "shoal-device"), "a device, in shoal-device", BadPayload)

    async def models_today(self, context: Context) -> int:
        return 0

    async def placed(self, context: Context) -> None:
        """Placements are not counted here."""


class Verified:
    """Callers that `authorization` has admitted. placements: a day, for infer-only devices."""

    def __init__(self, peers: Peers, placements: int) -> None:
        self._peers, self._placements = peers, placements
        self._storage = peers.storage

    def identify(self, context: Context) -> DeviceId:
        return peer_of(context).name

    async def models_today(self, context: Context) -> int:
        device = peer_of(context).name
        if self._peers.role(device) is not Role.INFER_ONLY:
            return 0
        return await self._storage.call(self._storage.identities.registry.count_models_of_today, device)

    async def placed(self, context: Context) -> None:
        device = peer_of(context).name
        if self._peers.role(device) is not Role.INFER_ONLY:
            return
        if not await self._storage.call(
            self._storage.identities.registry.spend_placement, device, self._placements
        ):
            raise TooOften(
                f"device {device} has had its {self._placements} placements of today",
                "try again tomorrow; the server's setting is cadence.placements",
            )


def peer_of(context: Context) -> Named:
    """Read the certificate of the TLS peer. Raises Unauthenticated."""
    return named_in(shown_by(context))


def shown_by(context: Context) -> bytes:
    """The certificate of the TLS peer, PEM. Raises Unauthenticated."""
    facts = context.auth_context()
    _check_tls(facts)
    found = list(facts.get("x509_pem_cert", ()))
    if len(found) != 1:
        raise Unauthenticated("there is no certificate", "join first: fedclient join")
    return bytes(found[0])


def require_tls(context: Context) -> None:
    """gRPC has no option to speak only TLS 1.3, so it is checked here. Raises Unauthenticated."""
    _check_tls(context.auth_context())


def _check_tls(facts: Mapping[str, Iterable[bytes]]) -> None:
    if list(facts.get("ssl_tls_version", ())) != TLS:
        raise Unauthenticated("the connection is not TLS 1.3", "use a client that speaks TLS 1.3")


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
