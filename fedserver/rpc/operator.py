"""OperatorService and AuthorityService, for operators on the Unix socket and on a port of their own, and
ObserverService.

Observers call where devices do, and see no device's name.
"""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from collections.abc import AsyncIterator

from fedserver.authority.answers import Ended
from fedserver.authority.authority_api import AuthorityApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.admission.identity import Context
from fedserver.rpc.wire import authority_wire, operator_wire
from fedserver.store.journal.timeline import ROUNDS
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import authority_service_pb2 as authority_pb
from shoal.core.exchange._pb.fed.v1 import observer_service_pb2 as observer_pb
from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.authority_service_pb2_grpc import AuthorityServiceServicer
from shoal.core.exchange._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceServicer
from shoal.core.exchange._pb.fed.v1.operator_service_pb2_grpc import OperatorServiceServicer
from shoal.core.exchange.link import Observation, ObservedRun
from shoal.core.exchange.wire.identity import OPERATOR_ROLE_OF
from shoal.core.identity.joining import OperatorRole


class Operators(OperatorServiceServicer):
    def __init__(self, runs: OperatorApi) -> None:
        self._runs = runs

    async def StartRun(self, request: pb.StartRunRequest, context: Context) -> pb.StartRunResponse:
        initial = wire.weights_from_pb(request.initial_model) if request.HasField("initial_model") else None
        run = await self._runs.start_run(operator_wire.spec_from_pb(request), initial)
        return pb.StartRunResponse(run=run, cost=await self._runs.cost(run))

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        return pb.ListRunsResponse(runs=operator_wire.SUMMARY.rows_to_pb(self._runs.runs()))

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        return pb.GetRunResponse(status=operator_wire.status_to_pb(await self._runs.show(request.run)))

    async def StopRun(self, request: pb.StopRunRequest, context: Context) -> pb.StopRunResponse:
        status = await self._runs.stop_run(request.run, request.reason)
        return pb.StopRunResponse(status=operator_wire.status_to_pb(status))

    async def ResumeRun(self, request: pb.ResumeRunRequest, context: Context) -> pb.ResumeRunResponse:
        status = await self._runs.resume_run(request.run)
        return pb.ResumeRunResponse(status=operator_wire.status_to_pb(status))

    async def PauseRun(self, request: pb.PauseRunRequest, context: Context) -> pb.PauseRunResponse:
        status = await self._runs.pause_run(request.run, request.reason)
        return pb.PauseRunResponse(status=operator_wire.status_to_pb(status))

    async def ChangeRun(self, request: pb.ChangeRunRequest, context: Context) -> pb.ChangeRunResponse:
        status = await self._runs.change_run(request.run, operator_wire.change_from_pb(request))
        return pb.ChangeRunResponse(status=operator_wire.status_to_pb(status))

    async def RemoveRun(self, request: pb.RemoveRunRequest, context: Context) -> pb.RemoveRunResponse:
        if request.whole:
            await self._runs.remove_run(request.run)
            return pb.RemoveRunResponse()
        return pb.RemoveRunResponse(deleted=await self._runs.prune_runs(request.run))

    async def ListClusters(
        self, request: pb.ListClustersRequest, context: Context
    ) -> pb.ListClustersResponse:
        found = await self._runs.clusters(request.run)
        return pb.ListClustersResponse(clusters=map(operator_wire.versions_to_pb, found))

    async def RollBack(self, request: pb.RollBackRequest, context: Context) -> pb.RollBackResponse:
        status = await self._runs.roll_back(request.run, request.round, request.cluster)
        return pb.RollBackResponse(status=operator_wire.status_to_pb(status))

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        found = await self._runs.status(released=not request.without_released)
        return operator_wire.SERVER.to_pb(found)

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Context
    ) -> AsyncIterator[pb.WatchRunResponse]:
        async for status in self._runs.watch(request.run):
            yield pb.WatchRunResponse(status=operator_wire.status_to_pb(status))

    async def ReadLog(self, request: pb.ReadLogRequest, context: Context) -> pb.ReadLogResponse:
        lines = await self._runs.log(request.run, request.after)
        return pb.ReadLogResponse(lines=operator_wire.LINE.rows_to_pb(lines))

    async def ReadHistory(self, request: pb.ReadHistoryRequest, context: Context) -> pb.ReadHistoryResponse:
        rounds = await self._runs.history(
            request.run, request.after, devices=not request.without_devices, most=request.most or ROUNDS
        )
        return pb.ReadHistoryResponse(rounds=operator_wire.ROUND.rows_to_pb(rounds))

    async def ListPlacements(
        self, request: pb.ListPlacementsRequest, context: Context
    ) -> pb.ListPlacementsResponse:
        found = await self._runs.placements(request.run, request.device, request.after)
        return pb.ListPlacementsResponse(placements=operator_wire.PLACEMENT.rows_to_pb(found))


