"""ObserverService: how runs stand, without the names of devices."""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.identity import Context, Verified
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import observer_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceServicer
from shoal.core.exchange.link import Observation, ObservedRun


class Observers(ObserverServiceServicer):
    def __init__(self, desk: OperatorApi, callers: Verified) -> None:
        self._desk, self._callers = desk, callers

    async def ObserveRuns(self, request: pb.ObserveRunsRequest, context: Context) -> pb.ObserveRunsResponse:
        runs = tuple(
            ObservedRun(run.run, run.algorithm, run.stage, run.round, run.title) for run in self._desk.runs()
        )
        return wire.observation_to_pb(Observation(runs, self._callers.renew_in(context)))
