"""Turn errors into what a caller sees: a status, and the fault beside it. One table serves every service.

This module also stands between the bytes of a call and its behavior: requests are parsed within limits, and
a call ends if its caller takes nothing of the answer.
"""

import asyncio
import contextlib
import inspect
import logging
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message
from grpc import aio

from fedserver.coordinator.placement import CannotPlace
from shoal.core.engine import timeouts
from shoal.core.errors import (
    BadPayload,
    Busy,
    ConfigError,
    DataFault,
    NotFound,
    Refused,
    ServerFull,
    SessionLost,
    ShoalError,
    StaleReport,
    StorageFault,
    Taken,
    TooOften,
    Unauthenticated,
    Unavailable,
    WrongVersion,
)
from shoal.core.exchange import wire

M = TypeVar("M", bound=Message)
Behavior = Callable[[Any, Any], Awaitable[Any]]
log = logging.getLogger("shoal.rpc")

STATUSES: dict[type[ShoalError], grpc.StatusCode] = {
    SessionLost: grpc.StatusCode.FAILED_PRECONDITION,
    WrongVersion: grpc.StatusCode.FAILED_PRECONDITION,
    CannotPlace: grpc.StatusCode.FAILED_PRECONDITION,
    StaleReport: grpc.StatusCode.FAILED_PRECONDITION,
    BadPayload: grpc.StatusCode.INVALID_ARGUMENT,
    ConfigError: grpc.StatusCode.INVALID_ARGUMENT,
    DataFault: grpc.StatusCode.INVALID_ARGUMENT,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    Taken: grpc.StatusCode.ALREADY_EXISTS,
    Refused: grpc.StatusCode.PERMISSION_DENIED,
    NotFound: grpc.StatusCode.NOT_FOUND,
    Busy: grpc.StatusCode.RESOURCE_EXHAUSTED,
    TooOften: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Unavailable: grpc.StatusCode.UNAVAILABLE,
    ServerFull: grpc.StatusCode.RESOURCE_EXHAUSTED,
    StorageFault: grpc.StatusCode.RESOURCE_EXHAUSTED,
}
"""An error has the status of the nearest of its classes. An error that is not here is a bug."""

DETAILS, MESSAGE, HINT = 500, 2000, 500
"""Characters of an error that fit into the metadata of an answer."""


def status_of(error: ShoalError) -> grpc.StatusCode:
    """The status that tells a caller what class of error it is."""
    return next((STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES), grpc.StatusCode.INTERNAL)


class Errors(aio.ServerInterceptor):  # type: ignore[type-arg]
    """Turns the errors of every call into statuses. The details of a bug stay in the server's log."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None:  # there is no such method
            return None
        return around(_reading(handler), _answered)


def around(handler: Any, wrap: Callable[[Behavior], Behavior]) -> Any:
    """Wrap the behavior of a call's handler. Behaviors of all four forms become coroutines."""
    name = (
        f"{'stream' if handler.request_streaming else 'unary'}_"
        f"{'stream' if handler.response_streaming else 'unary'}"
    )
    behavior = getattr(handler, name)
    return handler._replace(
        **{name: wrap(_written(behavior) if inspect.isasyncgenfunction(behavior) else behavior)}
    )


def _written(behavior: Callable[[Any, Any], AsyncGenerator[Any, None]]) -> Behavior:
    """Make a coroutine that writes a stream of answers, so that a cancellation reaches a slow write too."""

    async def written(request: Any, context: aio.ServicerContext[Any, Any]) -> None:
        async with contextlib.aclosing(behavior(request, context)) as responses:
            async for response in responses:
                await _write(response, context)

    return written


async def _write(response: Any, context: aio.ServicerContext[Any, Any]) -> None:
    """Write one answer. gRPC waits for room at the caller; raises Unavailable if that takes too long."""
    try:
        async with asyncio.timeout(timeouts.STALL):
            await context.write(response)
    except TimeoutError:
        raise Unavailable(f"nothing was taken for {timeouts.STALL:.0f} s", "go on where it was cut") from None


def _reading(handler: Any) -> Any:
    """Make a handler parse its requests itself, since gRPC answers malformed bytes with errors of its own."""
    cls: type[Message] = handler.request_deserializer.__self__

    def read(behavior: Behavior) -> Behavior:
        async def given(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
            if handler.request_streaming:
                return await behavior(_each(cls, request), context)
            return await behavior(wire.message_from_bytes(cls, request), context)

        return given

    return around(handler, read)._replace(request_deserializer=None)


async def _each(cls: type[M], requests: AsyncIterator[bytes]) -> AsyncIterator[M]:
    async for request in requests:
        yield wire.message_from_bytes(cls, request)


def _answered(behavior: Behavior) -> Behavior:
    async def answered(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behavior(request, context)
        except Exception as error:
            await abort(context, error)

    return answered


async def abort(context: aio.ServicerContext[Any, Any], error: Exception) -> None:
    """End a call with as much of an error as its caller may know."""
    if isinstance(error, aio.AbortError):
        raise error
    if isinstance(error, ShoalError) and status_of(error) is not grpc.StatusCode.INTERNAL:
        fault = wire.fault_to_pb(error, MESSAGE, HINT).SerializeToString()
        context.set_trailing_metadata((("shoal-fault-bin", fault),))
        await context.abort(status_of(error), error.message[:DETAILS])
    number = secrets.token_hex(4)
    log.error("error %s in a call", number, exc_info=error)
    await context.abort(grpc.StatusCode.INTERNAL, f"error {number}: the server's log has the details")
