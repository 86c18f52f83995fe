"""The client's gRPC, all of it: a `Link` over a channel, and what its statuses mean.

Every call has a deadline. Which call may be tried again is not decided here: `Unavailable` says that it may.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from fedcore import wire
from fedcore._pb.fed.v1 import blob_service_pb2 as blobs
from fedcore._pb.fed.v1 import device_service_pb2 as device
from fedcore._pb.fed.v1.blob_service_pb2_grpc import BlobServiceStub
from fedcore._pb.fed.v1.device_service_pb2_grpc import DeviceServiceStub
from fedcore._pb.fed.v1.fault_pb2 import Fault
from fedcore._pb.fed.v1.placement_service_pb2_grpc import PlacementServiceStub
from fedcore.errors import BadPayload, NotFound, Refused, ShoalError, Unavailable, WrongVersion
from fedcore.link import Hello, Idle, Placement, Question, Receipt, Report, Task, Welcome
from fedcore.parts import Descriptor
from fedcore.payload import BlobRef
from fedcore.types import RunId

T = TypeVar("T")

CALL = 15.0
"""Seconds that a call may take, a long poll apart from its wait."""
SLOWEST = 64 << 10
"""Bytes a second: a transfer that is slower than this is cut, and goes on where it was."""

OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 500),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.enable_http_proxy", 0),  # a loopback address is never another machine's to reach
)

STATUSES: dict[grpc.StatusCode, type[ShoalError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: BadPayload,
    grpc.StatusCode.OUT_OF_RANGE: BadPayload,
    grpc.StatusCode.DATA_LOSS: BadPayload,
    grpc.StatusCode.NOT_FOUND: NotFound,
    grpc.StatusCode.FAILED_PRECONDITION: Refused,
    grpc.StatusCode.PERMISSION_DENIED: Refused,
    grpc.StatusCode.ALREADY_EXISTS: Refused,
    grpc.StatusCode.UNIMPLEMENTED: Refused,
    grpc.StatusCode.UNAUTHENTICATED: Refused,
}
"""Every other status is Unavailable: the server is away, busy or failing, and may be back."""


class RpcLink:
    """A device's calls to the server at `address` ("host:port"), under the name `device_name`."""

    def __init__(self, address: str, device_name: str) -> None:
        self.address = address
        self._name, self._session = device_name, ""
        self._channel = aio.insecure_channel(address, options=OPTIONS)
        self._device = DeviceServiceStub(self._channel)
        self._blobs = BlobServiceStub(self._channel)
        self._placement = PlacementServiceStub(self._channel)

    async def close(self) -> None:
        await self._channel.close(None)

    async def hello(self, hello: Hello) -> Welcome:
        """Until the welcome is here, calls that go on beside this one are still of the former session."""
        call = self._device.Hello(wire.hello_to_pb(hello), metadata=self._identity(), timeout=CALL)
        welcome = wire.welcome_from_pb(await self._answer(call))
        if not hello.oldest_protocol <= welcome.protocol <= hello.newest_protocol:
            raise WrongVersion(f"the server speaks protocol {welcome.protocol}", "update the older side")
        self._session = welcome.session
        return welcome

    async def next_task(self, wait: float) -> Task | Idle:
        request = device.NextTaskRequest(session=self._session, wait=wire.seconds_to_pb(wait))
        call = self._device.NextTask(request, metadata=self._identity(), timeout=wait + CALL)
        return wire.next_from_pb(await self._answer(call))

    async def alive(self, run: RunId, round: int, attempt: int) -> bool:
        lease = wire.lease_to_pb(wire.Lease(run, round, attempt))
        request = device.AliveRequest(session=self._session, lease=lease)
        call = self._device.Alive(request, metadata=self._identity(), timeout=CALL)
        return (await self._answer(call)).wanted

    async def report(self, report: Report) -> Receipt:
        request = device.ReportRequest(session=self._session, report=wire.report_to_pb(report))
        call = self._device.Report(request, metadata=self._identity(), timeout=4 * CALL)
        return wire.receipt_from_pb((await self._answer(call)).receipt)

    async def leave(self) -> None:
        request = device.LeaveRequest(session=self._session)
        await self._answer(self._device.Leave(request, metadata=self._identity(), timeout=CALL))

    async def place(self, run: RunId, descriptor: Descriptor | None) -> Question | Placement:
        request = wire.place_to_pb(run, descriptor)
        call = self._placement.Place(request, metadata=self._identity(), timeout=4 * CALL)
        return wire.answer_from_pb(await self._answer(call))

    async def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[bytes]:
        request = blobs.FetchRequest(blob=wire.blob_to_pb(blob), start=start)
        call = self._blobs.Fetch(request, metadata=self._identity(), timeout=_transfer(blob.size - start))
        try:
            with self._errors():
                async for response in call:
                    chunk = wire.chunk_from_pb(response.chunk, start)
                    start += len(chunk)
                    yield chunk
        finally:
            call.cancel()

    async def uploaded(self, blob: BlobRef) -> int:
        request = blobs.UploadedRequest(blob=wire.blob_to_pb(blob))
        call = self._blobs.Uploaded(request, metadata=self._identity(), timeout=CALL)
        return _held(blob, (await self._answer(call)).held)

    async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[bytes]) -> int:
        call = self._blobs.Upload(
            _requests(blob, start, chunks), metadata=self._identity(), timeout=_transfer(blob.size - start)
        )
        return _held(blob, (await self._answer(call)).held)

    def _identity(self) -> tuple[tuple[str, str], ...]:
        """Who calls. Only for plain text on loopback: with certificates it is the TLS peer instead."""
        session = (("shoal-session", self._session),) if self._session else ()
        return (("shoal-device", self._name), *session)

    async def _answer(self, call: Awaitable[T]) -> T:
        with self._errors():
            return await call

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Around a call: what gRPC raises becomes a ShoalError."""
        try:
            yield
        except aio.AioRpcError as error:
            raise error_of(error, self.address) from None


def error_of(error: aio.AioRpcError, address: str) -> ShoalError:
    """What a failed call means: whether to try again by the status, the rest by the server's own code."""
    said, cls = _said(error), STATUSES.get(error.code(), Unavailable)
    if cls is not Unavailable:
        return cls(said.message, said.mend) if type(said) is ShoalError else said
    if said.mend:  # the server's own words, so it does answer
        return Unavailable(said.message, said.mend)
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        why = said.message.rpartition(": ")[2]  # without the library's own chain of causes
        return Unavailable(f"{address} does not answer: {why}", "is the server running there?")
    status = error.code().name.lower().replace("_", " ")
    return Unavailable(f"{address} has a problem of its own ({status}): {said.message}", "ask its operator")


