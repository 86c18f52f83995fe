"""The authorization of the devices' port: no call reaches a service that its peer may not call.

    TLS verified the certificate --> the device is registered --> its role may make this call --> service

It wraps every service, the health service too, and is the only way to them: a call without a row in
`fedserver.authority.permissions` is denied.
"""

import logging
from collections.abc import Container, Mapping, Sequence
from typing import Any

from grpc import aio

from fedserver.authority.peers import Peers
from fedserver.authority.permissions import ALLOWED, check_allowed
from fedserver.authority.rate_limit import HOUR, RateLimit
from fedserver.rpc.admission.identity import TLS, Context, address_of, named_in, shown_by
from fedserver.rpc.admission.messages import Behavior
from fedserver.store.identities.audit import Event
from fedserver.store.store import Storage
from shoal.core.errors import ShoalError
from shoal.core.types import DeviceId

log = logging.getLogger("shoal.auth")

NOTED = 1
"""Denials an hour, for one caller, one call and one reason, that are written to the audit log: a device that
was revoked may go on to call for years."""


class Admitted:
    """The context of a call whose caller is known: gRPC's own, except for what TLS has shown.

    A call asks several times who calls, and each question to gRPC costs as much as a check of the registry.
    """

    def __init__(self, context: Context, certificate: bytes) -> None:
        self._context = context
        self._shown = {"x509_pem_cert": [certificate], "ssl_tls_version": TLS}

    def auth_context(self) -> dict[str, list[bytes]]:
        return self._shown

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


class Denials:
    """Notes calls that are denied, in the log and in the audit log. kind: of the callers, "device" or
    "operator". served: the calls of this port."""

    def __init__(self, storage: Storage, kind: str, served: Container[str]) -> None:
        self._storage, self._kind, self._served = storage, kind, served
        self._few = RateLimit(NOTED, HOUR)

    async def note(self, name: str, method: str, context: Context, error: ShoalError) -> None:
        """A call is denied for this error. name: of the caller; "" where that is not known."""
        call = method if method in self._served else "a call that is not served"
        address = address_of(context)
        if self._few.allow(f"{name or address} {call} {error.code}"):
            caller = f"{self._kind} {name}" if name else "an unknown caller"
            log.warning("denied: %s of %s at %s: %s", call, caller, address, error.message)
            facts = {self._kind: name, "call": call, "reason": error.code, "address": address}
            await self._storage.note(Event.DENIED, **facts)


class Authorization:
    """Asks the registry about the caller of every call, before any of its messages is read."""

    def __init__(self, peers: Peers) -> None:
        self._peers, self._denials = peers, Denials(peers.storage, "device", ALLOWED)

    def around(self, method: str, behavior: Behavior) -> Behavior:
        async def answered(request: Any, context: Context) -> Any:
            device, certificate = await self._admitted(method, context)
            with self._peers.calling(device):
                return await behavior(request, Admitted(context, certificate))

        return answered

    async def _admitted(self, method: str, context: Context) -> tuple[DeviceId, bytes]:
        """The device that calls, and its certificate (PEM).

        Raises Unauthenticated, Revoked or Refused, and logs the denial.
        """
        device = ""
        try:
            certificate = shown_by(context)
            peer = named_in(certificate)
            device = peer.name
            known = self._peers.admit(peer)
            if method in ALLOWED:  # any other is not served, which no role changes
                check_allowed(known.role, method)
        except ShoalError as error:
            await self._denials.note(device, method, context, error)
            raise
        return device, certificate


class RecordingServer:
    """Registers services at a server, and records their calls by full name: "/package.Service/Call"."""

    def __init__(self, server: aio.Server) -> None:
        self._server = server
        self.calls: set[str] = set()

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Called by generated code; the same handlers are then registered by name, and recorded there."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Called by generated code with the handlers of a service by name."""
        self.calls.update(f"/{service}/{name}" for name in handlers)
        self._server.add_registered_method_handlers(service, handlers)  # type: ignore[attr-defined]
