"""The authorization interceptor of the devices' port: no call reaches a service that its peer may not call.

    TLS verified the certificate --> the device is registered --> its role may make this call --> service

It wraps every service, the health service too, and is the only way to them: a call without a row in
`fedserver.authority.permissions` is denied.
"""

import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import grpc
from grpc import aio

from fedserver.authority.peers import Standings
from fedserver.authority.permissions import ALLOWED
from fedserver.authority.rate_limit import RateLimit
from fedserver.rpc.admission.behalf import Admitted, named_in
from fedserver.rpc.admission.identity import Context, address_of, peer_of, shown_by
from fedserver.rpc.admission.messages import Behavior, around
from shoal.core.errors import ShoalError
from shoal.core.identity.joining import Role

log = logging.getLogger("shoal.auth")

NOTED = 1
"""Denials a minute, for one device and one call, that are written to the audit log."""


class AuthInterceptor(aio.ServerInterceptor):  # type: ignore[type-arg]
    """Asks the registry about the caller of every call, before any of its messages is read.

    trust: called with gRPC's name of the connection of each gateway that calls.
    """

    def __init__(self, peers: Standings, trust: Callable[[str], None] = lambda peer: None) -> None:
        self._peers, self._noted, self._trust = peers, RateLimit(NOTED), trust

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler, method = await continuation(handler_call_details), handler_call_details.method

        def guarded(behavior: Behavior) -> Behavior:
            async def answered(request: Any, context: Context) -> Any:
                with contextlib.ExitStack() as calling:
                    context = await self._admitted(method, context, calling)
                    return await behavior(request, context)

            return answered

        return around(handler, guarded)

    async def _admitted(self, method: str, context: Context, calling: contextlib.ExitStack) -> Context:
        """The context of the device that calls, by itself or through a gateway.

        calling: gets what has to be around the call. Raises Unauthenticated, Revoked or Refused, and logs the
        denial.
        """
        device = ""
        try:
            certificate = shown_by(context)
            context = Admitted(context, certificate)  # type: ignore[assignment]
            peer = peer_of(context)
            device = peer.device
            known = await self._peers.admit(peer, certificate)
            calling.enter_context(self._peers.calling(device))
            if known.role is Role.GATEWAY:
                self._trust(context.peer())
                if carried := named_in(context):
                    context = Admitted(context, carried)  # type: ignore[assignment]
                    peer = peer_of(context)
                    device = peer.device
                    known = await self._peers.admit(peer, carried)
                    calling.enter_context(self._peers.calling(device))
            if method in ALLOWED:  # any other is not served, which no role changes
                self._peers.check_allowed(known, method)
        except ShoalError as error:
            call = method if method in ALLOWED else "a call that is not served"
            address = address_of(context)
            if self._noted.allow(f"{device or address} {call}"):
                caller = device or "an unknown caller"
                log.warning("denied: %s of %s at %s: %s", call, caller, address, error.message)
                facts = {"device": device, "call": call, "reason": error.code, "address": address}
                await self._peers.note_denied(**facts)
            raise
        return context


class RecordingServer:
    """Registers services at a server, and records the handlers of their calls by full name:
    "/package.Service/Call"."""

    def __init__(self, server: aio.Server) -> None:
        self._server = server
        self.calls: dict[str, Any] = {}

    def add_generic_rpc_handlers(self, handlers: Sequence[Any]) -> None:
        """Called by generated code; the same handlers are then registered by name, and recorded there."""
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Called by generated code with the handlers of a service by name."""
        self.calls.update({f"/{service}/{name}": handler for name, handler in handlers.items()})
        self._server.add_registered_method_handlers(service, handlers)  # type: ignore[attr-defined]
