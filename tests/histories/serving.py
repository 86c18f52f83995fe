"""The server's end of the simulated network: gRPC's servicers as they ship, called without gRPC."""

import asyncio
import functools
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import grpc
from grpc import aio

from shoal.core.types import DeviceId
from tests.histories.processes import Process

END = b"end of stream"
"""After the last request of a stream."""
Observer = Callable[[str, DeviceId, bytes, Any], None]
"""Called with each call that was answered: the method, the device, the request's bytes and the answer."""


class SimServer:
    """The calls of one life of the server.

    shown: what a device's connection shows of it. bug: called with what no error of ours foresaw.
    """

    def __init__(
        self,
        process: Process,
        shown: Callable[[DeviceId], Mapping[str, Any]],
        observe: Observer,
        bug: Callable[[str], None],
    ) -> None:
        self.process, self.shown, self.observe, self.bug = process, shown, observe, bug
        self._handlers: dict[str, Any] = {}
        self._open: dict[Handling, None] = {}

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        """The same handlers come by name, too."""

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        for name, handler in handlers.items():
            self._handlers[f"/{service}/{name}"] = handler

    async def start(self, interceptor: Any) -> None:
        """interceptor: decides about every call, and reads the requests' bytes."""
        for path, handler in self._handlers.items():
            inner = functools.partial(_found, handler)
            self._handlers[path] = await interceptor.intercept_service(inner, SimpleNamespace(method=path))

    async def stop(self, grace: float) -> None:
        """Wait for calls that are under way, at most `grace` seconds."""
        waiting = [handling.outcome for handling in self._open]
        if waiting:
            await asyncio.wait(waiting, timeout=grace)
        for handling in list(self._open):
            handling.cancel()

    def handle(
        self, path: str, identity: DeviceId, metadata: tuple[tuple[str, str], ...], requests: Any
    ) -> "Handling":
        handling = Handling(self, path, self._handlers[path], identity, metadata)
        self._open[handling] = None
        handling.start(requests)
        return handling

    def ended(self, handling: "Handling") -> None:
        self._open.pop(handling, None)


class Handling:
    """One call at the server, and its servicer's context. outcome: the answer or the error."""

    def __init__(self, server: SimServer, path: str, handler: Any, identity: DeviceId, metadata: Any) -> None:
        self._server, self._path, self._handler = server, path, handler
        self._identity, self._metadata = identity, metadata
        self.outcome: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._answers: asyncio.Queue[bytes] = asyncio.Queue(2)
        self._trailing: tuple[tuple[str, Any], ...] = ()
        self._error: aio.AioRpcError | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, requests: Any) -> None:
        self._task = self._server.process.spawn(self._run(requests))
        self._task.add_done_callback(self._ended)

    def cancel(self) -> None:
        """The caller is gone."""
        if self._task is not None:
            self._task.cancel()

    async def next(self) -> bytes | None:
        """The next of a stream of answers, None at its end."""
        if not self._answers.empty():
            return self._answers.get_nowait()
        getting = asyncio.ensure_future(self._answers.get())
        try:
            await asyncio.wait([getting, self.outcome], return_when=asyncio.FIRST_COMPLETED)
            if getting.done():
                return getting.result()
            self.outcome.result()
            return None
        finally:
            getting.cancel()

    async def _run(self, requests: Any) -> None:
        handler, process = self._handler, self._server.process
        process.step("received", self._path.rpartition("/")[2])
        write = handler.response_serializer
        one = isinstance(requests, bytes)  # the interceptor gives every method a stream of requests
        arriving = _only(requests) if one else _each(requests)
        if handler.response_streaming:
            await handler.stream_stream(arriving, self)
            answer = b""
        else:
            response = await handler.stream_unary(arriving, self)
            if one:
                self._server.observe(self._path, self._identity, requests, response)
            answer = write(response)
        process.step("answered", self._path.rpartition("/")[2])
        if not self.outcome.done():
            self.outcome.set_result(answer)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._server.ended(self)
        error: BaseException | None = None if task.cancelled() else task.exception()
        process = self._server.process
        if self.outcome.done() or (process.power and not process.alive):
            return  # a machine without power breaks no connection: the caller has to find out
        if error is not None and not isinstance(error, aio.AbortError):
            self._server.bug("".join(traceback.format_exception(error)))
        lost = aio.AioRpcError(
            grpc.StatusCode.UNAVAILABLE, aio.Metadata(), aio.Metadata(), "connection reset by peer"
        )
        self.outcome.set_exception(self._error or lost)
        self.outcome.exception()  # it is not always asked for

    # -- what a servicer may ask of its context -------------------------------------------------------------

    async def send_initial_metadata(self, metadata: Any) -> None:
        await asyncio.sleep(0)

    async def write(self, response: Any) -> None:
        await self._answers.put(self._handler.response_serializer(response))

    def auth_context(self) -> Mapping[str, Any]:
        return self._server.shown(self._identity)

    def peer(self) -> str:
        return f"ipv4:{self._identity}:50000"

    def invocation_metadata(self) -> Any:
        return self._metadata

    def set_trailing_metadata(self, trailing: Any) -> None:
        self._trailing = tuple(trailing)

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing: Any = ()) -> None:
        if code is grpc.StatusCode.INTERNAL and sys.exc_info()[1] is not None:
            self._server.bug(f"{self._path}: {traceback.format_exc()}")
        self._error = aio.AioRpcError(code, aio.Metadata(), aio.Metadata(*self._trailing), details)
        raise aio.AbortError(details)


async def _found(handler: Any, _: Any) -> Any:
    return handler


async def _only(request: bytes) -> AsyncIterator[bytes]:
    yield request


async def _each(queue: "asyncio.Queue[bytes]") -> AsyncIterator[bytes]:
    while (data := await queue.get()) != END:
        yield data
