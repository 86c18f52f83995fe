"""Convert what newcomers were answered to protobuf, and back."""

from collections.abc import Iterable, Iterator

from fedserver.rpc.wire.rows import shown
from fedserver.store.journal.placements import EVIDENCE, OUTCOMES, PlacementRecord
from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as pb
from shoal.core.exchange.wire.checks import for_people

_PLAIN = ("run", "device", "cluster", "runner_up", "reason", "progress", "times", "number")


def placement_to_pb(found: PlacementRecord) -> pb.PlacementRecord:
    message = pb.PlacementRecord(
        evidence=EVIDENCE.index(found.evidence) + 1,  # type: ignore[arg-type]
        outcome=OUTCOMES.index(found.outcome) + 1,  # type: ignore[arg-type]
        confidence=found.confidence,
        models=found.models,
        **{name: getattr(found, name) for name in _PLAIN},
    )
    message.since.FromMicroseconds(round(found.since * 1e6))
    message.at.FromMicroseconds(round(found.at * 1e6))
    return message


def placements_to_pb(found: Iterable[PlacementRecord]) -> Iterator[pb.PlacementRecord]:
    """Those of a list."""
    return shown(found, placement_to_pb, _bare)


def _bare(found: PlacementRecord, why: str) -> pb.PlacementRecord:
    return pb.PlacementRecord(
        run=for_people(found.run),
        device=for_people(found.device),
        number=found.number,
        evidence=EVIDENCE.index(found.evidence) + 1,  # type: ignore[arg-type]
        outcome=OUTCOMES.index(found.outcome) + 1,  # type: ignore[arg-type]
        reason=for_people(why),
    )


def placement_from_pb(message: pb.PlacementRecord) -> PlacementRecord:
    return PlacementRecord(
        evidence=EVIDENCE[message.evidence - 1],
        outcome=OUTCOMES[message.outcome - 1],
        confidence=message.confidence if message.HasField("confidence") else None,
        models=tuple(message.models),
        since=message.since.ToMicroseconds() / 1e6,
        at=message.at.ToMicroseconds() / 1e6,
        **{name: getattr(message, name) for name in _PLAIN},
    )
