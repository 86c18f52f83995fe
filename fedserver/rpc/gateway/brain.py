"""A gateway's connections to the server that leads.

One call that never ends follows the registry. As long as it lives, the calls of devices go to that server;
when it breaks, the next address is tried. Calls with one request and one answer go in batches over a stream,
which is replaced every few minutes, before its connection is too old. Transfers go one by one, over
connections of their own, with the device's certificate beside them.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from fedserver.rpc.admission.behalf import ENTRY
from fedserver.rpc.gateway.carrying import MOST_CALLERS, SIGN_OF_LIFE
from fedserver.rpc.gateway.following import away
from fedserver.rpc.gateway.stream import Caller, CallStream
from shoal.core.engine.timeouts import CONNECTION, GRACE
from shoal.core.errors import BadPayload, NotLeader, ShoalError, Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import gateway_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault

log = logging.getLogger("shoal.gateway")

OPTIONS = (
    ("grpc.max_receive_message_length", (4 << 20) + (64 << 10)),
    ("grpc.max_send_message_length", (4 << 20) + (64 << 10)),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.compression_enabled_algorithms_bitset", 1),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", int(CONNECTION * 1000)),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.http2.bdp_probe", 1),
    ("grpc.http2.lookahead_bytes", 1 << 19),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
LINES = 8
"""Connections for transfers. The server takes 32 calls on each."""
LARGE = 1 << 20
"""Bytes of a request that goes by itself, since a batch must not exceed a message."""
REPLACED = 60.0
"""Seconds after which a stream takes no more calls. With the longest wait for a task, this is less than the
server leaves to an old connection."""
SILENCE = 3 * SIGN_OF_LIFE
"""Seconds after which a server that says nothing counts as gone."""
PAUSE = 0.3
"""Seconds before the next address is tried."""
TAKEOVER, LATER = 30.0, (1.0, 45.0)
"""Seconds without a server after which devices are sent to another gateway, and when they call there. It is
longer than a takeover, in which devices keep their connections to this one."""


class Stopping(Exception):
    """The server ends streams because it is about to stop. It still answers what is under way."""


class Passed(Exception):
    """The server has ended a call in a way that has no fault: it is passed on as it is."""

    def __init__(self, status: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.status, self.details = status, details


class Brain:
    """addresses: of the servers, of which one leads. credentials: the gateway's; asked for at each dial.

    hear: called with what the server says about the registry. here: whether a server takes calls.
    """

    def __init__(
        self,
        addresses: tuple[str, ...],
        credentials: Callable[[], grpc.ChannelCredentials],
        hear: Callable[[pb.FollowResponse], None],
    ) -> None:
        self._addresses, self._credentials, self._hear = addresses, credentials, hear
        self._channel: aio.Channel | None = None
        self._lines: list[aio.Channel] = []
        self._turn = itertools.count()
        self._stream: CallStream | None = None
        self._since = 0.0
        self._ending: set[asyncio.Task[Any]] = set()
        self._reasons: dict[str, str] = {}
        self._lost = asyncio.get_running_loop().time()
        self.here = asyncio.Event()

    async def run(self) -> None:
        """Stay connected to the server that leads, until this is canceled."""
        for address in itertools.cycle(self._addresses):
            try:
                await self._connected(address)
            except (aio.AioRpcError, TimeoutError, Stopping) as error:
                said = error.details() if isinstance(error, aio.AioRpcError) else str(error)
                why = said or "it says nothing"
                if self._reasons.get(address) != why:
                    self._reasons[address] = why
                    log.warning("no server at %s: %s", address, why)
            await asyncio.sleep(PAUSE)

    async def _connected(self, address: str) -> None:
        """Use the server at this address. Raises AioRpcError, TimeoutError or Stopping if it does not lead,
        or as soon as it does not."""
        channels = [self._dial(address) for _ in range(1 + LINES)]
        grace: float | None = None
        try:
            while True:  # a connection becomes old, and then the call ends, and the server is still there
                await self._follow(channels, address)
        except Stopping:
            grace = GRACE
            raise
        finally:
            if self.here.is_set():
                self._lost = asyncio.get_running_loop().time()
            self.here.clear()
            self._channel, self._lines = None, []
            if self._stream is not None:
                self._later(self._stream.retire())
                self._stream = None
            for each in channels:
                self._later(each.close(grace))

    def away(self) -> Unavailable | None:
        """Why no call can be passed on; None while a server takes calls."""
        if self.here.is_set():
            return None
        if asyncio.get_running_loop().time() - self._lost < TAKEOVER:
            return away()
        # Another gateway may have a server: this one may be cut off from it, or have been revoked.
        return NotLeader(away().message, "call another gateway", LATER)

    async def _follow(self, channels: list[aio.Channel], address: str) -> None:
        """Follow the registry until the call ends. Raises if it brings nothing."""
        channel, *lines = channels
        call: Any = channel.unary_stream(
            "/fed.v1.GatewayService/Follow",
            request_serializer=pb.FollowRequest.SerializeToString,
            response_deserializer=pb.FollowResponse.FromString,
        )(pb.FollowRequest())
        came = False
        try:
            while True:
                async with asyncio.timeout(SILENCE):
                    found = await call.read()
                if not isinstance(found, pb.FollowResponse):
                    break
                came = True
                self._hear(found)
                if found.complete and not self.here.is_set():
                    log.info("connected to the server at %s", address)
                    self._reasons.clear()
                    self._channel, self._lines = channel, lines
                    self.here.set()
        except aio.AioRpcError:
            if not came:
                raise
        finally:
            call.cancel()
        if not came:
            raise Stopping("it is about to stop")

    def _dial(self, address: str) -> aio.Channel:
        return aio.secure_channel(address, self._credentials(), options=OPTIONS)

    # -- calls ----------------------------------------------------------------------------------------------

    async def ask(self, caller: Caller, method: str, message: bytes, session: str) -> bytes:
        """The response to a call of a device. Raises the server's fault, Passed, or Unavailable."""
        if len(message) > LARGE:
            return await self._alone(caller, method, message, session)
        answer = await self._open().ask(caller, method, message, session)
        if answer.status:
            raise _fault(answer.fault, _STATUSES[answer.status], answer.details)
        return answer.message

    def _open(self) -> CallStream:
        now = asyncio.get_running_loop().time()
        if self._channel is None:
            raise self.away() or away()
        if self._stream is not None:
            is_full = self._stream.callers >= MOST_CALLERS
            if not (self._stream.broken or is_full or now - self._since > REPLACED):
                return self._stream
            self._later(self._stream.retire())
        self._stream, self._since = CallStream(self._channel), now
        return self._stream

    def _later(self, end: Coroutine[Any, Any, None]) -> None:
        """End a stream or a connection, beside all else."""
        task = asyncio.create_task(end)
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    async def _alone(self, caller: Caller, method: str, message: bytes, session: str) -> bytes:
        call: Any = self._line().unary_unary(method, bytes, bytes)(
            message, metadata=_metadata(caller, session)
        )
        with _faults():
            answer: bytes = await call
        return answer

    async def fetch(self, caller: Caller, method: str, message: bytes, session: str) -> AsyncIterator[bytes]:
        """The messages of a call with a stream of answers. Raises as `ask` does."""
        call: Any = self._line().unary_stream(method, bytes, bytes)(
            message, metadata=_metadata(caller, session)
        )
        try:
            while True:
                with _faults():
                    found = await call.read()
                if not isinstance(found, bytes):
                    return
                yield found
        finally:
            call.cancel()

    async def upload(
        self, caller: Caller, method: str, messages: AsyncIterator[bytes], session: str
    ) -> bytes:
        """The answer to a call with a stream of requests. Raises as `ask`, and what `messages` raises."""
        broken: list[Exception] = []
        requests = _noting(messages, broken)
        call: Any = self._line().stream_unary(method, bytes, bytes)(
            requests, metadata=_metadata(caller, session)
        )
        try:
            with _faults(broken):
                answer: bytes = await call
        finally:
            call.cancel()
        return answer

    def _line(self) -> aio.Channel:
        if not self._lines:
            raise self.away() or away()
        return self._lines[next(self._turn) % len(self._lines)]


