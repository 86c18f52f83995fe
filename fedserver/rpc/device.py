"""What devices call. DeviceService, PlacementService and BlobService hand each call to the device's API.

EnrollmentService, on a port of its own, gives a device its first certificate; IdentityService, where devices
call with a certificate, the next one.
"""
# ruff: noqa: N802 -- methods have the names that the contract gives them

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Protocol

from fedserver.authority.joining import JoinService
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.rpc.admission.identity import Callers, Context, address_of, peer_of, require_tls, session
from shoal.core.engine import timeouts
from shoal.core.engine.timeouts import LEAST, Progress
from shoal.core.errors import BadPayload, Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import blob_service_pb2 as blob_pb
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device_pb
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as enrollment_pb
from shoal.core.exchange._pb.fed.v1 import placement_service_pb2 as placement_pb
from shoal.core.exchange._pb.fed.v1.blob_service_pb2_grpc import BlobServiceServicer
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import DeviceServiceServicer
from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import (
    EnrollmentServiceServicer,
    IdentityServiceServicer,
)
from shoal.core.exchange._pb.fed.v1.placement_service_pb2_grpc import PlacementServiceServicer
from shoal.core.exchange.choosing import Choose
from shoal.core.exchange.link import Placement
from shoal.core.exchange.payload import BlobRef


class Devices(DeviceServiceServicer):
    """addresses: where devices may find the leader, if there are several servers."""

    def __init__(self, coordinator: Coordinator, callers: Callers, addresses: tuple[str, ...] = ()) -> None:
        self._coordinator, self._callers, self._addresses = coordinator, callers, addresses

    async def Hello(self, request: device_pb.HelloRequest, context: Context) -> device_pb.HelloResponse:
        welcome = await self._link("", context).hello(wire.hello_from_pb(request))
        renew_in = self._callers.renew_in(context)
        return wire.welcome_to_pb(replace(welcome, renew_in=renew_in, addresses=self._addresses))

    async def NextTask(
        self, request: device_pb.NextTaskRequest, context: Context
    ) -> device_pb.NextTaskResponse:
        wait = wire.seconds_from_pb(request.wait, "wait")
        return wire.next_to_pb(await self._link(request.session, context).next_task(wait))

    async def Alive(self, request: device_pb.AliveRequest, context: Context) -> device_pb.AliveResponse:
        lease = wire.lease_from_pb(request.lease)
        return device_pb.AliveResponse(wanted=await self._link(request.session, context).alive(*lease))

    async def Report(self, request: device_pb.ReportRequest, context: Context) -> device_pb.ReportResponse:
        report = wire.report_from_pb(request.report)
        receipt = await self._link(request.session, context).report(report)
        return device_pb.ReportResponse(receipt=wire.receipt_to_pb(receipt))

    async def Leave(self, request: device_pb.LeaveRequest, context: Context) -> device_pb.LeaveResponse:
        await self._link(request.session, context).leave()
        return device_pb.LeaveResponse()

    def _link(self, session: str, context: Context) -> DeviceApi:
        return DeviceApi(self._coordinator, self._callers.identify(context), session)


class Placements(PlacementServiceServicer):
    def __init__(self, coordinator: Coordinator, callers: Callers) -> None:
        self._coordinator, self._callers = coordinator, callers

    async def Place(self, request: placement_pb.PlaceRequest, context: Context) -> placement_pb.PlaceResponse:
        run, evidence = wire.place_from_pb(request)
        link = DeviceApi(self._coordinator, self._callers.identify(context))
        answer = await link.place(run, evidence, request.accept_nearest)
        if isinstance(answer, Placement) or answer.payload.kind == Choose.kind:
            await self._callers.placed(context)
        return wire.answer_to_pb(answer)


class BlobAccess(Protocol):
    """Blobs as one caller may have them: a device's link, or the operator's operator_api."""

    def fetch(self, blob: BlobRef, start: int) -> AsyncIterator[bytes]: ...
    async def uploaded(self, blob: BlobRef) -> int: ...
    async def upload(self, blob: BlobRef, start: int, chunks: AsyncIterator[bytes]) -> int: ...


