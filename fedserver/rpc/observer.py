"""ObserverService: how runs stand, without the names of devices."""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from fedcore import wire
from fedcore._pb.fed.v1 import observer_service_pb2 as pb
from fedcore._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceServicer
from fedcore.link import Observation, ObservedRun
from fedserver.desk import Desk
from fedserver.rpc.identity import Context, Verified


class Observers(ObserverServiceServicer):
    def __init__(self, desk: Desk, callers: Verified) -> None:
        self._desk, self._callers = desk, callers

    async def ObserveRuns(self, request: pb.ObserveRunsRequest, context: Context) -> pb.ObserveRunsResponse:
        runs = tuple(
            ObservedRun(run.run, run.algorithm, run.stage, run.round, run.title) for run in self._desk.runs()
        )
        return wire.observation_to_pb(Observation(runs, self._callers.renew_in(context)))
