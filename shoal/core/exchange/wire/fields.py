"""One converter for all messages of the contract: field by field, by the name and type that `proto/` gives.

So a dataclass and a message with the same fields are all that an exchange needs. Parts have converters of
their own, with their limits; any other message inside of a message is a flat record of settings.
"""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from google.protobuf.descriptor import EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from shoal.core.errors import BadPayload, near
from shoal.core.exchange._pb.fed.v1 import parts_pb2, privacy_pb2
from shoal.core.exchange.parts import (
    MAX_LATENTS,
    MAX_MODELS,
    Ballot,
    ClusterAssignment,
    Descriptor,
    Extension,
    LatentBounds,
    Letters,
    MixtureCounts,
    Prototypes,
    Scores,
)
from shoal.core.exchange.payload import Settings, Weights
from shoal.core.exchange.privacy_modes import mode_by_number, mode_of
from shoal.core.exchange.wire import parts, tensors
from shoal.core.exchange.wire.checks import limited, meaning, names_of, text, unicode, whole

M = TypeVar("M", bound=Message)


class Converter(NamedTuple):
    """Both ways between a value and what stands for it in a message. types: of the values. Both ways check
    limits, and raise BadPayload."""

    types: tuple[type, ...]
    to_pb: Callable[[Any], Any]
    from_pb: Callable[[Any], Any]


def fields_to_pb(values: Mapping[str, Any], cls: type[M], what: str) -> M:
    """A message of these values by field name. Raises BadPayload, naming the field that the message does not
    have, or in which this value cannot travel."""
    fields, found = _fields(cls.DESCRIPTOR), {}
    for name, value in values.items():
        if name not in fields:
            raise BadPayload(f"{what} has no field {name!r}", near(name, list(fields)))
        field = fields[name]
        try:
            if not isinstance(value, field.types) or (type(value) is bool and bool not in field.types):
                raise BadPayload(f"unexpected {type(value).__name__}")
            found[name] = field.to_pb(value)
        except BadPayload as fault:
            raise BadPayload(f"{what}, field {name!r}: {fault.message}", fault.hint) from None
    return cls(**found)


def fields_from_pb(pb: Message, what: str) -> dict[str, Any]:
    """The values of a message by field name; a field that is not set has none. Raises BadPayload, naming the
    field."""
    fields, found = _fields(pb.DESCRIPTOR), {}
    for field, value in pb.ListFields():
        try:
            found[field.name] = fields[field.name].from_pb(value)
        except BadPayload as fault:
            raise BadPayload(f"{what}, field {field.name!r}: {fault.message}", fault.hint) from None
    return found


def _weights_list_to_pb(sets: tuple[Weights, ...]) -> parts_pb2.WeightsList:
    return parts_pb2.WeightsList(weights=[tensors.weights_to_pb(each) for each in sets])


def _weights_list_from_pb(pb: parts_pb2.WeightsList) -> tuple[Weights, ...]:
    limited(len(pb.weights), MAX_MODELS, "tensor sets")
    return tuple(tensors.weights_from_pb(each) for each in pb.weights)


def _numbers_from_pb(pb: parts_pb2.Numbers) -> tuple[float, ...]:
    limited(len(pb.numbers), MAX_LATENTS, "numbers")
    return tuple(pb.numbers)


PARTS: Mapping[str, Converter] = {
    "Scalar": Converter((bool, int, float, str), tensors.scalar_to_pb, tensors.scalar_from_pb),
    "Weights": Converter((Weights,), tensors.weights_to_pb, tensors.weights_from_pb),
    "WeightsList": Converter((tuple,), _weights_list_to_pb, _weights_list_from_pb),
    "Numbers": Converter((tuple,), lambda found: parts_pb2.Numbers(numbers=found), _numbers_from_pb),
    "LatentBounds": Converter((LatentBounds,), parts.bounds_to_pb, parts.bounds_from_pb),
    "Descriptor": Converter((Descriptor,), parts.descriptor_to_pb, parts.descriptor_from_pb),
    "ClusterAssignment": Converter((ClusterAssignment,), parts.assignment_to_pb, parts.assignment_from_pb),
    "Scores": Converter((Scores,), parts.scores_to_pb, parts.scores_from_pb),
    "Prototypes": Converter((Prototypes,), parts.prototypes_to_pb, parts.prototypes_from_pb),
    "MixtureCounts": Converter((MixtureCounts,), parts.mixture_to_pb, parts.mixture_from_pb),
    "Ballot": Converter((Ballot,), parts.ballot_to_pb, parts.ballot_from_pb),
    "Letters": Converter((Letters,), parts.letters_to_pb, parts.letters_from_pb),
    "Extension": Converter((Extension,), parts.extension_to_pb, parts.extension_from_pb),
}
"""By the name of their message."""


PLAIN: Mapping[int, Converter] = {
    FieldDescriptor.CPPTYPE_BOOL: Converter((bool,), bool, bool),
    FieldDescriptor.CPPTYPE_INT64: Converter((int,), whole, int),
    FieldDescriptor.CPPTYPE_DOUBLE: Converter((float, int), float, float),
    FieldDescriptor.CPPTYPE_STRING: Converter((str,), unicode, lambda value: text(value, "a text")),
}


@cache
def _fields(message: Any) -> Mapping[str, Converter]:
    return {field.name: _converter(field) for field in message.fields}


def _converter(field: FieldDescriptor) -> Converter:
    if field.enum_type is not None:
        return _enum(field.enum_type)
    if field.message_type is None:
        return PLAIN[field.cpp_type]
    if field.message_type.name in PARTS:
        return PARTS[field.message_type.name]
    record = GetMessageClass(field.message_type)

    def to_pb(settings: Settings) -> Any:
        return fields_to_pb(settings.values, record, field.name)

    return Converter((Settings,), to_pb, lambda pb: Settings(fields_from_pb(pb, field.name)))


def _enum(enum: EnumDescriptor) -> Converter:
    """A value as a text: its name, see `names_of`; "" where it is not set."""
    if enum is privacy_pb2.PrivacyMode.DESCRIPTOR:  # modes are registered
        return Converter(
            (str,), lambda mode: mode_of(mode).number, lambda number: mode_by_number(number).name
        )
    names = {0: "", **names_of(enum)}
    numbers = {name: number for number, name in names.items()}

    def to_pb(value: str) -> int:
        if value not in numbers:
            raise BadPayload(f"{value!r} is not known", near(value, list(numbers)))
        return numbers[value]

    return Converter((str,), to_pb, lambda number: meaning(names, number, enum.name))