_STATUSES = {status.value[0]: status for status in grpc.StatusCode}


def _metadata(caller: Caller, session: str) -> tuple[tuple[str, str | bytes], ...]:
    return ((ENTRY, caller.certificate), *((("shoal-session", session),) if session else ()))


@contextmanager
def _faults(broken: Sequence[Exception] = ()) -> Iterator[None]:
    """Around what waits for the server: what gRPC raises becomes the error of the call.

    broken: see `_noting`. gRPC cancels a call whose requests failed, and hides the cause. It also cancels a
    call whose connection is closed here; its device has to hear of that, or it would wait for an answer.
    """
    try:
        yield
    except (aio.AioRpcError, asyncio.CancelledError) as error:
        if broken:
            raise broken[0] from None
        if isinstance(error, aio.AioRpcError):
            raise _meaning(error) from None
        task = asyncio.current_task()
        if task is None or task.cancelling():  # the device has gone away, or was revoked
            raise
        raise away() from None


def _meaning(error: aio.AioRpcError) -> Exception:
    trailing: dict[str, Any] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    fault = trailing.get("shoal-fault-bin", b"")
    if not fault and error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        return away()
    return _fault(fault, error.code(), error.details() or "")


def _fault(fault: bytes, status: grpc.StatusCode, details: str) -> Exception:
    if fault:
        with suppress(BadPayload, DecodeError):
            found = wire.fault_from_pb(Fault.FromString(fault))
            if type(found) is not ShoalError:
                return found
    return Passed(status, details)


async def _noting(messages: AsyncIterator[bytes], broken: list[Exception]) -> AsyncIterator[bytes]:
    """The same messages; an error among them is added to `broken`."""
    try:
        async for message in messages:
            yield message
    except Exception as error:
        broken.append(error)
        raise
