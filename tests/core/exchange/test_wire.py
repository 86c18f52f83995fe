"""The wire: what the other side reads is what was sent. What it may not read: test_wire_hostile."""

import math
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf.message import Message as Protobuf
from hypothesis import example, given
from hypothesis import strategies as st

from shoal.core.errors import (
    BadPayload,
    DeviceFault,
    LearnerFault,
    OtherShape,
    Refused,
    ShoalError,
)
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import fault_pb2, payload_pb2, tensor_pb2
from shoal.core.exchange.link import (
    Failure,
    Hello,
    Idle,
    ObservedRun,
    Placement,
    Question,
    Receipt,
    Report,
    Task,
    Welcome,
)
from shoal.core.exchange.messages import STANDARD, Message
from shoal.core.exchange.parts import ClusterAssignment, Extension
from shoal.core.exchange.payload import BlobRef, Payload, Settings, Weights, decode, encode
from shoal.core.exchange.tensors import TensorSpec
from shoal.core.exchange.wire import tensors
from shoal.core.exchange.wire.checks import MAX_SECONDS
from shoal.core.types import Scalar
from tests.core.exchange import wire_values as values
from tests.core.exchange.wire_values import DECODERS, Blobs, same


def sent(pb: Protobuf) -> Any:
    """What the other side reads from the bytes of a message."""
    received = type(pb).FromString(pb.SerializeToString())
    value = DECODERS[type(pb)](received)
    assert received == pb  # decoding is not to change what it reads
    return value


# -- what comes back ------------------------------------------------------------------------------------


@pytest.mark.parametrize("cls", STANDARD, ids=lambda cls: cls.kind)
@given(data=st.data())
def test_every_message_comes_back(cls: type[Message], data: st.DataObject) -> None:
    message, blobs = data.draw(values.messages[cls]), Blobs()
    payload = encode(message, blobs.keep)
    received = sent(wire.payload_to_pb(payload))
    assert same(received, payload)
    assert same(decode(received, {cls.kind: cls}, blobs.load), message)


@pytest.mark.parametrize(
    "arm", [field.name for field in payload_pb2.Part.DESCRIPTOR.oneofs_by_name["part"].fields]
)
@given(data=st.data())
def test_every_part_comes_back(arm: str, data: st.DataObject) -> None:
    payload = Payload("k", {"p": data.draw(values.PARTS[arm])})
    pb = wire.payload_to_pb(payload)
    assert pb.custom.parts["p"].WhichOneof("part") == arm
    assert same(sent(pb), payload)


@given(values.payloads)
@example(Payload("k", {"none": (), "true": True, "one": 1, "nan": math.nan, "zero": -0.0, "text": ""}))
@example(Payload("k", {}))
def test_parts_together_come_back(payload: Payload) -> None:
    assert same(sent(wire.payload_to_pb(payload)), payload)


@given(values.scalars)
def test_scalars_come_back_with_their_type(value: Scalar) -> None:
    assert same(sent(wire.scalar_to_pb(value)), value)


@given(st.dictionaries(values.names, values.scalars, max_size=4))
def test_settings_come_back(settings: dict[str, Scalar]) -> None:
    pb = payload_pb2.Settings(values=wire.scalars_to_pb(settings, "settings"))
    assert same(wire.scalars_from_pb(pb.values, "settings"), settings)


@given(values.weights())
def test_weights_and_blobs_come_back(weights: Weights) -> None:
    assert sent(wire.weights_to_pb(weights)) == weights
    assert sent(wire.blob_to_pb(weights.blob)) == weights.blob


def test_a_peer_cannot_fill_the_memory_with_manifests() -> None:
    for known in (tensors._known_bytes, tensors._known_manifest):
        known.cache_clear()
    for count in (tensors.SHORT, tensors.SHORT + 1):
        for number in range(tensors.MANIFESTS + 1):
            specs = tuple(TensorSpec(f"{number}.{each}", "int8", (64,)) for each in range(count))
            weights = Weights(specs, BlobRef("ab" * 32, 64 * count))
            assert sent(wire.weights_to_pb(weights)) == weights
    for known in (tensors._known_bytes, tensors._known_manifest):
        assert known.cache_info().currsize == tensors.MANIFESTS
        assert known.cache_info().misses == tensors.MANIFESTS + 1


@given(values.hellos)
def test_hello_comes_back(hello: Hello) -> None:
    assert sent(wire.hello_to_pb(hello)) == hello


@given(values.welcomes)
def test_welcome_comes_back(welcome: Welcome) -> None:
    assert sent(wire.welcome_to_pb(welcome)) == welcome


@given(values.tasks | values.idles)
def test_tasks_and_idle_come_back(work: Task | Idle) -> None:
    assert same(sent(wire.next_to_pb(work)), work)


@given(values.reports)
def test_reports_come_back(report: Report) -> None:
    assert same(sent(wire.report_to_pb(report)), report)


