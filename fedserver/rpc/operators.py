"""OperatorService, for operators on the Unix socket and on a port of their own, and ObserverService.

Observers call where devices do, and see no device's name.
"""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from collections.abc import AsyncIterator

from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.admission.identity import Context
from fedserver.rpc.wire import operator_wire
from fedserver.store.journal.timeline import ROUNDS
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import observer_service_pb2 as observer_pb
from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceServicer
from shoal.core.exchange._pb.fed.v1.operator_service_pb2_grpc import OperatorServiceServicer
from shoal.core.exchange.link import ObservedRun


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
        runs = self._runs.runs()
        shown = (ObservedRun(run.run, run.algorithm, run.stage, run.round, run.title) for run in runs)
        return wire.observation_to_pb(shown)
