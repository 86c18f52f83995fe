"""ObserverService: how runs stand, without the names of devices."""
# ruff: noqa: N802 -- methods have the names that the contract gives them

from fedcore._pb.fed.v1 import observer_service_pb2 as pb
from fedcore._pb.fed.v1.observer_service_pb2_grpc import ObserverServiceServicer
from fedserver.desk import Desk
from fedserver.rpc.identity import Context
from fedserver.rpc.operator_wire import STAGE_OF


class Observers(ObserverServiceServicer):
    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    async def ObserveRuns(self, request: pb.ObserveRunsRequest, context: Context) -> pb.ObserveRunsResponse:
        runs = [
            pb.ObservedRun(
                run=run.run,
                algorithm=run.algorithm,
                stage=STAGE_OF[run.stage],
                round=run.round,
                title=run.title,
            )
            for run in self._desk.runs()
        ]
        return pb.ObserveRunsResponse(runs=runs)
