"""Turn errors into what a caller sees: a status, and the fault beside it. One table serves every service."""

import asyncio
import logging
import secrets
from collections.abc import Callable
from typing import Any, NoReturn

import grpc
from grpc import aio

from fedserver.coordinator.placement import CannotPlace
from fedserver.rpc.admission.attention import Attention
from fedserver.rpc.admission.connections import Connections
from fedserver.rpc.admission.identity import Context, address_of
from fedserver.rpc.admission.messages import Behavior, NoSuchCall, TooSlow
from shoal.core.errors import (
    BadPayload,
    Busy,
    ConfigError,
    DataFault,
    NotFound,
    NotLeader,
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

log = logging.getLogger("shoal.rpc")

STATUSES: dict[type[ShoalError], grpc.StatusCode] = {
    NoSuchCall: grpc.StatusCode.UNIMPLEMENTED,
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

RETRY_WINDOW = (0.5, 2.0)
"""Seconds after which a device that has called a server that does not lead may call again."""
REFUSALS = (Refused, BadPayload, TooOften, TooSlow)
"""Errors for which the caller is to blame. A connection that brings nothing else is closed."""

DETAILS, MESSAGE, HINT = 500, 2000, 500
"""Characters of an error that fit into the metadata of an answer."""


def status_of(error: ShoalError) -> grpc.StatusCode:
    """The status that tells a caller what class of error it is."""
    return next((STATUSES[cls] for cls in type(error).__mro__ if cls in STATUSES), grpc.StatusCode.INTERNAL)


class Errors:
    """The outermost layer: turns the errors of every call into statuses, and counts refused calls.

    count: called with the code of each error. The details of a bug stay in the server's log. So do those of
    an error of the disk, with its paths, unless the disk is the caller's own. is_deposed: whether another
    server leads now; see `Store.is_deposed`.
    """

    def __init__(
        self,
        connections: Connections | None = None,
        attention: Attention | None = None,
        own_disk: bool = False,
        count: Callable[[str], None] = lambda code: None,
        is_deposed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._connections, self._attention, self._own_disk = connections, attention, own_disk
        self._count, self._is_deposed = count, is_deposed

    def around(self, method: str, behavior: Behavior) -> Behavior:
        async def answered(request: Any, context: Context) -> Any:
            try:
                answer = await behavior(request, context)
            except asyncio.CancelledError:  # the caller called it off, or its connection is gone
                if self._connections is not None:
                    self._connections.refused(context.peer())
                raise
            except Exception as error:
                refusal = self._refusal(error, context)
            else:
                if self._connections is not None:
                    self._connections.served(context.peer())
                return answer
            return await refuse(context, refusal)

        return answered

    def _refusal(self, error: Exception, context: Context) -> Exception:
        """What a caller hears of an error, which is counted."""
        if isinstance(error, ShoalError) and not isinstance(error, Unavailable) and self._is_deposed():
            # A server that was stopped for a while, and wakes: what it does not know or does not have
            # may well be with the one that leads now.
            error = NotLeader("another server leads now", "call the other server", RETRY_WINDOW)
        self._count(error.code if isinstance(error, ShoalError) else "internal")
        if isinstance(error, REFUSALS):
            self._refused(context)
        if isinstance(error, StorageFault) and not self._own_disk:
            log.error("a call failed: %s", error)
            return Unavailable("the server cannot use its disk at the moment", "try again in a minute")
        return error

    def _refused(self, context: Context) -> None:
        """Count a call that was refused."""
        if self._connections is not None:
            self._connections.refused(context.peer())
        if self._attention is not None:
            self._attention.refused(address_of(context))


async def refuse(context: Context, error: Exception) -> NoReturn:
    """End a call with as much of an error as its caller may know.

    gRPC keeps the exception of an aborted call, and with it this frame, in a cycle of its own until the next
    collection of garbage, after hundreds of calls. What the error came through must not be kept for as long:
    the request is in it, of up to 4 MiB.
    """
    if isinstance(error, aio.AbortError):
        raise error
    if isinstance(error, ShoalError) and status_of(error) is not grpc.StatusCode.INTERNAL:
        fault = wire.fault_to_pb(error, MESSAGE, HINT).SerializeToString()
        context.set_trailing_metadata((("shoal-fault-bin", fault),))
        status, details = status_of(error), error.message[:DETAILS]
    else:
        number = secrets.token_hex(4)
        log.error("error %s in a call", number, exc_info=error)
        status, details = grpc.StatusCode.INTERNAL, f"error {number}: the server's log has the details"
    error.__traceback__ = error.__context__ = error.__cause__ = None
    await context.abort(status, details)
