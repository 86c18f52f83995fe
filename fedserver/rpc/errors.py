"""What a caller sees of an error: a status, and the fault beside it. One table, for every service."""

import contextlib
import inspect
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
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
    Taken,
    TooOften,
    Unauthenticated,
    Unavailable,
    WrongVersion,
)
from fedserver.placing import CannotPlace

log = logging.getLogger("shoal.rpc")

Behaviour = Callable[[Any, Any], Awaitable[Any]]

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
    TooOften: grpc.StatusCode.RESOURCE_EXHAUSTED,
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
        return None if handler is None else around(handler, _answered)


def around(handler: Any, wrap: Callable[[Behaviour], Behaviour]) -> Any:
    """The handler of a call with something around its behaviour, which is a coroutine in all four forms."""
    name = (
        f"{'stream' if handler.request_streaming else 'unary'}_"
        f"{'stream' if handler.response_streaming else 'unary'}"
    )
    behaviour = getattr(handler, name)
    return handler._replace(
        **{name: wrap(_written(behaviour) if inspect.isasyncgenfunction(behaviour) else behaviour)}
    )


def _written(behaviour: Callable[[Any, Any], AsyncGenerator[Any, None]]) -> Behaviour:
    """A stream of answers as a coroutine that writes them: an end from outside reaches a slow write too."""

    async def written(request: Any, context: aio.ServicerContext[Any, Any]) -> None:
        async with contextlib.aclosing(behaviour(request, context)) as responses:
            async for response in responses:
                await context.write(response)

    return written


def _answered(behaviour: Behaviour) -> Behaviour:
    async def answered(request: Any, context: aio.ServicerContext[Any, Any]) -> Any:
        try:
            return await behaviour(request, context)
        except Exception as error:
            await abort(context, error)

    return answered


async def abort(context: aio.ServicerContext[Any, Any], error: Exception) -> None:
    """End a call with what its caller may know of an error."""
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