class Observers(ObserverServiceServicer):
    def __init__(self, runs: OperatorApi) -> None:
        self._runs = runs

    async def ObserveRuns(
        self, request: observer_pb.ObserveRunsRequest, context: Context
    ) -> observer_pb.ObserveRunsResponse:
        runs = tuple(
            ObservedRun(run.run, run.algorithm, run.stage, run.round, run.title) for run in self._runs.runs()
        )
        return wire.observation_to_pb(Observation(runs))


class Authorities(AuthorityServiceServicer):
    def __init__(self, authority: AuthorityApi) -> None:
        self._authority = authority

    async def CreateToken(
        self, request: authority_pb.CreateTokenRequest, context: Context
    ) -> authority_pb.CreateTokenResponse:
        token, join = await self._authority.create_token(authority_wire.TERMS.from_pb(request))
        return authority_pb.CreateTokenResponse(token=authority_wire.TOKEN.to_pb(token), join=str(join))

    async def ListTokens(
        self, request: authority_pb.ListTokensRequest, context: Context
    ) -> authority_pb.ListTokensResponse:
        return authority_pb.ListTokensResponse(
            tokens=map(authority_wire.TOKEN.to_pb, await self._authority.tokens())
        )

    async def RevokeToken(
        self, request: authority_pb.RevokeTokenRequest, context: Context
    ) -> authority_pb.RevokeTokenResponse:
        token = await self._authority.revoke_token(request.token)
        return authority_pb.RevokeTokenResponse(token=authority_wire.TOKEN.to_pb(token))

    async def ListDevices(
        self, request: authority_pb.ListDevicesRequest, context: Context
    ) -> authority_pb.ListDevicesResponse:
        return authority_pb.ListDevicesResponse(
            devices=authority_wire.DEVICE.rows_to_pb(await self._authority.devices())
        )

    async def ApproveDevice(
        self, request: authority_pb.ApproveDeviceRequest, context: Context
    ) -> authority_pb.ApproveDeviceResponse:
        known = await self._authority.approve(request.device, request.fingerprint)
        return authority_pb.ApproveDeviceResponse(device=authority_wire.DEVICE.to_pb(known))

    async def RevokeDevice(
        self, request: authority_pb.RevokeDeviceRequest, context: Context
    ) -> authority_pb.RevokeDeviceResponse:
        if request.waiting:
            ended = Ended(await self._authority.refuse(request.device, request.reason), 0, ())
        else:
            ended = await self._authority.revoke(request.device, request.reason)
        return authority_wire.ENDED.to_pb(ended)

    async def WithdrawDevice(
        self, request: authority_pb.WithdrawDeviceRequest, context: Context
    ) -> authority_pb.WithdrawDeviceResponse:
        found = await self._authority.withdraw(
            request.device, request.reason, request.confirmed, tuple(request.replay)
        )
        return authority_wire.WITHDRAWN.to_pb(found)

    async def RotateAuthority(
        self, request: authority_pb.RotateAuthorityRequest, context: Context
    ) -> authority_pb.RotateAuthorityResponse:
        rotated = await self._authority.rotate()
        return authority_pb.RotateAuthorityResponse(fingerprint=rotated.pin, operators=rotated.operators)

    async def AddOperator(
        self, request: authority_pb.AddOperatorRequest, context: Context
    ) -> authority_pb.AddOperatorResponse:
        role = OPERATOR_ROLE_OF.get(request.role, OperatorRole.VIEWER)
        accounts = self._authority.operators
        return authority_wire.ISSUED.to_pb(await accounts.add(request.operator, role, request.csr))

    async def ListOperators(
        self, request: authority_pb.ListOperatorsRequest, context: Context
    ) -> authority_pb.ListOperatorsResponse:
        known = self._authority.operators.known()
        return authority_pb.ListOperatorsResponse(operators=map(authority_wire.OPERATOR.to_pb, known))

    async def RevokeOperator(
        self, request: authority_pb.RevokeOperatorRequest, context: Context
    ) -> authority_pb.RevokeOperatorResponse:
        revoked, cut = await self._authority.operators.revoke(request.operator, request.reason)
        return authority_pb.RevokeOperatorResponse(operator=authority_wire.OPERATOR.to_pb(revoked), cut=cut)
