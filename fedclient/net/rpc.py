"""A device's calls over gRPC: a `Link` over a connection, and the errors that gRPC statuses stand for.

No call waits forever, and no limit is too short for a slow device: see `shoal.core.engine.timeouts`. This
module retries nothing: `Unavailable` tells the caller that the call can be repeated.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from fedclient.faults import UnreadableTask
from fedclient.net.channel import FAULT, Redialed, is_gone
from shoal.core.engine import timeouts
from shoal.core.engine.timeouts import CONNECTION, Progress
from shoal.core.errors import (
    BadPayload,
    NotFound,
    NotLeader,
    Refused,
    ShoalError,
    Unavailable,
    WrongVersion,
)
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blobs
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device
from shoal.core.exchange._pb.fed.v1 import observer_service_pb2 as observer
from shoal.core.exchange._pb.fed.v1 import placement_service_pb2 as placements
from shoal.core.exchange._pb.fed.v1.blob_service_pb2_grpc import BlobServiceStub
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import DeviceServiceStub
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault
from shoal.core.exchange._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceStub
from shoal.core.exchange._pb.fed.v1.placement_service_pb2_grpc import PlacementServiceStub
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.link import (
    Hello,
    Idle,
    ObservedRun,
    Placement,
    Question,
    Receipt,
    Report,
    Task,
    Welcome,
)
from shoal.core.exchange.parts import Evidence
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.seal import Signed
from shoal.core.identity.joining import TLS_NAME
from shoal.core.types import Bytes, RunId
from shoal.shell.sockets import End, while_moving

if TYPE_CHECKING:  # the same classes at run time: only types tell calls that are awaited from others
    from shoal.core.exchange._pb.fed.v1.blob_service_pb2_grpc import BlobServiceAsyncStub
    from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import DeviceServiceAsyncStub
    from shoal.core.exchange._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceAsyncStub
    from shoal.core.exchange._pb.fed.v1.placement_service_pb2_grpc import PlacementServiceAsyncStub

T = TypeVar("T")

WINDOW = 1 << 19
"""Bytes in flight at first. gRPC lets this grow where a line is long and fast, so a sender that is not asked
for more also looks at what the other end has confirmed: see `while_moving`.
"""
OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.max_metadata_size", 16 << 10),  # a fault of 3,000 characters, in UTF-8 and base64
    ("grpc.compression_enabled_algorithms_bitset", 1),  # none: a small message cannot become a large one
    ("grpc.keepalive_time_ms", 60_000),  # a home router forgets a silent connection after minutes
    ("grpc.keepalive_timeout_ms", int(CONNECTION * 1000)),  # also how long sent bytes may stay unconfirmed
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),  # or a device that computes for an hour would stop asking
    ("grpc.min_reconnect_backoff_ms", int(CONNECTION * 1000)),  # how long a dial may take
    ("grpc.use_local_subchannel_pool", 1),  # or a new channel would be given the old one's connection
    ("grpc.http2.bdp_probe", 1),  # the window grows with the line
    ("grpc.http2.lookahead_bytes", WINDOW),
    ("grpc.ssl_target_name_override", TLS_NAME),  # over TLS
    ("grpc.enable_retries", 0),
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
"""Every other status becomes Unavailable: the server is away, busy or failing, and may come back."""

ANSWER_LOST = "Internal error from Core"
"""What gRPC says of an upload that the server ended early. Asked again, the server says why."""


class Stubs(NamedTuple):
    """The calls of a channel. fetch, upload: of BlobService, with frames as bytes (`wire.frames`)."""

    device: "DeviceServiceAsyncStub"
    blobs: "BlobServiceAsyncStub"
    placement: "PlacementServiceAsyncStub"
    observer: "ObserverServiceAsyncStub"
    fetch: Any
    upload: Any


class RpcLink:
    """A device's calls to the server at `address` ("host:port").

    credentials: the device's identity and the server that it trusts; without them `device_name` is sent
    in plain text. addresses: all that the server names, of which one serves: when the present one does not
    answer, or says that it stands by, the next call goes to the next one.
    """

    def __init__(
        self,
        address: str,
        device_name: str,
        credentials: grpc.ChannelCredentials | None = None,
        addresses: Sequence[str] = (),
    ) -> None:
        self.address, self._credentials = address, credentials
        self.addresses = tuple(addresses)
        self._name, self._session = ("" if credentials else device_name), ""
        self._channel = Redialed(self._dial, _stubs)

    def _dial(self) -> aio.Channel:
        return channel(self.address, self._credentials)

    async def close(self) -> None:
        await self._channel.close()

    async def change(self, address: str, credentials: grpc.ChannelCredentials) -> None:
        """Use this address and these credentials as soon as no call is open."""
        self.address, self._credentials = address, credentials
        await self._channel.replace()

    def _learn(self, addresses: Sequence[str]) -> None:
        """Remember where else the leader may be."""
        self.addresses = tuple(addresses)

    def _go_on(self, tried: str) -> None:
        """Let the next call try the next address, unless another call has gone on already."""
        if tried == self.address and self.addresses:
            known = (*self.addresses, self.addresses[0])
            self.address = known[known.index(tried) + 1] if tried in known else known[0]
            self._channel.hang_up()

    async def hello(self, hello: Hello) -> Welcome:
        """Say hello. Until the welcome arrives, concurrent calls still belong to the former session."""
        request = wire.hello_to_pb(hello)
        answer = await self._ask(lambda to: to.device.Hello(request, **self._call()))
        welcome = wire.welcome_from_pb(answer)
        if not hello.oldest_protocol <= welcome.protocol <= hello.newest_protocol:
            raise WrongVersion(f"the server speaks protocol {welcome.protocol}", "update the older side")
        self._session = welcome.session
        if welcome.addresses and welcome.addresses != self.addresses:
            self._learn(welcome.addresses)
        return welcome

    async def next_task(self, wait: float) -> Task | Idle:
        """See `Link`. Raises UnreadableTask for one that has to be reported as failed."""
        request = device.NextTaskRequest(session=self._session, wait=wire.seconds_to_pb(wait))
        answer = await self._ask(lambda to: to.device.NextTask(request, **self._call(wait)))
        try:
            found = wire.next_from_pb(answer)
            if isinstance(found, Task) and not found.terms:
                raise BadPayload("a task: the terms of its run are not set", "update the server")
        except BadPayload as error:
            if not answer.HasField("task"):
                raise
            raise UnreadableTask(error, wire.lease_from_pb(answer.task.lease)) from None
        return found

    async def alive(self, run: RunId, round: int, attempt: int) -> bool:
        lease = wire.lease_to_pb(wire.Lease(run, round, attempt))
        request = device.AliveRequest(session=self._session, lease=lease)
        return (await self._ask(lambda to: to.device.Alive(request, **self._call()))).wanted

    async def report(self, report: Report) -> Receipt:
        request = device.ReportRequest(session=self._session, report=wire.report_to_pb(report))
        answer = await self._ask(lambda to: to.device.Report(request, **self._call(size=request.ByteSize())))
        return wire.receipt_from_pb(answer.receipt)

    async def leave(self) -> None:
        request = device.LeaveRequest(session=self._session)
        await self._ask(lambda to: to.device.Leave(request, **self._call()))

    async def place(
        self, run: RunId, evidence: Evidence | Wish | None, accept_nearest: bool = False
    ) -> Question | Placement:
        request = wire.place_to_pb(run, evidence)
        request.accept_nearest = accept_nearest
        answer = await self._ask(
            lambda to: to.placement.Place(request, **self._call(size=request.ByteSize()))
        )
        return wire.answer_from_pb(answer)

    async def seal(self, release: str) -> Signed | None:
        request = placements.GetSealRequest(release=release)

        async def once(to: Stubs) -> placements.GetSealResponse:
            try:
                return await to.placement.GetSeal(request, **self._call())
            except aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                    raise
                return placements.GetSealResponse()  # an earlier server

        return wire.seal_from_pb(await self._ask(once))

    async def observe(self) -> tuple[ObservedRun, ...]:
        """All runs, newest first; only for the role observer."""
        request = observer.ObserveRunsRequest()
        answer = await self._ask(lambda to: to.observer.ObserveRuns(request, **self._call()))
        return wire.observation_from_pb(answer)

    async def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[Bytes]:
        request = blobs.FetchRequest(blob=wire.blob_to_pb(blob), start=start)
        clock = asyncio.get_running_loop().time
        progress = Progress(clock())
        async with self._calling() as to:
            call = to.fetch(request, metadata=self._identity())
            try:
                while True:
                    async with asyncio.timeout_at(progress.until()):
                        message = await call.read()
                    if not isinstance(message, bytes):
                        return
                    chunk = wire.fetched(message, start)
                    start += len(chunk)
                    progress.moved(len(chunk), clock())
                    yield chunk
            finally:
                call.cancel()

    async def uploaded(self, blob: BlobRef) -> int:
        request = blobs.UploadedRequest(blob=wire.blob_to_pb(blob))
        answer = await self._ask(lambda to: to.blobs.Uploaded(request, **self._call()))
        return _held(blob, answer.held)

    async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[Bytes]) -> int:
        async with self._calling() as to, while_moving(self._is_server) as moved:
            broken: list[Exception] = []
            call = to.upload(
                _requests(blob, start, _noting(chunks, broken), moved), metadata=self._identity()
            )
            try:
                response = await call
            except (asyncio.CancelledError, aio.AioRpcError) as error:
                if broken:  # gRPC cancels a call whose request iterator failed, and hides the cause
                    raise broken[0] from None
                if isinstance(error, aio.AioRpcError) and error.details() == ANSWER_LOST:
                    problem = f"{self.address} ended an upload, and its reason was lost on the way"
                    raise Unavailable(problem, "the transfer resumes where it stopped") from None
                raise
            finally:
                call.cancel()
        return _held(blob, response.held)

    def _is_server(self, end: End) -> bool:
        """Whether the other end of a connection may be the server's: its name may have many addresses."""
        return end[1] == int(self.address.rpartition(":")[2])

    def _identity(self) -> tuple[tuple[str, str], ...]:
        """The session of a call. The device is the TLS peer; only in plain text, on loopback, is it named
        here.
        """
        device = (("shoal-device", self._name),) if self._name else ()
        session = (("shoal-session", self._session),) if self._session else ()
        return (*device, *session)

    def _call(self, wait: float = 0.0, size: int = 0) -> dict[str, Any]:
        """Metadata and timeout of a call that waits for `wait` seconds and sends `size` bytes."""
        return {"metadata": self._identity(), "timeout": wait + timeouts.answer(size)}

    async def _ask(self, call: Callable[[Stubs], Awaitable[T]]) -> T:
        async with self._calling() as to:
            return await call(to)

    @asynccontextmanager
    async def _calling(self) -> AsyncIterator[Stubs]:
        """Around a call: what gRPC raises becomes a ShoalError."""
        tried = self.address
        try:
            async with self._channel.calling() as to:
                yield to
        except aio.AioRpcError as error:
            meaning = await self._meaning(error)
            if is_gone(error) or isinstance(meaning, NotLeader):
                self._go_on(tried)
            try:
                raise meaning from None
            finally:
                del (
                    meaning
                )  # it refers to this frame, and as long as anything of the call lives, gRPC redials
        except TimeoutError:
            self._go_on(tried)
            problem = f"nothing moved to or from {self.address} for {timeouts.STALL:.0f} s"
            raise Unavailable(problem, "the transfer resumes where it stopped") from None

    async def _meaning(self, error: aio.AioRpcError) -> ShoalError:
        return error_of(error, self.address)


