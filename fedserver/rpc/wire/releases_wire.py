"""Convert releases and channels to protobuf, and back."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fedserver.coordinator.status_types import (
    ReleaseEvaluation,
    ReleaseGroup,
    ReleaseStatus,
    ReleaseSummary,
    WatchedCluster,
)
from fedserver.rpc.wire.operator_wire import status_from_pb, status_to_pb
from fedserver.rpc.wire.rows import shown
from fedserver.store.releases import Move
from shoal.core.exchange._pb.fed.v1 import release_service_pb2 as pb
from shoal.core.exchange.wire.checks import for_people

_PLAIN = ("release", "run", "progress", "devices", "accuracy", "error", "authority", "wrong")


def release_to_pb(found: ReleaseSummary) -> pb.Release:
    message = pb.Release(
        **{name: getattr(found, name) for name in _PLAIN},
        channels=found.channels,
        revoked=found.revoked,
        groups=[pb.ReleaseGroup(**vars(group)) for group in found.groups],
        watched=map(_watched_to_pb, found.watched),
    )
    message.made.FromMicroseconds(round(found.made * 1e6))
    return message


def releases_to_pb(found: Iterable[ReleaseSummary]) -> Iterator[pb.Release]:
    """Those of a list."""
    return shown(
        found,
        release_to_pb,
        lambda each, why: pb.Release(release=for_people(each.release), wrong=for_people(why)),
    )


def release_from_pb(message: pb.Release) -> ReleaseSummary:
    plain = {name: getattr(message, name) for name in _PLAIN}
    return ReleaseSummary(
        **{**plain, "accuracy": message.accuracy if message.HasField("accuracy") else None},
        made=message.made.ToMicroseconds() / 1e6,
        channels=tuple(message.channels),
        revoked=tuple(message.revoked),
        groups=tuple(map(_group_from_pb, message.groups)),
        watched=tuple(map(_watched_from_pb, message.watched)),
    )


def _watched_to_pb(found: WatchedCluster) -> pb.WatchedCluster:
    message = pb.WatchedCluster(key=found.key, answers=found.answers, share=found.share, error=found.error)
    if found.since is not None:
        message.since.FromMicroseconds(round(found.since * 1e6))
    return message


def _watched_from_pb(message: pb.WatchedCluster) -> WatchedCluster:
    since = message.since.ToMicroseconds() / 1e6 if message.HasField("since") else None
    return WatchedCluster(message.key, message.answers, message.share, message.error, since)


def _group_from_pb(message: pb.ReleaseGroup) -> ReleaseGroup:
    accuracy = message.accuracy if message.HasField("accuracy") else None
    return ReleaseGroup(message.key, message.devices, accuracy, message.error)


def whole_to_pb(found: ReleaseStatus) -> pb.GetReleaseResponse:
    return pb.GetReleaseResponse(
        release=release_to_pb(found.summary),
        status=status_to_pb(found.status),
        card=found.card,
        signature=found.signature,
        certificate=found.certificate,
        evaluations=map(_evaluation_to_pb, found.evaluations),
    )


def whole_from_pb(message: pb.GetReleaseResponse) -> ReleaseStatus:
    return ReleaseStatus(
        release_from_pb(message.release),
        status_from_pb(message.status),
        message.card,
        message.signature,
        message.certificate,
        tuple(map(_evaluation_from_pb, message.evaluations)),
    )


def _evaluation_to_pb(found: ReleaseEvaluation) -> pb.ReleaseEvaluation:
    groups = [pb.ReleaseGroup(**vars(group)) for group in found.groups]
    message = pb.ReleaseEvaluation(run=found.run, groups=groups, accuracy=found.accuracy, error=found.error)
    message.ended.FromMicroseconds(round(found.ended * 1e6))
    return message


def _evaluation_from_pb(message: pb.ReleaseEvaluation) -> ReleaseEvaluation:
    return ReleaseEvaluation(
        message.run,
        message.ended.ToMicroseconds() / 1e6,
        tuple(map(_group_from_pb, message.groups)),
        message.accuracy if message.HasField("accuracy") else None,
        message.error,
    )


def channel_to_pb(channel: str, moves: Sequence[Move]) -> pb.Channel:
    found = pb.Channel(channel=channel)
    for move in moves:
        given = found.moves.add(release=move.release, pinned=move.pinned, why=move.why)
        given.at.FromMicroseconds(round(move.at * 1e6))
    return found


def channel_from_pb(message: pb.Channel) -> list[Move]:
    return [
        Move(message.channel, each.release, each.pinned, each.at.ToMicroseconds() / 1e6, each.why)
        for each in message.moves
    ]


def channels_from_pb(found: Iterable[pb.Channel]) -> Mapping[str, list[Move]]:
    """By name, what each was given, oldest first."""
    return {message.channel: channel_from_pb(message) for message in found}
