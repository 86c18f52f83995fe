"""Convert what operators and the server send to each other to protobuf, and back.

Both programs are ours and of one version, so only the limits of the parts are checked. A value that is not
legal raises ConfigError. What people are shown has no limits; see `rows`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from fedserver.coordinator.status_types import (
    PRESENCES,
    STAGES,
    ClusterVersions,
    DeviceFigures,
    DeviceStatus,
    RunChange,
    RunStatus,
    RunSummary,
    ServerStatus,
)
from fedserver.rpc.wire.rows import shown, span_from_pb, span_to_pb
from fedserver.store.integrity.records import LogLine, RunSpec
from shoal.core.engine.policy import RoundPolicy
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as pb
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.wire.checks import for_people
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.report import CentralNoise, Statement
from shoal.core.types import DeviceId, RunId
from shoal.core.verdict import Verdict

STAGE_OF = {name: pb.Stage.Value(f"STAGE_{name.upper()}") for name in STAGES}
_PRESENCES = {name: pb.Presence.Value(f"PRESENCE_{name.upper()}") for name in PRESENCES}
_NUMBERS, _TIMES = (
    ("minimum", "oversample", "max_abandoned_rounds", "straggler_factor"),
    ("wait_for_devices", "deadline", "device_timeout", "retry_after"),
)


# -- a run to start -----------------------------------------------------------------------------------------


def spec_to_pb(spec: RunSpec) -> pb.StartRunRequest:
    policy = spec.policy
    return pb.StartRunRequest(
        name=spec.name,
        algorithm=spec.algorithm,
        preset=spec.preset,
        parameters=wire.scalars_to_pb(spec.parameters, "parameters"),
        policy=pb.RoundPolicy(
            devices=policy.devices,
            minimum=policy.minimum,
            oversample=policy.oversample,
            wait_for_devices=wire.seconds_to_pb(policy.wait_for_devices),
            deadline=wire.seconds_to_pb(policy.deadline),
            device_timeout=wire.seconds_to_pb(policy.device_timeout),
            max_abandoned_rounds=policy.max_abandoned_rounds,
            straggler_factor=policy.straggler_factor,
            retry_after=wire.seconds_to_pb(policy.retry_after),
        ),
        seed=spec.seed,
        learner=pb.Learner(
            name=spec.learner,
            options=wire.scalars_to_pb(spec.learner_options, "learner options"),
            seed=spec.learner_seed,
        ),
        graph=wire.blob_to_pb(BlobRef(spec.graph, spec.graph_bytes)) if spec.graph else None,
        labels=spec.labels,
        evaluate=spec.evaluate,
    )


def spec_from_pb(request: pb.StartRunRequest) -> RunSpec:
    """Raises ConfigError for an illegal policy, BadPayload for a malformed request."""
    graph = wire.blob_from_pb(request.graph) if request.HasField("graph") else BlobRef("0" * 64, 0)
    return RunSpec(
        request.name,
        request.algorithm,
        request.preset or "default",
        wire.scalars_from_pb(request.parameters, "parameters"),
        _policy_from_pb(request.policy),
        request.seed,
        request.learner.name,
        wire.scalars_from_pb(request.learner.options, "learner options"),
        learner_seed=request.learner.seed if request.learner.HasField("seed") else None,
        graph=graph.sha256 if request.HasField("graph") else "",
        graph_bytes=graph.size,
        labels=dict(request.labels),
        evaluate=request.evaluate if request.HasField("evaluate") else None,
    )


def _policy_from_pb(policy: pb.RoundPolicy) -> RoundPolicy:
    return RoundPolicy(policy.devices, **_given(policy))


def _given(message: Any) -> dict[str, Any]:
    """The fields of a policy that are set, apart from `devices`."""
    numbers = {name: getattr(message, name) for name in _NUMBERS if message.HasField(name)}
    times = {
        name: wire.seconds_from_pb(getattr(message, name), name) for name in _TIMES if message.HasField(name)
    }
    return {**numbers, **times}


def change_to_pb(run: RunId, change: RunChange) -> pb.ChangeRunRequest:
    request = pb.ChangeRunRequest(run=run, rounds=change.rounds, readmit=change.readmit)
    for name, value in change.policy.items():
        if name in _TIMES:
            getattr(request, name).CopyFrom(wire.seconds_to_pb(float(value)))
        else:
            setattr(request, name, value)
    return request


def change_from_pb(request: pb.ChangeRunRequest) -> RunChange:
    devices = {"devices": request.devices} if request.HasField("devices") else {}
    rounds = request.rounds if request.HasField("rounds") else None
    return RunChange({**devices, **_given(request)}, rounds, tuple(request.readmit))


# -- what people are shown ----------------------------------------------------------------------------------


def summary_to_pb(summary: RunSummary) -> pb.RunSummary:
    found = pb.RunSummary(
        run=summary.run,
        name=summary.name,
        algorithm=summary.algorithm,
        preset=summary.preset,
        stage=STAGE_OF[summary.stage],
        round=summary.round,
        title=summary.title,
        waiting_for=summary.waiting_for,
        waiting_devices=summary.waiting_devices,
        time_left=span_to_pb(summary.time_left),
        cluster_count=summary.cluster_count,
        accuracy=summary.accuracy,
        progress=summary.progress,
        rounds=summary.rounds,
        pace=span_to_pb(summary.pace),
    )
    for name in ("created", "ended"):
        if (at := getattr(summary, name)) is not None:
            getattr(found, name).FromNanoseconds(round(at * 1e9))
    return found


def summaries_to_pb(summaries: Iterable[RunSummary]) -> Iterator[pb.RunSummary]:
    """Those of a list."""
    return shown(summaries, summary_to_pb, _bare_summary)


def _bare_summary(summary: RunSummary, why: str) -> pb.RunSummary:
    stage = STAGE_OF.get(summary.stage, pb.STAGE_UNSPECIFIED)
    return pb.RunSummary(run=for_people(summary.run), stage=stage, waiting_for=for_people(why))


def summary_from_pb(summary: pb.RunSummary) -> RunSummary:
    return RunSummary(
        summary.run,
        summary.name,
        summary.algorithm,
        summary.preset,
        _name(STAGE_OF, summary.stage),
        summary.round,
        summary.title,
        summary.waiting_for,
        tuple(summary.waiting_devices),
        _seconds(summary, "time_left", summary.time_left),
        summary.created.ToNanoseconds() / 1e9 if summary.HasField("created") else None,
        summary.cluster_count,
        summary.accuracy if summary.HasField("accuracy") else None,
        summary.ended.ToNanoseconds() / 1e9 if summary.HasField("ended") else None,
        summary.progress,
        summary.rounds,
        _seconds(summary, "pace", summary.pace),
    )


def status_to_pb(status: RunStatus) -> pb.RunStatus:
    return pb.RunStatus(
        summary=next(summaries_to_pb([status.summary])),
        clusters=[pb.Cluster(key=key, members=members) for key, members in status.clusters.items()],
        devices=shown(status.devices, _figures_to_pb, _bare_figures),
        abandoned_rounds=[
            pb.AbandonedRound(round=number, reason=reason) for number, reason in status.abandoned.items()
        ],
        missing=[
            pb.MissingDevice(device=device, reason=reason)
            for device, reason in sorted(status.missing.items())
        ],
        models={key: wire.weights_to_pb(weights) for key, weights in status.models.items()},
        released=_released_to_pb(status.released),
        central=None if status.central is None else pb.CentralNoise(**vars(status.central)),
        spec=None if status.spec is None else spec_to_pb(status.spec),
        origin=None if status.spec is None else _origin_to_pb(status.spec),
        accuracies=[
            pb.RoundAccuracy(round=number, accuracy=accuracy)
            for number, accuracy in status.accuracies.items()
        ],
        verdict=None if status.verdict is None else pb.Verdict(**vars(status.verdict)),
        answers=status.answers,
    )


def status_from_pb(status: pb.RunStatus) -> RunStatus:
    return RunStatus(
        summary_from_pb(status.summary),
        {cluster.key: tuple(cluster.members) for cluster in status.clusters},
        tuple(map(_figures_from_pb, status.devices)),
        {each.round: each.reason for each in status.abandoned_rounds},
        {each.device: each.reason for each in status.missing},
        {key: wire.weights_from_pb(weights) for key, weights in sorted(status.models.items())},
        _released_from_pb(status.released),
        CentralNoise(status.central.rho, status.central.delta, status.central.by_devices)
        if status.HasField("central")
        else None,
        _started_from_pb(status) if status.HasField("spec") else None,
        {each.round: each.accuracy for each in status.accuracies},
        _verdict_from_pb(status.verdict) if status.HasField("verdict") else None,
        dict(sorted(status.answers.items())),
    )


def _verdict_from_pb(found: pb.Verdict) -> Verdict:
    return Verdict(
        found.learned if found.HasField("learned") else None,
        found.accuracy,
        found.baseline if found.HasField("baseline") else None,
        found.gain,
        found.error,
        found.numbers,
        found.falling,
        found.diverged,
        found.advice,
        found.beside,
        found.groups,
    )


def _origin_to_pb(spec: RunSpec) -> pb.RunOrigin:
    return pb.RunOrigin(software=spec.software, initial_model=spec.initial, graph_by=spec.graph_by)


def _started_from_pb(status: pb.RunStatus) -> RunSpec:
    origin = status.origin
    return replace(
        spec_from_pb(status.spec),
        software=origin.software,
        initial=origin.initial_model,
        graph_by=origin.graph_by,
    )


def _released_to_pb(released: Mapping[DeviceId, Statement]) -> list[pb.Released]:
    return [
        pb.Released(
            device=device,
            rho=found.cost.rho,
            delta=found.delta,
            group_size=found.group_size,
            unprotected=found.unprotected,
            curve=found.cost.curve,
            only_voted=found.trained is False,
        )
        for device, found in released.items()
    ]


def _released_from_pb(released: Iterable[pb.Released]) -> dict[DeviceId, Statement]:
    return {
        each.device: Statement(
            Cost(each.rho, tuple(each.curve)),
            each.delta,
            each.group_size,
            tuple(each.unprotected),
            trained=False if each.only_voted else None,
        )
        for each in released
    }


def _figures_to_pb(figures: DeviceFigures) -> pb.DeviceFigures:
    return pb.DeviceFigures(**vars(figures))


def _bare_figures(figures: DeviceFigures, why: str) -> pb.DeviceFigures:
    """Only that the device takes part: there is no field for words, and the log has them."""
    return pb.DeviceFigures(device=for_people(figures.device))


def _figures_from_pb(figures: pb.DeviceFigures) -> DeviceFigures:
    return DeviceFigures(
        figures.device,
        figures.cluster,
        figures.accuracy if figures.HasField("accuracy") else None,
        figures.loss if figures.HasField("loss") else None,
        figures.examples,
        figures.bytes_up,
        figures.bytes_down,
    )


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


def server_to_pb(status: ServerStatus) -> pb.GetStatusResponse:
    return pb.GetStatusResponse(
        version=status.version,
        devices=shown(status.devices, _device_to_pb, _bare_device),
        runs=summaries_to_pb(status.runs),
        notices=status.notices,
        released=_released_to_pb(status.released),
    )


def server_from_pb(status: pb.GetStatusResponse) -> ServerStatus:
    return ServerStatus(
        status.version,
        tuple(map(_device_from_pb, status.devices)),
        tuple(map(summary_from_pb, status.runs)),
        tuple(status.notices),
        _released_from_pb(status.released),
    )


def _device_to_pb(device: DeviceStatus) -> pb.DeviceStatus:
    return pb.DeviceStatus(
        device=device.device,
        presence=_PRESENCES[device.presence],
        last_seen=span_to_pb(device.last_seen),
        software=device.software,
        lease=wire.lease_to_pb(wire.Lease(*device.lease)) if device.lease else None,
    )


def _bare_device(device: DeviceStatus, why: str) -> pb.DeviceStatus:
    return pb.DeviceStatus(
        device=for_people(device.device),
        presence=_PRESENCES.get(device.presence, pb.PRESENCE_UNSPECIFIED),
        software=for_people(why),
    )


def _device_from_pb(device: pb.DeviceStatus) -> DeviceStatus:
    lease = wire.lease_from_pb(device.lease) if device.HasField("lease") else None
    return DeviceStatus(
        device.device,
        _name(_PRESENCES, device.presence),
        _seconds(device, "last_seen", device.last_seen),
        device.software,
        lease and (lease.run, lease.round, lease.attempt),
    )


def line_to_pb(line: LogLine) -> pb.LogLine:
    found = pb.LogLine(number=line.number, device=line.device, text=line.text)
    found.at.FromNanoseconds(round(line.at * 1e9))
    return found


def lines_to_pb(lines: Iterable[LogLine]) -> Iterator[pb.LogLine]:
    """Those of a log."""
    return shown(lines, line_to_pb, lambda line, why: pb.LogLine(number=line.number, text=for_people(why)))


def line_from_pb(line: pb.LogLine) -> LogLine:
    return LogLine(line.number, line.at.ToNanoseconds() / 1e9, line.device, line.text)


def _name(table: Mapping[str, int], number: int) -> str:
    return next((name for name, value in table.items() if value == number), "unknown")


def _seconds(message: Message, field: str, duration: Duration) -> float | None:
    return span_from_pb(duration) if message.HasField(field) else None