def channel(address: str, credentials: grpc.ChannelCredentials | None) -> aio.Channel:
    if credentials is None:
        return aio.insecure_channel(address, options=OPTIONS)
    return aio.secure_channel(address, credentials, options=OPTIONS)


def error_of(error: aio.AioRpcError, address: str) -> ShoalError:
    """The error that a failed call stands for. The status decides whether to retry, the server's code the
    rest.
    """
    said, cls = _said(error), STATUSES.get(error.code(), Unavailable)
    if cls is not Unavailable:
        return cls(said.message, said.hint) if type(said) is ShoalError else said
    if isinstance(said, Unavailable):
        return said
    if said.hint:  # the server's own words, so it did answer
        return Unavailable(said.message, said.hint)
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
        why = said.message.rpartition(": ")[2].strip("[]")  # without the library's own chain of causes
        return Unavailable(
            f"{address} does not answer: {why}", "is that its name, and is the server running there?"
        )
    status = error.code().name.lower().replace("_", " ")
    return Unavailable(f"{address} has an internal problem ({status}): {said.message}", "ask its operator")


def _said(error: aio.AioRpcError) -> ShoalError:
    """The server's code, message and hint, from the entries of the trailing metadata that it puts them in."""
    trailing: dict[str, str | bytes] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    details = error.details() or error.code().name
    fault, code, hint = (trailing.get(key) for key in (FAULT, "shoal-code", "shoal-hint-bin"))
    try:
        if isinstance(fault, bytes):
            return wire.fault_from_pb(Fault.FromString(fault))
        if isinstance(code, str):
            text = hint.decode(errors="replace") if isinstance(hint, bytes) else ""
            return wire.fault_from_pb(Fault(code=code, message=details, hint=text))
    except (BadPayload, DecodeError):
        pass
    return ShoalError(details)