class Blobs(BlobServiceServicer):
    """blobs: those that the caller has access to."""

    def __init__(self, blobs: Callable[[Context], BlobAccess]) -> None:
        self._blobs = blobs

    async def Fetch(
        self, request: blob_pb.FetchRequest, context: Context
    ) -> AsyncIterator[blob_pb.FetchResponse]:
        offset = request.start
        async for data in self._blobs(context).fetch(wire.blob_from_pb(request.blob), offset):
            yield blob_pb.FetchResponse(chunk=wire.chunk_to_pb(offset, data))
            offset += len(data)

    async def Uploaded(self, request: blob_pb.UploadedRequest, context: Context) -> blob_pb.UploadedResponse:
        held = await self._blobs(context).uploaded(wire.blob_from_pb(request.blob))
        return blob_pb.UploadedResponse(held=held)

    async def Upload(
        self, request: AsyncIterator[blob_pb.UploadRequest], context: Context
    ) -> blob_pb.UploadResponse:
        requests = _moving(request)
        first = await anext(requests, blob_pb.UploadRequest())
        if first.WhichOneof("step") != "start":
            raise BadPayload("the first message of an upload must be its start", "send start first")
        blob, start = wire.blob_from_pb(first.start.blob), first.start.start
        held = await self._blobs(context).upload(blob, start, _chunks(requests, start))
        return blob_pb.UploadResponse(held=held)


async def _moving(requests: AsyncIterator[blob_pb.UploadRequest]) -> AsyncIterator[blob_pb.UploadRequest]:
    """Requests as they come. Raises Unavailable when they stop coming, or drip: the place is another's."""
    clock = asyncio.get_running_loop().time
    progress = Progress(clock())
    with suppress(StopAsyncIteration):
        while True:
            try:
                async with asyncio.timeout_at(progress.until()):
                    request = await anext(requests)
            except TimeoutError:
                problem = f"less than {LEAST} bytes of an upload came in {timeouts.STALL:.0f} s"
                raise Unavailable(problem, "go on where it was cut") from None
            progress.moved(len(request.chunk.data), clock())
            yield request


async def _chunks(requests: AsyncIterator[blob_pb.UploadRequest], offset: int) -> AsyncIterator[bytes]:
    async for request in requests:
        if request.WhichOneof("step") != "chunk":
            raise BadPayload("after its start, an upload consists only of chunks")
        data = wire.chunk_from_pb(request.chunk, offset)
        offset += len(data)
        yield data


def blobs_of_device(coordinator: Coordinator, callers: Callers) -> Callable[[Context], BlobAccess]:
    """The blobs of the device that calls."""
    return lambda context: DeviceApi(coordinator, callers.identify(context), session(context))


class Enrollments(EnrollmentServiceServicer):
    def __init__(self, joins: JoinService) -> None:
        self._joins = joins

    async def Challenge(
        self, request: enrollment_pb.ChallengeRequest, context: Context
    ) -> enrollment_pb.ChallengeResponse:
        require_tls(context)
        return wire.challenge_to_pb(await self._joins.challenge(address_of(context)))

    async def Join(self, request: enrollment_pb.JoinRequest, context: Context) -> enrollment_pb.JoinResponse:
        require_tls(context)
        joining = wire.joining_from_pb(request)
        return wire.joined_to_pb(await self._joins.join(joining, address_of(context)))

    async def Rejoin(
        self, request: enrollment_pb.RejoinRequest, context: Context
    ) -> enrollment_pb.RejoinResponse:
        require_tls(context)
        rejoining = wire.rejoining_from_pb(request)
        issued = await self._joins.rejoin(rejoining, address_of(context))
        return enrollment_pb.RejoinResponse(identity=wire.identity_to_pb(issued))


class Identities(IdentityServiceServicer):
    def __init__(self, joins: JoinService) -> None:
        self._joins = joins

    async def Renew(
        self, request: enrollment_pb.RenewRequest, context: Context
    ) -> enrollment_pb.RenewResponse:
        issued = await self._joins.renew(peer_of(context), request.csr)
        return enrollment_pb.RenewResponse(identity=wire.identity_to_pb(issued))
