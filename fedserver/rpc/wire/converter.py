"""Convert dataclasses to messages of the contract and back, field by field: both use the same names.

A new field of a record therefore needs its line in the dataclass and its line in `proto/`, and nothing here.
A time is a float of seconds, an enum a text or a Python Enum by its name in the contract, a digest the
hexadecimal digits of its bytes. A repeated message is a tuple, or a mapping whose key is its first field. A
message may be a tuple of its fields, in their order.

What a message does not have keeps the default of the dataclass. There are no limits: both ends are ours.
`shoal.core.exchange.wire` converts what devices send.

An operator needs a list most when something in it is wrong. So a row that cannot be encoded costs only
itself, and is shown as far as it can be.
"""

import logging
import math
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from functools import cached_property, partial
from math import floor
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from shoal.core.exchange import wire
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.wire.checks import NANOS, for_people, meaning

log = logging.getLogger("shoal.rpc")

MAX_SECONDS = 315_576_000_000
"""What a Duration can say, in both directions: 10,000 years."""

T = TypeVar("T")
M = TypeVar("M", bound=Message)


class BothWays(NamedTuple):
    """From a value to what stands for it in a message, and back."""

    to_pb: Callable[[Any], Any]
    from_pb: Callable[[Any], Any]


class _Field(NamedTuple):
    """An attribute, and its field in the message. present: the field can say that it is not set."""

    attribute: str
    name: str
    present: bool
    ways: BothWays


