"""Parse a peer's bytes into a protobuf message, after checking that the message fits into memory.

protobuf makes an object of some fifty bytes or more for each message inside a message, and a peer needs two
bytes to ask for one: the 4 MiB that gRPC lets through would become hundreds. So fields are counted first, on
the bytes, and only in messages that are large enough for it to matter.
"""

from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from shoal.core.errors import BadPayload

M = TypeVar("M", bound=Message)

MAX_FIELDS = 1 << 16
"""Fields of one message with all that is in it, a number in a packed list of whole numbers counting as one.
Four times what the largest set of tensors needs."""
SMALL = 1 << 16
"""Bytes of a message that is never counted."""


def message_from_bytes(cls: type[M], data: bytes) -> M:
    """Raises BadPayload for bytes that are no such message, and for one with too many fields."""
    try:
        if len(data) > SMALL:
            _count(data, 0, len(data), cls.DESCRIPTOR, MAX_FIELDS)  # type: ignore[arg-type]
        return cls.FromString(data)
    except (DecodeError, IndexError) as error:
        raise BadPayload(f"these bytes are no {cls.DESCRIPTOR.name}: {error}") from None


def _count(data: bytes, at: int, end: int, message: Descriptor, left: int) -> int:
    """Of `left` fields, how many may still come after those of the message in data[at:end].

    Raises IndexError where the bytes end within a field; whether they make sense is for protobuf to say.
    """
    fields = message.fields_by_number
    while at < end:
        key, at = varint(data, at)
        left -= 1
        kind, field = key & 7, fields.get(key >> 3)
        if kind == 0:
            _, at = varint(data, at)
        elif kind in (1, 5):
            at += 8 if kind == 1 else 4
        elif kind == 2:
            size, at = varint(data, at)
            if field is not None and field.message_type is not None:
                left = _count(data, at, min(at + size, end), field.message_type, left)
            elif field is not None and field.is_repeated and field.cpp_type not in _WIDE:
                left -= size
            at += size
        else:
            raise BadPayload(f"{message.name} has a group, which the contract has none of")
        if left < 0:
            raise BadPayload(f"a message has more than {MAX_FIELDS} fields", "send less in one message")
    return left


_WIDE = (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_STRING)
"""Of these a list takes no more memory than bytes on the wire, or counts field by field."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A whole number and where the next byte is. One without end is cut at ten bytes, as protobuf has it."""
    value = data[at]
    at += 1
    if value < 128:
        return value, at
    value &= 127
    for shift in range(7, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise BadPayload("a number on the wire has more than ten bytes")
