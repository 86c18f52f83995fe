"""What devices call. DeviceService and PlacementService hand each call to the device's API.

EnrollmentService, on a port of its own, gives devices their certificates.
"""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from dataclasses import replace

from fedserver.authority.joining import JoinService
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.rpc.admission.identity import Context, Identify, address_of, require_tls
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import device_service_pb2 as device_pb
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as enrollment_pb
from shoal.core.exchange._pb.fed.v1 import placement_service_pb2 as placement_pb
from shoal.core.exchange._pb.fed.v1.device_service_pb2_grpc import DeviceServiceServicer
from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import EnrollmentServiceServicer
from shoal.core.exchange._pb.fed.v1.placement_service_pb2_grpc import PlacementServiceServicer
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.link import Placement
from shoal.core.exchange.parts import Evidence


class Devices(DeviceServiceServicer):
    """addresses: where devices may find the leader."""

    def __init__(self, coordinator: Coordinator, identify: Identify, addresses: tuple[str, ...] = ()) -> None:
        self._coordinator, self._identify, self._addresses = coordinator, identify, addresses

    async def Hello(self, request: device_pb.HelloRequest, context: Context) -> device_pb.HelloResponse:
        welcome = await self._link("", context).hello(wire.hello_from_pb(request))
        return wire.welcome_to_pb(replace(welcome, addresses=self._addresses))

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
        return DeviceApi(self._coordinator, self._identify(context), session)


class Placements(PlacementServiceServicer):
    def __init__(self, coordinator: Coordinator, identify: Identify) -> None:
        self._coordinator, self._identify = coordinator, identify

    async def Place(self, request: placement_pb.PlaceRequest, context: Context) -> placement_pb.PlaceResponse:
        run, evidence = wire.place_from_pb(request)
        device, quota = self._identify(context), self._coordinator.quota
        before = await quota.spent(device)
        answer = await DeviceApi(self._coordinator, device).place(run, evidence, request.accept_nearest)
        gives = isinstance(answer, Placement) or answer.payload.kind == ChooseCompact.kind
        # A device that follows a run asks every minute. Later versions of models that it has had today tell
        # it nothing new about anyone, as long as it shows no data for which to choose among them.
        shows = isinstance(evidence, Evidence)
        if gives and (shows or await quota.spent(device) > before):
            await quota.spend_placement(device)
        return wire.answer_to_pb(answer)

    async def GetSeal(
        self, request: placement_pb.GetSealRequest, context: Context
    ) -> placement_pb.GetSealResponse:
        link = DeviceApi(self._coordinator, self._identify(context))
        return wire.seal_to_pb(await link.seal(request.release))


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

    async def Return(
        self, request: enrollment_pb.ReturnRequest, context: Context
    ) -> enrollment_pb.ReturnResponse:
        require_tls(context)
        returning = wire.returning_from_pb(request)
        return wire.returned_to_pb(await self._joins.come_back(returning, address_of(context)))
