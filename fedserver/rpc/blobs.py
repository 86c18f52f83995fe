"""BlobService, for devices and on the operators' socket. Frames stay bytes here: see `wire.frames`."""
# ruff: noqa: N802 -- methods have the names that the contract gives them

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Protocol

import grpc

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.rpc.admission.identity import Context, Identify, session
from fedserver.store.content.frames import Frame
from shoal.core.engine import timeouts
from shoal.core.engine.timeouts import MIN_BYTES, Progress
from shoal.core.errors import Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as pb
from shoal.core.exchange.payload import BlobRef
from shoal.core.types import Bytes
from shoal.shell.sockets import end_of, while_moving

SERVICE = "fed.v1.BlobService"


class BlobAccess(Protocol):
    """Blobs as one caller may have them: a device's link, or the operator's operator_api."""

    def frames(self, blob: BlobRef, start: int) -> AsyncGenerator[Frame, None]: ...
    async def uploaded(self, blob: BlobRef) -> int: ...
    async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[Bytes]) -> int: ...


class Blobs:
    """blobs: those that the caller has access to."""

    def __init__(self, blobs: Callable[[Context], BlobAccess]) -> None:
        self._blobs = blobs

    async def Fetch(self, request: pb.FetchRequest, context: Context) -> None:
        access, blob = self._blobs(context), wire.blob_from_pb(request.blob)
        caller = end_of(context.peer())
        async with aclosing(access.frames(blob, request.start)) as frames:
            frame = await anext(frames, None)  # the blob may have to come from a bucket first
            try:
                async with while_moving(lambda end: end == caller) as moved:
                    while frame is not None:
                        await context.write(frame.message)
                        moved(len(frame.data))
                        frame = await anext(frames, None)
            except TimeoutError:
                problem = f"nothing was taken for {timeouts.STALL:.0f} s"
                raise Unavailable(problem, "go on where it was cut") from None

    async def Uploaded(self, request: pb.UploadedRequest, context: Context) -> pb.UploadedResponse:
        held = await self._blobs(context).uploaded(wire.blob_from_pb(request.blob))
        return pb.UploadedResponse(held=held)

    async def Upload(self, messages: AsyncIterator[bytes], context: Context) -> pb.UploadResponse:
        arriving = _Arriving(messages)
        blob, start = wire.upload_start(await arriving.next() or b"")
        held = await self._blobs(context).upload(blob, start, arriving.chunks(start))
        return pb.UploadResponse(held=held)


def add_blobs(blobs: Blobs, server: Any) -> None:
    """Serve BlobService as generated code does, except that frames stay bytes in both directions."""
    handlers = {
        "Fetch": grpc.unary_stream_rpc_method_handler(blobs.Fetch, pb.FetchRequest.FromString, bytes),
        "Uploaded": grpc.unary_unary_rpc_method_handler(
            blobs.Uploaded, pb.UploadedRequest.FromString, pb.UploadedResponse.SerializeToString
        ),
        "Upload": grpc.stream_unary_rpc_method_handler(
            blobs.Upload, bytes, pb.UploadResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_registered_method_handlers(SERVICE, handlers)


class _Arriving:
    """The messages of an upload."""

    def __init__(self, messages: AsyncIterator[bytes]) -> None:
        self._messages, self._clock = messages, asyncio.get_running_loop().time
        self._progress = Progress(self._clock())

    async def next(self) -> bytes | None:
        """The next message; None after the last one.

        Raises Unavailable when they stop coming, or drip: then the place is another's.
        """
        try:
            async with asyncio.timeout_at(self._progress.until()):
                return await anext(self._messages, None)
        except TimeoutError:
            problem = f"less than {MIN_BYTES} bytes of an upload came in {timeouts.STALL:.0f} s"
            raise Unavailable(problem, "go on where it was cut") from None

    async def chunks(self, offset: int) -> AsyncIterator[Bytes]:
        while (message := await self.next()) is not None:
            data = wire.uploaded(message, offset)
            offset += len(data)
            self._progress.moved(len(data), self._clock())
            yield data


def blobs_of_device(coordinator: Coordinator, identify: Identify) -> Callable[[Context], BlobAccess]:
    """The blobs of the device that calls."""
    return lambda context: DeviceApi(coordinator, identify(context), session(context))
