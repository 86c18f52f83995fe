"""What devices call at a gateway: every call of the contract, which it passes on to the server."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from grpc import aio

from fedserver.authority.permissions import ALLOWED
from fedserver.rpc.admission.identity import Context, session, shown_by
from fedserver.rpc.blobs import Arriving
from fedserver.rpc.gateway.brain import Brain, Passed
from fedserver.rpc.gateway.stream import Caller
from shoal.core.exchange import wire


def add_all(server: aio.Server, brain: Brain) -> None:
    """Serve what devices may call at the server, and nothing that only gateways call."""
    services: dict[str, dict[str, Any]] = {}
    for method in _methods():
        name = method.containing_service.full_name
        services.setdefault(name, {})[method.name] = _handler(method, brain)
    for service, handlers in services.items():
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_registered_method_handlers(service, handlers)  # type: ignore[attr-defined]


def _methods() -> Iterator[MethodDescriptor]:
    for service in wire.services_of_devices():
        for method in service.methods:
            if f"/{service.full_name}/{method.name}" in ALLOWED:
                yield method


def _handler(method: MethodDescriptor, brain: Brain) -> Any:
    """Requests are parsed, so that what is none ends here; answers stay bytes, and so do frames of blobs."""
    path, cls = f"/{method.containing_service.full_name}/{method.name}", GetMessageClass(method.input_type)

    async def ask(request: Message, context: Context) -> bytes:
        try:
            return await brain.ask(_caller(context), path, request.SerializeToString(), session(context))
        except Passed as answer:
            await context.abort(answer.status, answer.details)

    async def fetch(request: Message, context: Context) -> AsyncIterator[bytes]:
        try:
            async for frame in brain.fetch(
                _caller(context), path, request.SerializeToString(), session(context)
            ):
                yield frame
        except Passed as answer:
            await context.abort(answer.status, answer.details)

    async def upload(messages: AsyncIterator[bytes], context: Context) -> bytes:
        try:
            return await brain.upload(_caller(context), path, Arriving(messages).messages(), session(context))
        except Passed as answer:
            await context.abort(answer.status, answer.details)

    if method.client_streaming:
        return grpc.stream_unary_rpc_method_handler(upload, bytes, bytes)
    if method.server_streaming:
        return grpc.unary_stream_rpc_method_handler(fetch, cls.FromString, bytes)
    return grpc.unary_unary_rpc_method_handler(ask, cls.FromString, bytes)


def _caller(context: Context) -> Caller:
    return Caller(shown_by(context), context.peer())