@dataclass(frozen=True)
class Converter(Generic[T, M]):
    """Converts values of the dataclass `kind` to messages of the class `message`, and back.

    names: of the fields in the message, by attribute, where they differ. left_out: the attributes that have a
    default and no field. own: how an attribute is converted that the rules do not cover. parts: converters of
    dataclasses within it, where the rules do not suffice. words: the text field that says why a row cannot be
    shown in full, or "" if there is none; with None such a row is an error wherever it is.
    """

    kind: type[T]
    message: type[M]
    names: Mapping[str, str] = field(default_factory=dict)
    left_out: Collection[str] = ()
    own: Mapping[str, BothWays] = field(default_factory=dict)
    parts: "tuple[Converter[Any, Any], ...]" = ()
    words: str | None = None

    def to_pb(self, value: T) -> M:
        return self.message(**self.given_to_pb(vars(value)))

    def from_pb(self, message: M) -> T:
        given = self.given_from_pb(message)
        absent = {name: make() for name, make in self._required.items() if name not in given}
        return self.kind(**given, **absent)

    def given_to_pb(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Some of the attributes, as fields by name. None is a field that is not set."""
        found = {**values}
        for attribute, name, _, ways in self._different:
            value = found.pop(attribute, None)
            if name and value is not None:
                found[name] = ways.to_pb(value)
        return found

    def given_from_pb(self, message: Message) -> dict[str, Any]:
        """The attributes that are set in a message, which may be of another class with such fields."""
        return {
            attribute: value if ways is AS_IT_IS else ways.from_pb(value)
            for attribute, name, present, ways in self._fields
            if (message.HasField(name) if present else getattr(message, name))
            for value in (getattr(message, name),)
        }

    def rows_to_pb(self, found: Iterable[T]) -> Iterator[M]:
        """Each of a list. A row that cannot be encoded is shown as far as it can be; see `words`."""
        for each in found:
            try:
                yield self.to_pb(each)
            except Exception as error:
                log.error("an operator cannot be shown all of %r", each, exc_info=error)
                yield self.bare(each, f"it cannot be shown: {error}")

    def bare(self, value: T, why: str) -> M:
        """As much of it as can be encoded. why: it cannot be shown in full."""
        found = self.message()
        for attribute, name, _, ways in self._fields:
            given = getattr(value, attribute)
            with suppress(Exception):  # only this field is left out
                legal = for_people(given) if isinstance(given, str) else given
                found.MergeFrom(self.message(**{name: None if legal is None else ways.to_pb(legal)}))
        if self.words:
            setattr(found, self.words, for_people(why))
        return found

    @cached_property
    def _fields(self) -> tuple[_Field, ...]:
        """The attributes that the message has."""
        return tuple(each for each in self._attributes if each.name)

    @cached_property
    def _different(self) -> tuple[_Field, ...]:
        """The attributes that the message does not have, or not as they are."""
        return tuple(
            each for each in self._attributes if each.name != each.attribute or each.ways is not AS_IT_IS
        )

    @cached_property
    def _attributes(self) -> tuple[_Field, ...]:
        hints, found = get_type_hints(self.kind), []
        for each in fields(self.kind):  # type: ignore[arg-type]
            if each.name in self.left_out:
                found.append(_Field(each.name, "", False, AS_IT_IS))
            else:
                place = self._place(each.name)
                ways = self.own.get(each.name) or self._ways(place, _without_none(hints[each.name]))
                found.append(_Field(each.name, place.name, place.has_presence, ways))
        return tuple(found)

    @cached_property
    def _required(self) -> Mapping[str, Callable[[], Any]]:
        """What makes the attributes that have no default, where a message does not have them."""
        hints, found = get_type_hints(self.kind), {}
        for each in fields(self.kind):  # type: ignore[arg-type]
            if each.default is MISSING and each.default_factory is MISSING:
                place = self._place(each.name)
                found[each.name] = _absent(place, hints[each.name])
        return found

    def _place(self, attribute: str) -> Any:
        return self.message.DESCRIPTOR.fields_by_name[self.names.get(attribute, attribute)]

    def _ways(self, place: FieldDescriptor, hint: Any) -> BothWays:
        if not place.is_repeated:
            return self._of_one(place, hint)
        if place.message_type is not None and place.message_type.GetOptions().map_entry:
            inner = self._of_one(place.message_type.fields_by_name["value"], get_args(hint)[1])
            return BothWays(
                lambda found: {key: inner.to_pb(value) for key, value in found.items()},
                lambda found: {key: inner.from_pb(found[key]) for key in sorted(found)},
            )
        if issubclass(get_origin(hint), Mapping):
            return self._of_mapping(place, get_args(hint)[1])
        inner = self._of_one(place, get_args(hint)[0])
        return BothWays(
            lambda found: [inner.to_pb(value) for value in found],
            lambda found: tuple(map(inner.from_pb, found)),
        )

    def _of_mapping(self, place: FieldDescriptor, hint: Any) -> BothWays:
        """Of a mapping as rows. They are the key and the value, or the key and the fields of the value."""
        row = _row(place)
        first, *rest = row.DESCRIPTOR.fields
        if len(rest) == 1:
            inner = self._ways(rest[0], hint)
            return BothWays(
                lambda found: [
                    row(**{first.name: key, rest[0].name: inner.to_pb(value)}) for key, value in found.items()
                ],
                lambda found: {
                    getattr(each, first.name): inner.from_pb(getattr(each, rest[0].name)) for each in found
                },
            )
        inner = self._of_one(place, hint)

        def to_pb(key: Any, value: Any) -> Message:
            found: Message = inner.to_pb(value)
            setattr(found, first.name, key)
            return found

        return BothWays(
            lambda found: [to_pb(key, value) for key, value in found.items()],
            lambda found: {getattr(each, first.name): inner.from_pb(each) for each in found},
        )

    def _of_one(self, place: FieldDescriptor, hint: Any) -> BothWays:
        if place.enum_type is not None:
            return _enum(place.enum_type, hint)
        if place.message_type is None:
            return HEX if place.type == FieldDescriptor.TYPE_BYTES and hint is str else AS_IT_IS
        if place.message_type.full_name in TIMES:
            return TIMES[place.message_type.full_name]
        if hint in LEAVES:
            return LEAVES[hint]
        part = self._part(place, hint)
        if part is None:
            return _tuple(place)
        if part.words is None:
            return BothWays(part.to_pb, part.from_pb)
        return BothWays(lambda value: next(part.rows_to_pb([value])), part.from_pb)

    def _part(self, place: FieldDescriptor, hint: Any) -> "Converter[Any, Any] | None":
        """That of a dataclass within this one."""
        if not is_dataclass(hint):
            return None
        for each in self.parts:
            if each.kind is hint:
                return each
        return Converter(hint, _row(place), parts=self.parts)  # type: ignore[arg-type]


def _stamp(clock: float) -> Timestamp:
    whole = floor(clock)
    more, nanos = divmod(round((clock - whole) * NANOS), NANOS)
    return Timestamp(seconds=whole + more, nanos=nanos)


def span_to_pb(seconds: float | None) -> Duration | None:
    """A time of any length, also below 0, to the nanosecond; None for what is no number."""
    if seconds is None or math.isnan(seconds):
        return None
    limited = min(max(seconds, -MAX_SECONDS), MAX_SECONDS)
    whole, nanos = divmod(round(abs(limited) * NANOS), NANOS)
    sign = -1 if limited < 0.0 else 1
    return Duration(seconds=sign * whole, nanos=sign * nanos)


def span_from_pb(duration: Duration) -> float:
    return (duration.seconds * NANOS + duration.nanos) / NANOS


def time_from_now(name: str) -> BothWays:
    """For `own`: what an operator asks for has the limits of `wire.seconds_to_pb`."""
    return BothWays(wire.seconds_to_pb, partial(wire.seconds_from_pb, what=name))


AS_IT_IS = BothWays(lambda value: value, lambda value: value)
HEX = BothWays(bytes.fromhex, bytes.hex)
STAMP = BothWays(_stamp, lambda stamp: stamp.seconds + stamp.nanos / NANOS)
TIMES = {
    "google.protobuf.Timestamp": STAMP,
    "google.protobuf.Duration": BothWays(span_to_pb, span_from_pb),
}
LEAVES: Mapping[Any, BothWays] = {
    Weights: BothWays(wire.weights_to_pb, wire.weights_from_pb),
    BlobRef: BothWays(wire.blob_to_pb, wire.blob_from_pb),
}
"""Types that the core converts."""


def _enum(enum: EnumDescriptor, hint: Any) -> BothWays:
    """A text, which is "unknown" if the contract does not have it, or a member of an Enum."""
    prefix = enum.values[0].name.removesuffix("UNSPECIFIED")
    if issubclass(hint, Enum):
        members = {member: enum.values_by_name[f"{prefix}{member.name}"].number for member in hint}
        back = {number: member for member, number in members.items()}
        return BothWays(members.__getitem__, lambda number: meaning(back, number, enum.name))
    numbers = {each.name.removeprefix(prefix).lower(): each.number for each in enum.values if each.number}
    texts = {number: text for text, number in numbers.items()}
    return BothWays(numbers.__getitem__, lambda number: texts.get(number, "unknown"))


def _row(place: FieldDescriptor) -> Any:
    """The class of a message within a message."""
    return GetMessageClass(place.message_type)  # type: ignore[arg-type]


def _tuple(place: FieldDescriptor) -> BothWays:
    row = _row(place)
    names = [each.name for each in row.DESCRIPTOR.fields]
    return BothWays(
        lambda found: row(**dict(zip(names, found, strict=True))),
        lambda found: tuple(getattr(found, name) for name in names),
    )


def _absent(place: FieldDescriptor, hint: Any) -> Callable[[], Any]:
    """What makes the value of a field that is not set."""
    if place.is_repeated:
        return dict if issubclass(get_origin(hint), Mapping) else tuple
    if place.enum_type is not None:
        return partial(_enum(place.enum_type, hint).from_pb, 0)
    return lambda: None if place.has_presence else place.default_value


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        return next(each for each in get_args(hint) if each is not types.NoneType)
    return hint
