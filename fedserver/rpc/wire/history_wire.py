"""Convert the history of a run to protobuf, and back."""

from collections.abc import Iterable, Iterator
from typing import Any

from fedserver.rpc.wire.rows import shown
from shoal.core.exchange._pb.fed.v1 import history_pb2 as pb
from shoal.core.exchange.wire.checks import for_people
from shoal.core.server_kit.history.records import (
    ClusterRound,
    DeviceRound,
    Digest,
    Position,
    RoundHistory,
    RunEvent,
)

_PLAIN = (
    "round",
    "title",
    "seconds",
    "asked",
    "reported",
    "abandoned",
    "progress",
    "measured_on",
    *("bytes_up", "bytes_down", "left_out", "back_to"),
)


def round_to_pb(found: RoundHistory) -> pb.RoundHistory:
    message = pb.RoundHistory(
        loss=found.loss,
        accuracy=found.accuracy,
        clusters=[pb.ClusterRound(**vars(each)) for each in found.clusters],
        events=[pb.RunEvent(**vars(each)) for each in found.events],
        devices=[pb.DeviceRound(**vars(each)) for each in found.devices],
        positions=[pb.DevicePosition(device=name, **vars(each)) for name, each in found.positions.items()],
        digest=None if found.digest is None else pb.RoundDigest(**vars(found.digest)),
        **{name: getattr(found, name) for name in _PLAIN},
    )
    message.ended.FromMicroseconds(round(found.ended * 1e6))
    return message


def rounds_to_pb(found: Iterable[RoundHistory]) -> Iterator[pb.RoundHistory]:
    """Those of a history."""
    return shown(
        found, round_to_pb, lambda each, why: pb.RoundHistory(round=each.round, title=for_people(why))
    )


def round_from_pb(message: pb.RoundHistory) -> RoundHistory:
    return RoundHistory(
        ended=message.ended.ToMicroseconds() / 1e6,
        loss=_optional(message, "loss"),
        accuracy=_optional(message, "accuracy"),
        clusters=tuple(map(_cluster_from_pb, message.clusters)),
        events=tuple(RunEvent(each.kind, each.text, tuple(each.clusters)) for each in message.events),
        devices=tuple(map(_device_from_pb, message.devices)),
        positions={
            each.device: Position(each.x, each.y, each.xx, each.xy, each.yy) for each in message.positions
        },
        digest=_digest_from_pb(message.digest) if message.HasField("digest") else None,
        **{name: getattr(message, name) for name in _PLAIN},
    )


def _cluster_from_pb(each: pb.ClusterRound) -> ClusterRound:
    return ClusterRound(
        each.key,
        each.model,
        each.devices,
        _optional(each, "loss"),
        _optional(each, "accuracy"),
        tuple(each.parents),
        tuple(each.remarks),
    )


def _device_from_pb(each: pb.DeviceRound) -> DeviceRound:
    return DeviceRound(
        each.device,
        each.cluster,
        each.examples,
        _optional(each, "loss"),
        _optional(each, "accuracy"),
        each.bytes_up,
        each.bytes_down,
        _optional(each, "worked"),
        _optional(each, "waited"),
        each.missing,
    )


def _digest_from_pb(each: pb.RoundDigest) -> Digest:
    return Digest(dict(each.assigned), each.slowest, _optional(each, "worked"), each.mapped)


def _optional(message: Any, name: str) -> float | None:
    return getattr(message, name) if message.HasField(name) else None