def _said(error: aio.AioRpcError) -> ShoalError:
    """The server's code, message and mend, from the entries of the trailing metadata that it puts them in."""
    trailing: dict[str, str | bytes] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    details = error.details() or error.code().name
    fault, code, mend = (trailing.get(f"shoal-{key}") for key in ("fault-bin", "code", "mend-bin"))
    try:
        if isinstance(fault, bytes):
            return wire.fault_from_pb(Fault.FromString(fault))
        if isinstance(code, str):
            text = mend.decode(errors="replace") if isinstance(mend, bytes) else ""
            return wire.fault_from_pb(Fault(code=code, message=details, mend=text))
    except (BadPayload, DecodeError):
        pass
    return ShoalError(details)


async def answers(address: str, seconds: float) -> bool:
    """Whether a server accepts connections there, within so many seconds."""
    async with aio.insecure_channel(address, options=OPTIONS) as channel:
        try:
            await asyncio.wait_for(channel.channel_ready(), seconds)
        except TimeoutError:
            return False
        return True


def _transfer(size: int) -> float:
    """Seconds that a transfer of so many bytes may take."""
    return 2 * CALL + max(size, 0) / SLOWEST


def _held(blob: BlobRef, held: int) -> int:
    if held > blob.size:
        raise BadPayload(f"the server holds {held} bytes of a blob of {blob.size}", "update the server")
    return held


async def _requests(
    blob: BlobRef, start: int, chunks: AsyncIterator[bytes]
) -> AsyncIterator[blobs.UploadRequest]:
    yield blobs.UploadRequest(start=blobs.UploadStart(blob=wire.blob_to_pb(blob), start=start))
    async for data in chunks:
        yield blobs.UploadRequest(chunk=wire.chunk_to_pb(start, data))
        start += len(data)
