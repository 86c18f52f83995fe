"""GatewayService, the server's side: calls of many devices on one stream, and the registry for gateways.

A call that was carried here passes the same interceptors as one at the devices' port, and the same code
answers it. What is saved is the rest: a TLS connection for each device, and gRPC's own work for each call.
"""
# ruff: noqa: N802 -- methods have the names that the contract gives them

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import aio

from fedserver.authority.peers import Peers
from fedserver.rpc.admission.behalf import MAX_CERTIFICATE, Carried
from fedserver.rpc.admission.identity import Context
from fedserver.rpc.admission.messages import UNKNOWN, behavior_of
from fedserver.rpc.errors import refuse
from fedserver.store.identities.records import DeviceStanding, Registered
from shoal.core.errors import BadPayload
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import gateway_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.gateway_service_pb2_grpc import GatewayServiceServicer
from shoal.core.exchange.wire.identity import ROLES

BATCH = 1 << 20
"""Bytes of answers in one message, unless it has only one answer."""
DEVICES = 1_000
"""Devices in one message of the registry."""
MOST_CALLERS = 65_536
"""Devices on one stream."""
LONGEST_ADDRESS = 256
SIGN_OF_LIFE = 5.0
"""Seconds after which a gateway hears from the server, if nothing changes."""

Run = Callable[[bytes, Carried], Awaitable[bytes]]


class _Details(NamedTuple):
    method: str


async def runs(handlers: Mapping[str, Any], interceptors: Sequence[Any]) -> dict[str, Run]:
    """For each call with one request and one answer: what answers it, from bytes to bytes.

    handlers: by method. interceptors: what decides about the caller, as at the devices' port, from the
    outermost one on.
    """
    return {
        method: await _run(method, handler, interceptors)
        for method, handler in handlers.items()
        if handler.unary_unary is not None and "Gateway" not in method
    }


async def _run(method: str, handler: Any, interceptors: Sequence[Any]) -> Run:
    cls, serialize, behavior = (
        handler.request_deserializer.__self__,
        handler.response_serializer,
        handler.unary_unary,
    )

    async def parsed(data: bytes, context: Carried) -> bytes:
        answer: bytes = serialize(await behavior(wire.message_from_bytes(cls, data), context))
        return answer

    async def innermost(details: _Details) -> Any:
        return grpc.unary_unary_rpc_method_handler(parsed)

    continuation: Any = innermost
    for each in reversed(interceptors):
        continuation = _around(each, continuation)
    return behavior_of(await continuation(_Details(method)))


def _around(interceptor: Any, continuation: Any) -> Any:
    async def intercepted(details: _Details) -> Any:
        return await interceptor.intercept_service(continuation, details)

    return intercepted


