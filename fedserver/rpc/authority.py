"""AuthorityService: each call of an operator handed to the office."""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from fedserver.authority.authority_api import AuthorityApi
from fedserver.rpc import authority_wire as convert
from fedserver.rpc.identity import Context
from shoal.core.exchange._pb.fed.v1 import authority_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.authority_service_pb2_grpc import AuthorityServiceServicer


class Authorities(AuthorityServiceServicer):
    def __init__(self, office: AuthorityApi) -> None:
        self._office = office

    async def CreateToken(self, request: pb.CreateTokenRequest, context: Context) -> pb.CreateTokenResponse:
        token, join = await self._office.create_token(convert.terms_from_pb(request))
        return pb.CreateTokenResponse(token=convert.token_to_pb(token), join=str(join))

    async def ListTokens(self, request: pb.ListTokensRequest, context: Context) -> pb.ListTokensResponse:
        return pb.ListTokensResponse(tokens=map(convert.token_to_pb, await self._office.tokens()))

    async def RevokeToken(self, request: pb.RevokeTokenRequest, context: Context) -> pb.RevokeTokenResponse:
        token = await self._office.revoke_token(request.token)
        return pb.RevokeTokenResponse(token=convert.token_to_pb(token))

    async def ListDevices(self, request: pb.ListDevicesRequest, context: Context) -> pb.ListDevicesResponse:
        return pb.ListDevicesResponse(devices=map(convert.device_to_pb, await self._office.devices()))

    async def ApproveDevice(
        self, request: pb.ApproveDeviceRequest, context: Context
    ) -> pb.ApproveDeviceResponse:
        known = await self._office.approve(request.device)
        return pb.ApproveDeviceResponse(device=convert.device_to_pb(known))

    async def RevokeDevice(
        self, request: pb.RevokeDeviceRequest, context: Context
    ) -> pb.RevokeDeviceResponse:
        return convert.ended_to_pb(await self._office.revoke(request.device, request.reason))

    async def RenameDevice(
        self, request: pb.RenameDeviceRequest, context: Context
    ) -> pb.RenameDeviceResponse:
        known = await self._office.rename(request.device, request.display)
        return pb.RenameDeviceResponse(device=convert.device_to_pb(known))

    async def ListAuthorities(
        self, request: pb.ListAuthoritiesRequest, context: Context
    ) -> pb.ListAuthoritiesResponse:
        return pb.ListAuthoritiesResponse(authorities=map(convert.root_to_pb, await self._office.roots()))

    async def AddAuthority(
        self, request: pb.AddAuthorityRequest, context: Context
    ) -> pb.AddAuthorityResponse:
        return pb.AddAuthorityResponse(authority=convert.root_to_pb(await self._office.add_root()))

    async def UseAuthority(
        self, request: pb.UseAuthorityRequest, context: Context
    ) -> pb.UseAuthorityResponse:
        root = await self._office.use_root(request.authority, request.force)
        return pb.UseAuthorityResponse(authority=convert.root_to_pb(root))

    async def DropAuthority(
        self, request: pb.DropAuthorityRequest, context: Context
    ) -> pb.DropAuthorityResponse:
        await self._office.drop_root(request.authority, request.force)
        return pb.DropAuthorityResponse()
