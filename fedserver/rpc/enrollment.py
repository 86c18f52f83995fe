"""EnrollmentService, on a port of its own, and IdentityService, where devices call with a certificate."""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from fedserver.authority.joining import JoinService
from fedserver.rpc.identity import Context, address_of, peer_of, require_tls
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import (
    EnrollmentServiceServicer,
    IdentityServiceServicer,
)


class Enrollments(EnrollmentServiceServicer):
    def __init__(self, joins: JoinService) -> None:
        self._joins = joins

    async def Challenge(self, request: pb.ChallengeRequest, context: Context) -> pb.ChallengeResponse:
        require_tls(context)
        return wire.challenge_to_pb(await self._joins.challenge(address_of(context)))

    async def Join(self, request: pb.JoinRequest, context: Context) -> pb.JoinResponse:
        require_tls(context)
        joining = wire.joining_from_pb(request)
        return wire.joined_to_pb(await self._joins.join(joining, address_of(context)))

    async def Rejoin(self, request: pb.RejoinRequest, context: Context) -> pb.RejoinResponse:
        require_tls(context)
        rejoining = wire.rejoining_from_pb(request)
        enrolled = await self._joins.rejoin(rejoining, address_of(context))
        return pb.RejoinResponse(identity=wire.enrolled_to_pb(enrolled))


class Identities(IdentityServiceServicer):
    def __init__(self, joins: JoinService) -> None:
        self._joins = joins

    async def Renew(self, request: pb.RenewRequest, context: Context) -> pb.RenewResponse:
        enrolled = await self._joins.renew(peer_of(context), request.csr)
        return pb.RenewResponse(identity=wire.enrolled_to_pb(enrolled))
