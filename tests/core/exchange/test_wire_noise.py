"""Bytes from nowhere: whatever a peer sends is a value, DecodeError or BadPayload, and nothing else."""

from contextlib import suppress

import pytest
from google.protobuf.message import DecodeError
from google.protobuf.message import Message as Protobuf
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.core.errors import BadPayload
from shoal.core.exchange import wire
from tests.core.exchange import wire_values as values
from tests.core.exchange.wire_values import DECODERS


def survive(cls: type[Protobuf], data: bytes) -> None:
    """Read bytes as a peer would have us do: a value, DecodeError or BadPayload, and nothing else."""
    try:
        message = cls.FromString(data)
    except DecodeError:
        return
    with suppress(BadPayload):
        DECODERS[cls](message)


@pytest.mark.parametrize("cls", DECODERS, ids=lambda cls: cls.DESCRIPTOR.name)
@given(data=st.binary(max_size=200))
@settings(max_examples=50)
def test_random_bytes(cls: type[Protobuf], data: bytes) -> None:
    survive(cls, data)


valid = st.one_of(
    values.payloads.map(wire.payload_to_pb),
    values.tasks.map(wire.next_to_pb),
    values.reports.map(wire.report_to_pb),
    values.hellos.map(wire.hello_to_pb),
    values.welcomes.map(wire.welcome_to_pb),
    values.answers.map(wire.answer_to_pb),
    values.observations.map(wire.observation_to_pb),
    values.descriptors().map(lambda found: wire.place_to_pb("r", found)),
)


@given(valid, st.data())
@settings(max_examples=150)
def test_bytes_that_were_changed_on_their_way(message: Protobuf, data: st.DataObject) -> None:
    changed = bytearray(message.SerializeToString())
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(changed)))
        how = data.draw(st.sampled_from(["flip", "insert", "delete", "truncate", "repeat"]))
        if how == "flip" and place < len(changed):
            changed[place] ^= 1 << data.draw(st.integers(0, 7))
        elif how == "insert":
            changed[place:place] = data.draw(st.binary(min_size=1, max_size=4))
        elif how == "delete":
            del changed[place : place + data.draw(st.integers(1, 8))]
        elif how == "truncate":
            del changed[place:]
        else:
            changed[place:place] = changed[: data.draw(st.integers(0, 20))]
    survive(type(message), bytes(changed))
