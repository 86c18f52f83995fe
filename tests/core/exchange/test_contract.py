"""The contract and the dataclasses say the same: each message of `proto/` has the fields of its class, and no
other, with the same types."""

import dataclasses
import typing
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from shoal.core.algorithm.discovery import discover
from shoal.core.exchange._pb.fed.v1 import payload_pb2
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.choosing.tuning import Tune
from shoal.core.exchange.choosing.vote import Vote
from shoal.core.exchange.encoding.messages import ENCODED
from shoal.core.exchange.messages import STANDARD, Message
from shoal.core.exchange.payload import TYPED_PARTS
from shoal.core.exchange.summing import SECURE
from shoal.core.exchange.wire.payload import CUSTOM
from shoal.core.types import Tensors

PLAIN = {bool: "bool", int: "int64", float: "double", str: "string"}
LISTS = {Tensors: "Weights", tuple[Tensors, ...]: "WeightsList", tuple[float, ...]: "Numbers"}
OWN = {
    message
    for card in discover().values()
    for asked in card.messages
    for message in (asked, getattr(asked, "reply", asked))
    if message.__module__.startswith("shoal.")
}
"""Messages of the algorithms of this distribution. Those of others travel as `Custom`."""
SENT: Mapping[str, type[Message]] = {
    cls.kind: cls for cls in (*STANDARD, *ENCODED, *SECURE, ChooseCompact, Vote, Tune, *OWN)
}
NAMES = {number: name.removeprefix("TYPE_").lower() for name, number in vars(FieldDescriptor).items()
         if name.startswith("TYPE_")}  # fmt: skip


def expected(cls: Any) -> dict[str, Any]:
    """What the contract has to say of the fields of a class: a type's name, or the fields of a record."""
    found: dict[str, Any] = {}
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        hint = hints[field.name]
        kinds = [each for each in typing.get_args(hint) if each is not NoneType]
        kind: Any = kinds[0] if isinstance(hint, UnionType) else hint
        if kind in PLAIN or kind in LISTS:
            found[field.name] = PLAIN.get(kind) or LISTS[kind]
        else:
            found[field.name] = kind.__name__ if kind in TYPED_PARTS else expected(kind)
    return found


def written(message: Any) -> dict[str, Any]:
    """What the contract says. An enum is a text of which all values are known."""
    found: dict[str, Any] = {}
    for field in message.fields:
        assert field.has_presence, f"{message.name}.{field.name}: absent and 0 are the same"
        inner = field.message_type
        if inner is None:
            found[field.name] = NAMES[field.type].replace("enum", "string")
        else:
            part = {each.__name__ for each in TYPED_PARTS} | {*LISTS.values()}
            found[field.name] = inner.name if inner.name in part else written(inner)
    return found


def test_every_message_has_one_of_its_own() -> None:
    arms = {field.name for field in payload_pb2.Payload.DESCRIPTOR.oneofs_by_name["message"].fields}
    assert arms == {CUSTOM, *SENT}


@pytest.mark.parametrize("kind", sorted(SENT))
def test_a_message_has_the_fields_of_its_class(kind: str) -> None:
    message = payload_pb2.Payload.DESCRIPTOR.fields_by_name[kind].message_type
    assert written(message) == expected(SENT[kind])


def test_a_difference_would_be_found() -> None:
    trained = payload_pb2.Payload.DESCRIPTOR.fields_by_name["trained"].message_type
    assert written(trained) != expected(SENT["evaluated"])
    assert written(trained)["held_out"] == {"accuracy": "double", "loss": "double", "examples": "int64"}