class Gateways(GatewayServiceServicer):
    """runs: by method; see above. Filled once all services are there."""

    def __init__(self, peers: Peers) -> None:
        self._peers, self._closing = peers, asyncio.Event()
        self.runs: Mapping[str, Run] = {}

    def close(self) -> None:
        """Answer what is under way, and then end all streams, so that gateways look for another server."""
        self._closing.set()

    async def Follow(self, request: pb.FollowRequest, context: Context) -> AsyncIterator[pb.FollowResponse]:
        with self._peers.followed() as changes:
            sent = b""
            while not self._closing.is_set():
                next_ones = asyncio.ensure_future(changes.next(DEVICES, SIGN_OF_LIFE))
                closing = asyncio.ensure_future(self._closing.wait())
                try:
                    await asyncio.wait({next_ones, closing}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    closing.cancel()
                    next_ones.cancel()
                if not next_ones.done():
                    return
                bundle = self._peers.authority.bundle
                if sent and bundle != sent:  # certificates of a root that is gone are not valid any more
                    for device in self._peers.known():
                        changes.note(device)
                found = pb.FollowResponse(
                    authorities=b"" if bundle == sent else bundle,
                    devices=map(self._known, next_ones.result()),
                    complete=changes.complete,
                    accepts_others=changes.accepts_others,
                )
                sent = bundle
                yield found

    def _known(self, device: Registered) -> pb.KnownDevice:
        return pb.KnownDevice(
            device=device.device,
            role=ROLES[device.role],
            approved=device.standing is DeviceStanding.APPROVED,
            revoked=device.standing is DeviceStanding.REVOKED,
            certificates=[
                pb.KnownCertificate(serial=each.serial, key=each.spki, expires=_stamp(each.expires))
                for each in device.certificates
                if self._peers.trusts(each)
            ],
        )

    async def Carry(self, requests: Any, context: Context) -> AsyncIterator[pb.CarryResponse]:
        calls = _Calls(self.runs)
        reading = asyncio.create_task(calls.read(requests))
        closing = asyncio.create_task(self._closing.wait())
        try:
            while answers := await calls.answers(reading, closing):
                yield pb.CarryResponse(answers=answers)
            if reading.done():
                reading.result()  # what was wrong with a message ends the stream
        finally:
            for task in (reading, closing, *calls.open.values()):
                task.cancel()


class _Calls:
    """The calls of one stream. open: the tasks that answer them, by number."""

    def __init__(self, runs: Mapping[str, Run]) -> None:
        self._runs = runs
        self._callers: dict[int, tuple[bytes, str]] = {}
        self.open: dict[int, asyncio.Task[None]] = {}
        self._answers: list[pb.Answer] = []
        self._some = asyncio.Event()

    async def read(self, messages: AsyncIterator[bytes]) -> None:
        """Begin what a gateway brings, until it brings no more. Raises BadPayload."""
        try:
            async for data in messages:
                self._begin(wire.message_from_bytes(pb.CarryRequest, data))
        finally:
            self._some.set()

    def _begin(self, message: pb.CarryRequest) -> None:
        for caller in message.callers:
            if len(self._callers) >= MOST_CALLERS:
                raise BadPayload("a stream has too many callers", "open another stream")
            if len(caller.certificate) > MAX_CERTIFICATE or len(caller.address) > LONGEST_ADDRESS:
                raise BadPayload("a caller's certificate or address is too long", "send what gRPC says")
            self._callers[caller.caller] = caller.certificate, caller.address
        for call in message.calls:
            if call.call in self.open or call.caller not in self._callers:
                raise BadPayload(
                    "a call has the number of another one, or no caller",
                    "count calls, and name callers first",
                )
            self.open[call.call] = asyncio.create_task(self._answer(call))
            # A callback also comes for a task that is canceled before it has begun.
            self.open[call.call].add_done_callback(functools.partial(self._ended, call.call))
        for number in message.canceled:
            if task := self.open.get(number):
                task.cancel()

    async def _answer(self, call: pb.Call) -> None:
        context, answer = Carried(*self._callers[call.caller], call.session), pb.Answer(call=call.call)
        try:
            run = self._runs.get(call.method) or behavior_of(UNKNOWN)
            answer.message = await run(call.message, context)
        except aio.AbortError:
            self._failed(answer, context)
        except Exception as error:  # none of the interceptors knew it
            try:
                await refuse(context, error)  # type: ignore[arg-type]
            except aio.AbortError:
                self._failed(answer, context)
        self._answers.append(answer)

    def _ended(self, number: int, task: "asyncio.Task[None]") -> None:
        del self.open[number]
        self._some.set()

    def _failed(self, answer: pb.Answer, context: Carried) -> None:
        answer.status, answer.details = context.status.value[0], context.details
        answer.fault = context.trailing.get("shoal-fault-bin", b"")

    async def answers(self, reading: "asyncio.Task[None]", closing: "asyncio.Task[Any]") -> list[pb.Answer]:
        """The next answers, about `BATCH` bytes; none once no more will come."""
        while not self._answers:
            is_over = reading.done() or closing.done()
            if reading.done() and not reading.cancelled() and reading.exception() is not None:
                return []
            if is_over and not self.open:
                return []
            self._some.clear()
            some = asyncio.ensure_future(self._some.wait())
            try:
                ends = {some} if is_over else {some, closing}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                some.cancel()
        taken = size = 0
        for answer in self._answers:
            size += answer.ByteSize()
            if taken and size > BATCH:
                break
            taken += 1
        found, self._answers = self._answers[:taken], self._answers[taken:]
        return found


def _stamp(clock: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(round(clock * 1e9))
    return stamp