async def answers(address: str, seconds: float, credentials: grpc.ChannelCredentials | None = None) -> bool:
    """Whether a server accepts connections at `address` within `seconds`."""
    async with channel(address, credentials) as tried:
        try:
            await asyncio.wait_for(tried.channel_ready(), seconds)
        except TimeoutError:
            return False
        return True


async def why_silent(
    address: str, seconds: float, credentials: grpc.ChannelCredentials | None = None
) -> aio.AioRpcError | None:
    """What keeps a call from the server at `address`; None if it answers within `seconds`.

    The call is of a service that there is not, so it changes nothing wherever it arrives.
    """
    async with channel(address, credentials) as tried:
        try:
            await tried.unary_unary("/fed.v1.None/None", bytes, bytes)(b"", timeout=seconds)
        except aio.AioRpcError as error:
            return error if is_gone(error) else None
        return None


def _stubs(channel: aio.Channel) -> Stubs:
    return Stubs(
        DeviceServiceStub(channel),
        BlobServiceStub(channel),
        PlacementServiceStub(channel),
        ObserverServiceStub(channel),
        channel.unary_stream(
            "/fed.v1.BlobService/Fetch",
            request_serializer=blobs.FetchRequest.SerializeToString,
            response_deserializer=bytes,
        ),
        channel.stream_unary(
            "/fed.v1.BlobService/Upload",
            request_serializer=bytes,
            response_deserializer=blobs.UploadResponse.FromString,
        ),
    )


def _held(blob: BlobRef, held: int) -> int:
    if held > blob.size:
        raise BadPayload(f"the server holds {held} bytes of a blob of {blob.size}", "update the server")
    return held


async def _requests(
    blob: BlobRef, start: int, chunks: AsyncIterator[Bytes], taken: Callable[[int], None]
) -> AsyncIterator[bytes]:
    """taken: called with the size of each chunk once gRPC has buffered it and asks for the next."""
    first = blobs.UploadRequest(start=blobs.UploadStart(blob=wire.blob_to_pb(blob), start=start))
    yield first.SerializeToString()
    async for data in chunks:
        yield wire.upload_frame(start, data)
        start += len(data)
        taken(len(data))


async def _noting(chunks: AsyncIterator[Bytes], broken: list[Exception]) -> AsyncIterator[Bytes]:
    """The same chunks; an error among them is added to `broken`, because gRPC hides it."""
    try:
        async for chunk in chunks:
            yield chunk
    except Exception as error:
        broken.append(error)
        raise