@given(values.receipts)
def test_receipts_come_back(receipt: Receipt) -> None:
    assert sent(wire.receipt_to_pb(receipt)) == receipt


def test_a_lease_comes_back() -> None:
    assert sent(wire.lease_to_pb(wire.Lease("r", 1, 0))) == ("r", 1, 0)


@given(values.texts, st.none() | values.descriptors() | values.scores | values.prototypes() | values.wishes)
def test_requests_for_a_placement_come_back(run: str, evidence: Any) -> None:
    assert same(sent(wire.place_to_pb(run, evidence)), (run, evidence))


@given(values.answers)
@example(Placement("r", ClusterAssignment("c0", 9.5, abstained=True, reason="nothing is near"), None))
def test_placements_come_back(answer: Question | Placement) -> None:
    assert same(sent(wire.answer_to_pb(answer)), answer)


@given(values.observations)
def test_what_an_observer_is_told_comes_back(observation: tuple[ObservedRun, ...]) -> None:
    assert same(sent(wire.observation_to_pb(observation)), observation)


def test_chunks_come_back_and_only_the_expected_ones_are_taken() -> None:
    pb = wire.chunk_to_pb(7, b"some bytes")
    assert wire.chunk_from_pb(pb, 7) == b"some bytes"
    assert pb.SerializeToString().endswith(b"some bytes")  # the data stand last: see tensor.proto
    for other in (tensor_pb2.Chunk(offset=6, data=pb.data), tensor_pb2.Chunk(offset=7)):
        with pytest.raises(BadPayload):
            wire.chunk_from_pb(other, 7)
    with pytest.raises(BadPayload, match="1048577 bytes"):
        wire.chunk_from_pb(wire.chunk_to_pb(0, bytes(wire.MAX_CHUNK + 1)), 0)
    assert len(wire.chunk_from_pb(wire.chunk_to_pb(0, bytes(wire.MAX_CHUNK)), 0)) == wire.MAX_CHUNK


def test_faults_keep_their_class_and_unknown_codes_are_plain() -> None:
    error = sent(wire.fault_to_pb(Refused("no", "ask")))
    assert (type(error), error.message, error.hint) == (Refused, "no", "ask")
    assert type(sent(fault_pb2.Fault(code="device-fault"))) is DeviceFault
    shapes = OtherShape("w", (8, 5), (8, 4))  # whose constructor does not take its message
    assert type(sent(wire.fault_to_pb(shapes))) is OtherShape
    assert str(sent(wire.fault_to_pb(shapes))) == str(shapes)
    assert sent(wire.fault_to_pb(LearnerFault("m", details="of its author"))).details == ""
    assert type(sent(fault_pb2.Fault(code="of a newer peer", message="m"))) is ShoalError


@given(st.floats(0.0, MAX_SECONDS))
def test_seconds_are_kept_to_the_nanosecond(seconds: float) -> None:
    back = wire.seconds_from_pb(wire.seconds_to_pb(seconds), "a time")
    assert abs(back - seconds) <= 1e-9 + 1e-15 * seconds


def test_text_for_people_always_gets_through() -> None:
    details = "first line" + "x" * wire.MAX_TEXT + "\udc80 last line"
    failure = sent(wire.report_to_pb(Report("r", 1, 1, Failure("c", "m", details)))).result
    assert len(failure.details) == wire.MAX_TEXT
    assert failure.details.endswith("x? last line")


@pytest.mark.parametrize("value", [1 << 63, -(1 << 63) - 1, "\udc80", "x" * (wire.MAX_TEXT + 1)])
def test_a_value_that_cannot_travel_is_refused_by_the_sender(value: Scalar) -> None:
    with pytest.raises(BadPayload):
        wire.scalar_to_pb(value)


@pytest.mark.parametrize(
    "payload",
    [
        Payload("", {}),
        Payload("k" * 257, {}),
        Payload("k", {"": 1}),
        Payload("k", {str(i): i for i in range(65)}),
        Payload("k", {"p": Settings({str(i): i for i in range(65)})}),
        Payload("k", {"p": Settings({"": 1})}),
        Payload("k", {"p": Extension("", b"")}),
    ],
)
def test_a_payload_that_a_peer_would_refuse_is_refused_by_the_sender(payload: Payload) -> None:
    with pytest.raises(BadPayload):
        wire.payload_to_pb(payload)


@pytest.mark.parametrize("seconds", [-1e-9, math.inf, math.nan, 367 * 86400.0])
def test_a_time_that_cannot_travel_is_refused_by_the_sender(seconds: float) -> None:
    with pytest.raises(BadPayload, match="not a time"):
        wire.seconds_to_pb(seconds)


def test_the_wire_does_not_load_grpc() -> None:
    code = "import shoal.core.exchange.wire, sys; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
