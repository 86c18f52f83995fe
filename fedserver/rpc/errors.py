"""What a caller sees of an error: a status, and the fault beside it. One table, for every service."""

import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from grpc import aio

from fedcore import wire
from fedcore.errors import (
    BadPayload,
    ConfigError,
    DataFault,
    NotFound,
    Refused,
    ServerFull,
    SessionLost,
    ShoalError,
    StaleReport,
    StorageFault,
    Unavailable,
    WrongVersion,
)
from fedserver.placing import CannotPlace

log = logging.getLogger("shoal.rpc")

STATUSES: dict[type[ShoalError], grpc.StatusCode] = {
    SessionLost: grpc.StatusCode.FAILED_PRECONDITION,
    WrongVersion: grpc.StatusCode.FAILED_PRECONDITION,
    CannotPlace: grpc.StatusCode.FAILED_PRECONDITION,
    StaleReport: grpc.StatusCode.FAILED_PRECONDITION,
    BadPayload: grpc.StatusCode.INVALID_ARGUMENT,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    DataFault: grpc.StatusCode.INVALID_ARGUMENT,
    Refused: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    ServerFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StorageFault: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""An error has the status of the nearest of its classes; what is not here is a bug of ours."""

DETAILS, MESSAGE, MEND = 500, 2000, 500
"""Characters of an error that fit into the metadata of an answer."""


def status_of(error: ShoalError) -> grpc.StatusCode:
    """The status that tells a caller what class of error it is."""
    return next((STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES), grpc.StatusCode.INTERNAL)


class Errors(aio.ServerInterceptor):  # type: ignore[type-arg]
    """Around every call: errors become statuses, and what is not one of ours stays in our log."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:  # there is no such method
            return None
        if handler.response_streaming:
            streams = "stream_stream" if handler.request_streaming else "unary_stream"
            return handler._replace(**{streams: _stream(getattr(handler, streams))})
        unary = "stream_unary" if handler.request_streaming else "unary_unary"
        return handler._replace(**{unary: _unary(getattr(handler, unary))})


def _unary(behaviour: Callable[[Any, Any], Awaitable[Any]]) -> Callable[[Any, Any], Awaitable[Any]]:
    async def answered(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(request, context)
        except Exception as error:
            await _abort(context, error)

    return answered


def _stream(behaviour: Callable[[Any, Any], AsyncIterator[Any]]) -> Callable[[Any, Any], AsyncIterator[Any]]:
    async def answered(request: Any, context: aio.ServicerContext[Any, Any]) -> AsyncIterator[Any]:
        try:
            async for response in behaviour(request, context):
                yield response
        except Exception as error:
            await _abort(context, error)

    return answered


async def _abort(context: aio.ServicerContext[Any, Any], error: Exception) -> None:
    if isinstance(error, aio.AbortError):
        raise error
    if isinstance(error, ShoalError) and status_of(error) is not grpc.StatusCode.INTERNAL:
        cut = ShoalError(error.message[:MESSAGE], error.mend[:MEND])
        cut.code = error.code  # type: ignore[misc]
        fault = wire.fault_to_pb(cut).SerializeToString()
        context.set_trailing_metadata((("shoal-fault-bin", fault),))
        await context.abort(status_of(error), error.message[:DETAILS])
    number = secrets.token_hex(4)
    log.error("error %s in a call", number, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"error {number}: the server's log has the details")
