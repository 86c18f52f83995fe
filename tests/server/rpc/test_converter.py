"""A record travels whole: a field that its message lacks, or whose way back is another one, is found here."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from fedserver.coordinator.status_types import ReleaseStatus, RunStatus, ServerStatus
from fedserver.rpc.wire import authority_wire, operator_wire, releases_wire
from fedserver.rpc.wire.converter import STAMP, Converter, _without_none
from fedserver.store.records import RunSpec
from shoal.core.exchange._pb.fed.v1 import operator_service_pb2 as pb
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.tensors import TensorSpec
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.report import Statement

GIVEN: Mapping[Any, Any] = {
    Weights: Weights((TensorSpec("w", "float32", (2,)),), BlobRef("ab" * 32, 8)),
    Statement: Statement(Cost(0.5), 1e-5, 2, ("bounds",), trained=False),
    Any: 1.5,
}
TEXTS = {"stage": "open", "presence": "working", "evidence": "vote", "outcome": "nearest"}
"""Those that the contract knows."""
RECORDS = [
    found
    for module in (operator_wire, authority_wire, releases_wire)
    for found in vars(module).values()
    if isinstance(found, Converter) and found.kind not in (RunStatus, RunSpec, ReleaseStatus)
]


def filled(kind: type) -> Any:
    """One in which nothing is as it is by default."""
    hints = get_type_hints(kind)
    return kind(**{each.name: value(hints[each.name], each.name) for each in fields(kind)})


def value(hint: Any, name: str) -> Any:
    hint = _without_none(hint)
    if hint in GIVEN:
        return GIVEN[hint]
    if get_origin(hint) is tuple:
        return tuple(value(each, name) for each in get_args(hint) if each is not ...)
    if get_origin(hint) is not None:
        key, inner = get_args(hint)
        return {value(key, name): value(inner, name)}
    if is_dataclass(hint):
        return filled(hint)  # type: ignore[arg-type]
    if issubclass(hint, Enum):
        return list(hint)[-1]
    return {str: TEXTS.get(name, "ab"), bool: True, bytes: b"pem"}.get(hint) or hint(7)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.kind.__name__)
def test_a_record_travels_whole(record: Converter[Any, Any]) -> None:
    sent = filled(record.kind)
    found = record.message.FromString(record.to_pb(sent).SerializeToString())
    assert record.from_pb(found) == sent
    if record.kind is not ServerStatus:  # whose lists are empty without a default
        required = [each for each in fields(record.kind) if each.default is each.default_factory is MISSING]
        bare = record.kind(**{each.name: getattr(sent, each.name) for each in required})
        assert record.from_pb(record.to_pb(bare)) == bare


def test_the_status_of_a_run_travels_whole() -> None:
    sent = replace(filled(RunStatus), spec=replace(filled(RunSpec), graph="ab" * 32))
    found = pb.RunStatus.FromString(operator_wire.status_to_pb(sent).SerializeToString())
    assert operator_wire.status_from_pb(found) == sent


def test_a_message_has_the_defaults_of_the_record_for_what_it_lacks() -> None:
    assert operator_wire.spec_from_pb(pb.StartRunRequest(name="a", algorithm="flux")) == RunSpec("a", "flux")


@pytest.mark.parametrize("clock", [0.0, 1.8e9, 1764178871.1234567, 1764178871.9999998, -0.25])
def test_a_time_is_the_same_after_its_way(clock: float) -> None:
    stamp = Timestamp.FromString(STAMP.to_pb(clock).SerializeToString())
    assert STAMP.from_pb(stamp) == clock
    assert 0 <= stamp.nanos < 1_000_000_000
