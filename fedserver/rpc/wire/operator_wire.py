"""Convert what operators and the server send to each other to protobuf, and back.

Both programs are ours and of one version, so only the limits of the parts are checked. A value that is not
legal raises ConfigError. What people are shown has no limits; see `converter`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from fedserver.coordinator.status_types import (
    ClusterVersions,
    DeviceFigures,
    DeviceStatus,
    RunChange,
    RunStatus,
    RunSummary,
    ServerStatus,
)
from fedserver.rpc.wire.converter import BothWays, Converter, time_from_now
from fedserver.store.journal.newcomers import PlacementRecord
from fedserver.store.records import LogLine, RunSpec
from shoal.core.engine.policy import RoundPolicy
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import history_pb2
from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as pb
from shoal.core.exchange.payload import BlobRef
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.report import Statement
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import DeviceId, RunId

# -- a run to start -----------------------------------------------------------------------------------------


TIMES = ("wait_for_devices", "deadline", "device_timeout", "retry_after")
POLICY = Converter(
    RoundPolicy,
    pb.RoundPolicy,
    own={name: time_from_now(name) for name in TIMES},
)
ORIGIN = {
    "software": "software",
    "initial": "initial_model",
    "release": "release",
    "series": "series",
    "graph_by": "graph_by",
}
"""What the server writes of a run that was started, and its fields."""
SPEC = Converter(
    RunSpec,
    pb.StartRunRequest,
    left_out=("learner", "learner_options", "learner_seed", "graph", "graph_bytes", *ORIGIN),
    own={
        "every": BothWays(
            lambda every: wire.seconds_to_pb(every) if every else None,
            partial(wire.seconds_from_pb, what="every"),
        ),
        "parameters": BothWays(
            partial(wire.scalars_to_pb, what="parameters"), partial(wire.scalars_from_pb, what="parameters")
        ),
    },
    parts=(POLICY,),
)


def spec_to_pb(spec: RunSpec) -> pb.StartRunRequest:
    request = SPEC.to_pb(spec)
    request.learner.CopyFrom(
        pb.Learner(
            name=spec.learner,
            options=wire.scalars_to_pb(spec.learner_options, "learner options"),
            seed=spec.learner_seed,
        )
    )
    if spec.graph:
        request.graph.CopyFrom(wire.blob_to_pb(BlobRef(spec.graph, spec.graph_bytes)))
    return request


def spec_from_pb(request: pb.StartRunRequest) -> RunSpec:
    """Raises ConfigError for an illegal policy, BadPayload for a malformed request."""
    graph = wire.blob_from_pb(request.graph) if request.HasField("graph") else None
    return replace(
        SPEC.from_pb(request),
        learner=request.learner.name,
        learner_options=wire.scalars_from_pb(request.learner.options, "learner options"),
        learner_seed=request.learner.seed if request.learner.HasField("seed") else None,
        graph=graph.sha256 if graph else "",
        graph_bytes=graph.size if graph else 0,
    )


def change_to_pb(run: RunId, change: RunChange) -> pb.ChangeRunRequest:
    policy = POLICY.given_to_pb(change.policy)
    return pb.ChangeRunRequest(run=run, rounds=change.rounds, readmit=change.readmit, **policy)


def change_from_pb(request: pb.ChangeRunRequest) -> RunChange:
    rounds = request.rounds if request.HasField("rounds") else None
    return RunChange(POLICY.given_from_pb(request), rounds, tuple(request.readmit))


# -- what people are shown ----------------------------------------------------------------------------------


def _released_to_pb(found: Mapping[DeviceId, Statement]) -> list[pb.Released]:
    return [
        pb.Released(
            device=device,
            rho=each.cost.rho,
            delta=each.delta,
            group_size=each.group_size,
            unprotected=each.unprotected,
            curve=each.cost.curve,
            only_voted=each.trained is False,
        )
        for device, each in found.items()
    ]


def _released_from_pb(found: Iterable[pb.Released]) -> dict[DeviceId, Statement]:
    return {
        each.device: Statement(
            Cost(each.rho, tuple(each.curve)),
            each.delta,
            each.group_size,
            tuple(each.unprotected),
            trained=False if each.only_voted else None,
        )
        for each in found
    }


RELEASED = {"released": BothWays(_released_to_pb, _released_from_pb)}
SUMMARY = Converter(RunSummary, pb.RunSummary, words="waiting_for")
FIGURES = Converter(DeviceFigures, pb.DeviceFigures, words="")  # it has no field for words; the log has them
DEVICE = Converter(DeviceStatus, pb.DeviceStatus, words="software")
STATUS = Converter(
    RunStatus,
    pb.RunStatus,
    names={"abandoned": "abandoned_rounds"},
    own={**RELEASED, "spec": BothWays(spec_to_pb, spec_from_pb)},
    parts=(SUMMARY, FIGURES),
)
SERVER = Converter(ServerStatus, pb.GetStatusResponse, own=RELEASED, parts=(SUMMARY, DEVICE))
LINE = Converter(LogLine, pb.LogLine, words="text")
ROUND = Converter(RoundHistory, history_pb2.RoundHistory, words="title")
PLACEMENT = Converter(PlacementRecord, pb.PlacementRecord, words="reason")


def status_to_pb(status: RunStatus) -> pb.RunStatus:
    found = STATUS.to_pb(status)
    if status.spec is not None:
        written = {name: getattr(status.spec, attribute) for attribute, name in ORIGIN.items()}
        found.origin.CopyFrom(pb.RunOrigin(**written))
    return found


def status_from_pb(status: pb.RunStatus) -> RunStatus:
    found = STATUS.from_pb(status)
    if found.spec is None:
        return found
    written = {attribute: getattr(status.origin, name) for attribute, name in ORIGIN.items()}
    return replace(found, spec=replace(found.spec, **written))


def versions_to_pb(cluster: ClusterVersions) -> pb.ClusterVersions:
    return pb.ClusterVersions(
        cluster=pb.Cluster(key=cluster.key, members=cluster.members),
        versions=[
            pb.ModelVersion(round=number, model=wire.blob_to_pb(blob))
            for number, blob in cluster.versions.items()
        ],
    )


def versions_from_pb(cluster: pb.ClusterVersions) -> ClusterVersions:
    versions = {each.round: wire.blob_from_pb(each.model) for each in cluster.versions}
    return ClusterVersions(cluster.cluster.key, tuple(cluster.cluster.members), versions)
