"""What operators call, over the Unix socket."""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from collections.abc import AsyncIterator
from typing import Any

from grpc import aio

from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc import operator_wire
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.operator_service_pb2_grpc import OperatorServiceServicer

Context = aio.ServicerContext[Any, Any]


class Operators(OperatorServiceServicer):
    def __init__(self, desk: OperatorApi) -> None:
        self._desk = desk

    async def StartRun(self, request: pb.StartRunRequest, context: Context) -> pb.StartRunResponse:
        initial = wire.weights_from_pb(request.initial_model) if request.HasField("initial_model") else None
        run = await self._desk.start_run(operator_wire.spec_from_pb(request), initial)
        return pb.StartRunResponse(run=run)

    async def ListRuns(self, request: pb.ListRunsRequest, context: Context) -> pb.ListRunsResponse:
        return pb.ListRunsResponse(runs=map(operator_wire.summary_to_pb, self._desk.runs()))

    async def GetRun(self, request: pb.GetRunRequest, context: Context) -> pb.GetRunResponse:
        return pb.GetRunResponse(status=operator_wire.status_to_pb(await self._desk.show(request.run)))

    async def StopRun(self, request: pb.StopRunRequest, context: Context) -> pb.StopRunResponse:
        status = await self._desk.stop_run(request.run, request.reason)
        return pb.StopRunResponse(status=operator_wire.status_to_pb(status))

    async def ListClusters(
        self, request: pb.ListClustersRequest, context: Context
    ) -> pb.ListClustersResponse:
        found = await self._desk.clusters(request.run)
        return pb.ListClustersResponse(clusters=map(operator_wire.versions_to_pb, found))

    async def RollBack(self, request: pb.RollBackRequest, context: Context) -> pb.RollBackResponse:
        status = await self._desk.roll_back(request.run, request.round, request.cluster)
        return pb.RollBackResponse(status=operator_wire.status_to_pb(status))

    async def GetStatus(self, request: pb.GetStatusRequest, context: Context) -> pb.GetStatusResponse:
        return operator_wire.server_to_pb(await self._desk.status())

    async def WatchRun(
        self, request: pb.WatchRunRequest, context: Context
    ) -> AsyncIterator[pb.WatchRunResponse]:
        async for status in self._desk.watch(request.run):
            yield pb.WatchRunResponse(status=operator_wire.status_to_pb(status))

    async def ReadLog(self, request: pb.ReadLogRequest, context: Context) -> pb.ReadLogResponse:
        lines = await self._desk.log(request.run, request.after)
        return pb.ReadLogResponse(lines=map(operator_wire.line_to_pb, lines))
