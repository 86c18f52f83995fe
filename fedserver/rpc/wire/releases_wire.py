"""Convert releases, rollouts and channels to protobuf, and back."""

from collections.abc import Iterable, Mapping, Sequence

from fedserver.coordinator.status_types import ReleaseStatus, ReleaseSummary, RolloutStatus
from fedserver.rpc.wire.converter import STAMP, BothWays, Converter
from fedserver.rpc.wire.operator_wire import status_from_pb, status_to_pb
from fedserver.store.records import Move
from shoal.core.exchange._pb.fed.v1 import release_service_pb2 as pb
from shoal.core.exchange.wire.checks import for_people

PERCENT = BothWays(lambda share: 100.0 * share, lambda percent: percent / 100.0)
SUMMARY = Converter(ReleaseSummary, pb.Release, words="wrong")
ROLLOUT = Converter(
    RolloutStatus,
    pb.Rollout,
    names={"old": "old_release", "new": "new_release", "margin": "worse"},
    own={
        "share": PERCENT,
        "margin": PERCENT,
        "ended": BothWays(lambda ended: STAMP.to_pb(ended) if ended else None, STAMP.from_pb),
        "why": BothWays(for_people, str),
    },
)
WHOLE = Converter(
    ReleaseStatus,
    pb.GetReleaseResponse,
    names={"summary": "release"},
    own={"status": BothWays(status_to_pb, status_from_pb)},
    parts=(SUMMARY, ROLLOUT),
)


def channel_to_pb(channel: str, moves: Sequence[Move]) -> pb.Channel:
    found = pb.Channel(channel=channel)
    for move in moves:
        given = found.moves.add(release=move.release, pinned=move.pinned, why=move.why)
        given.at.CopyFrom(STAMP.to_pb(move.at))
    return found


def channel_from_pb(message: pb.Channel) -> list[Move]:
    return [
        Move(message.channel, each.release, each.pinned, STAMP.from_pb(each.at), each.why)
        for each in message.moves
    ]


def channels_from_pb(found: Iterable[pb.Channel]) -> Mapping[str, list[Move]]:
    """By name, what each was given, oldest first."""
    return {message.channel: channel_from_pb(message) for message in found}
