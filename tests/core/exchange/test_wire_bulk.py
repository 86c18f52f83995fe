"""Messages are counted before protobuf makes objects of them."""

import tracemalloc

import pytest
from hypothesis import given

from shoal.core.errors import BadPayload
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import (
    device_service_pb2,
    messages_pb2,
    parts_pb2,
    payload_pb2,
    tensor_pb2,
)
from shoal.core.exchange.wire import bulk
from tests.core.exchange import wire_values as values

SPECS = [tensor_pb2.TensorSpec(name=f"layer.{at}", dtype=1, shape=[3, 4, 5]) for at in range(4096)]


def test_the_largest_set_of_tensors_passes() -> None:
    weights = parts_pb2.Weights(manifest=SPECS, blob=tensor_pb2.BlobRef(sha256=bytes(32), size=1))
    data = payload_pb2.Payload(train=messages_pb2.Train(model=weights)).SerializeToString()
    assert len(data) > bulk.SMALL
    assert wire.message_from_bytes(payload_pb2.Payload, data).train.model == weights


def test_long_lists_of_numbers_pass() -> None:
    numbers = parts_pb2.Numbers(numbers=[0.5] * 131072)
    data = payload_pb2.Payload(trained=messages_pb2.Trained(curve=numbers)).SerializeToString()
    assert wire.message_from_bytes(payload_pb2.Payload, data).trained.curve == numbers


def test_a_chunk_passes() -> None:
    data = wire.chunk_to_pb(0, bytes(wire.MAX_CHUNK)).SerializeToString()
    assert len(wire.message_from_bytes(tensor_pb2.Chunk, data).data) == wire.MAX_CHUNK


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"\x22\x00" * (bulk.MAX_FIELDS + 1), "more than 65536 fields"),
        (b"\xf8\x3f\x01" * (bulk.MAX_FIELDS + 1), "more than 65536 fields"),
        (b"\x0b\x0c" * bulk.SMALL, "a group"),
        (b"\x22" + b"\xff" * (2 * bulk.SMALL), "more than ten bytes"),
        (b"\x0a\x01x" * bulk.SMALL + b"\x22", "are no HelloRequest"),
        (b"\x0a\x80\x80\x80\x80\x01" + bytes(2 * bulk.SMALL), "are no HelloRequest"),
    ],
)
def test_what_is_too_much_or_makes_no_sense(data: bytes, reason: str) -> None:
    with pytest.raises(BadPayload, match=reason):
        wire.message_from_bytes(device_service_pb2.HelloRequest, data)


def test_two_million_objects_are_refused_for_the_price_of_their_bytes() -> None:
    data = b"\x0a\x00" * 2_000_000
    tracemalloc.start()
    try:
        with pytest.raises(BadPayload, match="fields"):
            wire.message_from_bytes(parts_pb2.Weights, data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@given(values.payloads.map(wire.payload_to_pb))
def test_whatever_protobuf_writes_can_be_counted(payload: payload_pb2.Payload) -> None:
    data = payload.SerializeToString()
    left = bulk._count(data, 0, len(data), payload.DESCRIPTOR, 1 << 30)  # type: ignore[arg-type]
    assert 0 < (1 << 30) - left <= len(data)
