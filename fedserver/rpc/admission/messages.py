"""The messages of a call: requests are read within limits, and a call ends if its caller takes no answer.

gRPC reads the one request of a call before it runs any of our code, so a caller that sends only headers would
hold a place for as long as its connection lasts. Here every method runs as soon as its headers have arrived:
the layers around it decide about the caller, and then its request is read, within a deadline.

Calls that wait for their first message never keep others out: if there are too many of them, the one that has
waited longest is ended, of the caller that has the most.
"""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message
from grpc import aio

from fedserver.rpc.admission.identity import Context, network_of
from shoal.core.engine import timeouts
from shoal.core.errors import BadPayload, Refused, Unavailable
from shoal.core.exchange import wire

Behavior = Callable[[Any, Any], Awaitable[Any]]

LARGE = timeouts.answer(4 << 20)
"""Seconds for the largest message over the slowest line: gRPC shows a message only when it is complete."""
LARGE_REQUESTS = ("/fed.v1.DeviceService/Report", "/fed.v1.PlacementService/Place")
"""Calls whose request may be that large. They are for callers that the registry knows."""
MAX_SILENT = 16_384


class TooSlow(Unavailable):
    """The first message of a call did not arrive in time, or its place was needed."""


class NoSuchCall(Refused):
    """The caller named a method that is not served here."""


class Layer(Protocol):
    """Something that is decided about the calls of a port."""

    def around(self, method: str, behavior: Behavior) -> Behavior:
        """A behavior that decides, and then does what this one does. method: "" for all that are not served
        here."""


class Calls(aio.ServerInterceptor):  # type: ignore[type-arg]
    """The only interceptor of a port: puts the layers around each method once, and reads the requests within.

    layers: the outermost first. within: seconds for the first message of a call. most: how many calls may
    wait for theirs.
    """

    def __init__(self, *layers: Layer, within: float = timeouts.STALL, most: int = MAX_SILENT) -> None:
        self._layers, self._within, self._silent = layers, within, Silent(most)
        self._known: dict[str, Any] = {}
        self._unknown = grpc.stream_stream_rpc_method_handler(self._layered("", no_such_call))

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method not in self._known:
            handler = await continuation(handler_call_details)
            if handler is None:
                return self._unknown
            self._known[method] = self._opened(handler, method)
        return self._known[method]

    def _layered(self, method: str, behavior: Behavior) -> Behavior:
        for layer in reversed(self._layers):
            behavior = layer.around(method, behavior)
        return behavior

    def _opened(self, handler: Any, method: str) -> Any:
        """The same method, which runs when its headers have arrived and gets a stream of bytes.

        A method with a stream of requests parses them itself.
        """
        behavior, within = _behavior_of(handler), LARGE if method in LARGE_REQUESTS else self._within
        if handler.response_streaming:
            behavior = _begun(behavior)
        if not handler.request_streaming:
            behavior = self._read(behavior, handler.request_deserializer.__self__, within)
        make = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make(_closed(self._layered(method, behavior)), None, handler.response_serializer)

    def _read(self, behavior: Behavior, cls: type[Message], within: float) -> Behavior:
        """A behavior that reads the one request of a call."""

        async def read(requests: AsyncIterator[bytes], context: Context) -> Any:
            data = await self._silent.first(requests, within, network_of(context.peer()))
            return await behavior(wire.message_from_bytes(cls, data), context)

        return read


class Silent:
    """The calls whose first message has not arrived, by caller: at most `most` of all."""

    def __init__(self, most: int) -> None:
        self._most, self._count = most, 0
        self._calls: dict[str, dict[asyncio.Timeout, None]] = {}

    async def first(self, requests: AsyncIterator[bytes], within: float, caller: str) -> bytes:
        """The first message of a call. Raises TooSlow if it does not arrive in time, BadPayload if there is
        none."""
        try:
            async with asyncio.timeout(within) as ends:
                with self._counted(caller, ends):
                    return await anext(requests)
        except TimeoutError:
            raise TooSlow(
                "the message of the call did not arrive in time", "send it with the headers"
            ) from None
        except StopAsyncIteration:
            raise BadPayload("the call has no message", "send one") from None

    @contextlib.contextmanager
    def _counted(self, caller: str, ends: asyncio.Timeout) -> Iterator[None]:
        if self._count >= self._most:
            largest = max(self._calls, key=lambda each: len(self._calls[each]))
            oldest = next(iter(self._calls[largest]))
            self._forget(largest, oldest)
            oldest.reschedule(asyncio.get_running_loop().time())
        self._calls.setdefault(caller, {})[ends] = None
        self._count += 1
        try:
            yield
        finally:
            self._forget(caller, ends)

    def _forget(self, caller: str, ends: asyncio.Timeout) -> None:
        """Count a call no longer. Safe to repeat."""
        calls = self._calls.get(caller, {})
        if ends in calls:
            del calls[ends]
            self._count -= 1
        if not calls:
            self._calls.pop(caller, None)


async def no_such_call(requests: object, context: Context) -> None:
    raise NoSuchCall("there is no such call here", "is the software of the other side newer?")


def _closed(behavior: Behavior) -> Behavior:
    """The same behavior, whose requests are closed when it ends.

    gRPC's iterator is part of a cycle with the last message in it, which nothing but a collection of garbage
    would free: with messages of up to 4 MiB, hundreds of calls later.
    """

    async def closed(requests: AsyncIterator[bytes], context: Context) -> Any:
        messages: Any = aiter(requests)
        async with contextlib.aclosing(messages):
            return await behavior(messages, context)

    return closed


def _behavior_of(handler: Any) -> Behavior:
    """What a handler does, as a coroutine in all four forms."""
    request = "stream" if handler.request_streaming else "unary"
    behavior = getattr(handler, f"{request}_{'stream' if handler.response_streaming else 'unary'}")
    return _written(behavior) if inspect.isasyncgenfunction(behavior) else behavior


def _begun(behavior: Behavior) -> Behavior:
    """The same behavior, before which the headers of the answer are sent, to the end even if the call is cut
    meanwhile.

    Where a call ends during its first write, gRPC does not know yet that its headers are out, sends them
    again with the status, and fails: the caller would wait for a status that never comes.
    """

    async def begun(request: Any, context: Context) -> Any:
        sending = asyncio.ensure_future(context.send_initial_metadata(()))
        try:
            await asyncio.shield(sending)
        except asyncio.CancelledError:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(sending, timeouts.STALL)
            raise
        return await behavior(request, context)

    return begun


def _written(behavior: Callable[[Any, Any], AsyncGenerator[Any, None]]) -> Behavior:
    """Make a coroutine that writes a stream of answers, so that a cancellation reaches a slow write too."""

    async def written(request: Any, context: Context) -> None:
        async with contextlib.aclosing(behavior(request, context)) as responses:
            async for response in responses:
                await _write(response, context)

    return written


async def _write(response: Any, context: Context) -> None:
    """Write one answer. gRPC waits for room at the caller; raises Unavailable if that takes too long."""
    try:
        async with asyncio.timeout(timeouts.STALL):
            await context.write(response)
    except TimeoutError:
        raise Unavailable(f"nothing was taken for {timeouts.STALL:.0f} s", "go on where it was cut") from None
