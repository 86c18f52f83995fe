"""Checks that every decoder makes: limits first, then meaning. All of them raise BadPayload."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from google.protobuf.descriptor import EnumDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message

from shoal.core.errors import BadPayload
from shoal.core.exchange.parts import FloatArray, Integers
from shoal.core.exchange.tensors import MAX_NAME

MAX_TEXT = 1 << 16
"""Characters in a text for people, or in a text value."""
MAX_ENTRIES = 64
"""Parts of a payload, settings of a record, blobs inside of a message."""
MAX_SECONDS = 366 * 86400
NANOS = 1_000_000_000
SHORTEST_WAIT, LONGEST_WAIT = 1.0, 3600.0
"""Seconds: the nearest and the furthest end of a window in which a device comes again, whatever its server
says. So no server makes it call without a pause, or stay away until someone starts it again."""

Key = TypeVar("Key")


def refuse_unknown(message: Message, what: str) -> None:
    """Refuse a message in which, at any depth, there is a field that this version does not know.

    Compares sizes instead of listing the fields: a list of a million tiny ones would cost 200 MB.
    """
    known = type(message)()
    known.CopyFrom(message)
    known.DiscardUnknownFields()
    if known.ByteSize() != message.ByteSize():
        raise BadPayload(f"{what} has a field that is not known here", "update the older of the two sides")


def present(message: Message, field: str, what: str) -> None:
    """Refuse a message that lacks a field or an arm of a oneof."""
    if not message.HasField(field):
        raise BadPayload(f"{what}: {field} is not set")


def limited(count: int, most: int, what: str) -> int:
    if count > most:
        raise BadPayload(f"{what}: {count} of them, at most {most} are taken")
    return count


def whole(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise BadPayload(f"the whole number {value} does not fit in 64 bits")
    return value


def unicode(value: str) -> str:
    """A text that can be sent."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise BadPayload(f"the text {value[:40]!r} is not Unicode") from None
    return text(value, "a text")


def text(value: str, what: str, most: int = MAX_TEXT) -> str:
    if len(value) > most:
        raise BadPayload(f"{what}: {len(value)} characters, at most {most} are taken")
    return value


def name(value: str, what: str) -> str:
    """Check an identifier: a text of 1 to 256 characters."""
    if not value:
        raise BadPayload(f"{what} is not set")
    return text(value, what, MAX_NAME)


def at_least_one(value: int, what: str) -> int:
    if value < 1:
        raise BadPayload(f"{what} is {value}; it counts from 1")
    return value


def for_people(value: str) -> str:
    """Make a text that is always legal: its end if it is too long, with odd characters replaced."""
    return value[-MAX_TEXT:].encode("utf-8", "replace").decode("utf-8")


def names_of(enum: EnumDescriptor) -> dict[int, str]:
    """The values of an enum but for 0, which means "not set": by number, their names in the contract in lower
    case, without what all of them begin with."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    return {each.number: each.name.removeprefix(prefix).lower() for each in enum.values if each.number}


def meaning(table: Mapping[int, Key], number: int, what: str) -> Key:
    """Look up an enum's number. `table` lacks 0, which means "not set"."""
    if number not in table:
        raise BadPayload(f"{what}: value {number} is not known" if number else f"{what} is not set")
    return table[number]


def vector(values: Sequence[float], most: int, what: str) -> FloatArray:
    """A packed array, (n,) float64; counted before it is copied."""
    return np.fromiter(values, np.float64, count=limited(len(values), most, what))


def matrix(values: Sequence[float], rows: int, most_rows: int, most: int, what: str) -> FloatArray:
    """A packed array of `rows` rows, (rows, n) float64, n at least 1."""
    _divides(values, rows, most_rows, what)
    return vector(values, most, what).reshape(rows, -1)


def integers(values: Sequence[int], rows: int, most_rows: int, most: int, what: str) -> Integers:
    """A packed array of `rows` rows of whole numbers, (rows, n) int64, n at least 1."""
    _divides(values, rows, most_rows, what)
    return np.fromiter(values, np.int64, count=limited(len(values), most, what)).reshape(rows, -1)


def _divides(values: Sequence[float], rows: int, most_rows: int, what: str) -> None:
    limited(at_least_one(rows, f"{what}, rows"), most_rows, f"{what}, rows")
    if not values or len(values) % rows:
        raise BadPayload(f"{what}: {len(values)} numbers do not make {rows} rows")


def seconds_to_pb(seconds: float) -> Duration:
    """To the nanosecond; 0 to 366 days."""
    if not 0.0 <= seconds <= MAX_SECONDS:
        raise BadPayload(f"{seconds} s is not a time from now", "0 to 366 days")
    whole, nanos = divmod(round(seconds * NANOS), NANOS)
    return Duration(seconds=whole, nanos=nanos)


def window_from_pb(pb: Any, what: str) -> tuple[float, float]:
    """The fields `earliest` and `latest` of a message; `latest` is 1 s at least, and neither is above an
    hour."""
    present(pb, "earliest", what)
    present(pb, "latest", what)
    earliest = seconds_from_pb(pb.earliest, f"{what}: earliest")
    latest = seconds_from_pb(pb.latest, f"{what}: latest")
    if latest < earliest:
        raise BadPayload(f"{what}: latest ({latest} s) is before earliest ({earliest} s)")
    latest = between(latest, SHORTEST_WAIT, LONGEST_WAIT)
    return min(earliest, latest), latest


def between(seconds: float, least: float, most: float) -> float:
    """A time that the other side has chosen, within what this side goes along with."""
    return min(max(seconds, least), most)


def seconds_from_pb(duration: Duration, what: str) -> float:
    if not (0 <= duration.seconds <= MAX_SECONDS and 0 <= duration.nanos < NANOS):
        raise BadPayload(f"{what}: it is not a time from now", "0 to 366 days")
    return (duration.seconds * NANOS + duration.nanos) / NANOS
