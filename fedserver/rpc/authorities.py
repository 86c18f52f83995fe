"""AuthorityService, for operators on the Unix socket and on a port of their own."""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from fedserver.authority.answers import Ended
from fedserver.authority.authority_api import AuthorityApi
from fedserver.rpc.admission.identity import Context
from fedserver.rpc.wire.authority_wire import DEVICE, ENDED, ISSUED, OPERATOR, TERMS, TOKEN, WITHDRAWN
from shoal.core.exchange._pb.fed.v1 import authority_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.authority_service_pb2_grpc import AuthorityServiceServicer
from shoal.core.exchange.wire.identity import OPERATOR_ROLE_OF
from shoal.core.identity.joining import OperatorRole


class Authorities(AuthorityServiceServicer):
    def __init__(self, authority: AuthorityApi) -> None:
        self._authority = authority

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Context) -> pb.CreateTokenResponse:
        token, join = await self._authority.create_token(TERMS.from_pb(request))
        return pb.CreateTokenResponse(token=TOKEN.to_pb(token), join=str(join))

    async def ListTokens(self, request: pb.ListTokensRequest, context: Context) -> pb.ListTokensResponse:
        return pb.ListTokensResponse(tokens=map(TOKEN.to_pb, await self._authority.tokens()))

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Context) -> pb.RevokeTokenResponse:
        token = await self._authority.revoke_token(request.token)
        return pb.RevokeTokenResponse(token=TOKEN.to_pb(token))

    async def ListDevices(self, request: pb.ListDevicesRequest, context: Context) -> pb.ListDevicesResponse:
        return pb.ListDevicesResponse(devices=DEVICE.rows_to_pb(await self._authority.devices()))

    async def ApproveDevice(
        self, request: pb.ApproveDeviceRequest, context: Context
    ) -> pb.ApproveDeviceResponse:
        known = await self._authority.approve(request.device, request.fingerprint)
        return pb.ApproveDeviceResponse(device=DEVICE.to_pb(known))

    async def RevokeDevice(
        self, request: pb.RevokeDeviceRequest, context: Context
    ) -> pb.RevokeDeviceResponse:
        if request.waiting:
            ended = Ended(await self._authority.refuse(request.device, request.reason), 0, ())
        else:
            ended = await self._authority.revoke(request.device, request.reason)
        return ENDED.to_pb(ended)

    async def WithdrawDevice(
        self, request: pb.WithdrawDeviceRequest, context: Context
    ) -> pb.WithdrawDeviceResponse:
        found = await self._authority.withdraw(
            request.device, request.reason, request.confirmed, tuple(request.replay)
        )
        return WITHDRAWN.to_pb(found)

    async def RotateAuthority(
        self, request: pb.RotateAuthorityRequest, context: Context
    ) -> pb.RotateAuthorityResponse:
        rotated = await self._authority.rotate()
        return pb.RotateAuthorityResponse(fingerprint=rotated.pin, operators=rotated.operators)

    async def AddOperator(self, request: pb.AddOperatorRequest, context: Context) -> pb.AddOperatorResponse:
        role = OPERATOR_ROLE_OF.get(request.role, OperatorRole.VIEWER)
        accounts = self._authority.operators
        return ISSUED.to_pb(await accounts.add(request.operator, role, request.csr))

    async def ListOperators(
        self, request: pb.ListOperatorsRequest, context: Context
    ) -> pb.ListOperatorsResponse:
        known = self._authority.operators.known()
        return pb.ListOperatorsResponse(operators=map(OPERATOR.to_pb, known))

    async def RevokeOperator(
        self, request: pb.RevokeOperatorRequest, context: Context
    ) -> pb.RevokeOperatorResponse:
        revoked, cut = await self._authority.operators.revoke(request.operator, request.reason)
        return pb.RevokeOperatorResponse(operator=OPERATOR.to_pb(revoked), cut=cut)
