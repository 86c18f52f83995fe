"""What a device's calls look like at the edge of a server, noted; and a place to disturb them there.

It is a layer around each method, inside of those that decide who may call. So what it raises reaches the
device as any error does, and what it does not touch is the real server's. `fedserver.conformance` uses it.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message as Protobuf

from fedserver.rpc.admission.connections import close
from fedserver.rpc.admission.identity import Context, session
from fedserver.rpc.admission.messages import Behavior
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blobs
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device
from shoal.core.exchange._pb.fed.v1 import placement_service_pb2 as placement
from shoal.shell.sockets import end_of

REQUESTS: dict[str, type[Protobuf]] = {
    "Hello": device.HelloRequest,
    "NextTask": device.NextTaskRequest,
    "Alive": device.AliveRequest,
    "Report": device.ReportRequest,
    "Leave": device.LeaveRequest,
    "Fetch": blobs.FetchRequest,
    "Uploaded": blobs.UploadedRequest,
    "Upload": blobs.UploadRequest,
    "Place": placement.PlaceRequest,
    "GetSeal": placement.GetSealRequest,
}
"""The calls that are noted, by the last part of their name; of an upload, the first message."""
EVERY_PORT = range(1 << 16)
"""Only the edge's device is connected from its end."""
UNKNOWN = b"\xf8\x3f\x01"
"""A field that no message has: number 1023, with the value 1."""


@dataclass(eq=False)
class Call:
    """One call. at, over: when it began and when it was answered, by the event loop's clock; over is infinite
    until then. session: that it names, in its request or its metadata. answer: None also if it failed, and
    error has the code then."""

    name: str
    request: Any
    session: str
    at: float
    over: float = float("inf")
    answer: Any = None
    error: str = ""


Disturbance = Callable[[Call], Awaitable[None]]


class Edge:
    """calls: all so far, in the order in which they began.

    before, after: by the name of a call, what is done before the server gets it, and once it has answered.
    Both may raise a ShoalError; `after` may change the answer. passing: what becomes of each message of an
    upload on its way in, or of a fetch on its way out, by its number from 0; None cuts the connection. The
    end of an upload passes, too, as an empty message.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.before: dict[str, Disturbance] = {}
        self.after: dict[str, Disturbance] = {}
        self.passing: dict[str, Callable[[int, bytes], bytes | None]] = {}

    def leave_alone(self) -> None:
        """Disturb nothing from now on."""
        for each in (self.before, self.after, self.passing):
            each.clear()

    def around(self, method: str, behavior: Behavior) -> Behavior:
        name = method.rpartition("/")[2]
        if name not in REQUESTS:
            return behavior

        async def observed(messages: AsyncIterator[bytes], context: Context) -> Any:
            first = await anext(messages, b"")
            request = wire.message_from_bytes(REQUESTS[name], first)
            named = getattr(request, "session", "") or session(context)
            call = Call(name, request, named, asyncio.get_running_loop().time())
            self.calls.append(call)
            try:
                if name in self.before:
                    await self.before[name](call)
                answer = await behavior(
                    self._arriving(name, first, messages, context), _Written(self, name, context)
                )
                call.answer = _copy(answer)
                if name in self.after:
                    await self.after[name](call)
                return call.answer
            except BaseException as error:
                call.answer, call.error = None, getattr(error, "code", "") or "failed"
                raise
            finally:
                call.over = asyncio.get_running_loop().time()

        return observed

    async def _arriving(
        self, name: str, first: bytes, messages: AsyncIterator[bytes], context: Context
    ) -> AsyncIterator[bytes]:
        yield await self.passed(name, 0, first, context)
        number = 1
        async for message in messages:
            yield await self.passed(name, number, message, context)
            number += 1
        await self.passed(name, number, b"", context)

    async def passed(self, name: str, number: int, message: bytes, context: Context) -> bytes:
        """The message as it passes. Does not return where the connection is cut: the call is canceled."""
        if name not in self.passing or (name == "Fetch") != isinstance(context, _Written):
            return message
        passed = self.passing[name](number, message)
        if passed is None:
            caller = end_of(context.peer())
            await asyncio.to_thread(close, lambda end: end == caller, EVERY_PORT)
            await asyncio.Event().wait()
        assert passed is not None
        return passed


class _Written:
    """A context through whose `write` the edge sees what goes out."""

    def __init__(self, edge: Edge, name: str, context: Context) -> None:
        self._edge, self._name, self._context, self._number = edge, name, context, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def write(self, message: bytes) -> None:
        number, self._number = self._number, self._number + 1
        await self._context.write(await self._edge.passed(self._name, number, message, self))  # type: ignore[arg-type]


def _copy(answer: Any) -> Any:
    """An answer that can be changed: the server may give the same one again."""
    if answer is None:
        return None
    copy = type(answer)()
    copy.CopyFrom(answer)
    return copy


def halved(message: bytes) -> bytes:
    """A message of an upload with the first half of its chunk."""
    request = wire.message_from_bytes(blobs.UploadRequest, message)
    request.chunk.data = request.chunk.data[: len(request.chunk.data) // 2]
    return request.SerializeToString()
