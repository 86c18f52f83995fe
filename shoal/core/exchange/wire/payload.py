"""Payloads: a message of the contract under its own name, and any other as named parts."""

from typing import Any

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import payload_pb2 as pb2
from shoal.core.exchange.payload import Part, Payload, Settings, Weights
from shoal.core.exchange.wire import tensors
from shoal.core.exchange.wire.checks import MAX_ENTRIES, limited, name, refuse_unknown
from shoal.core.exchange.wire.fields import PARTS, Converter, fields_from_pb, fields_to_pb

CUSTOM = "custom"
KINDS: dict[str, type[Any]] = {
    field.name: type(getattr(pb2.Payload(), field.name))
    for field in pb2.Payload.DESCRIPTOR.fields
    if field.name != CUSTOM
}
"""The kinds that have a message of their own in the contract, and its class."""


def payload_to_pb(payload: Payload) -> pb2.Payload:
    """Raises BadPayload for what a peer would refuse, such as a field that the message does not have."""
    kind = payload.kind
    if kind in KINDS:
        return pb2.Payload(**{kind: fields_to_pb(payload.parts, KINDS[kind], f"message {kind!r}")})
    limited(len(payload.parts), MAX_ENTRIES, "a payload's parts")
    parts = {name(key, "a part's name"): _part_to_pb(part) for key, part in payload.parts.items()}
    return pb2.Payload(custom=pb2.Custom(kind=name(kind, "a payload's kind"), parts=parts))


def payload_from_pb(pb: pb2.Payload) -> Payload:
    kind = pb.WhichOneof("message")
    refuse_unknown(pb, f"message {kind!r}" if kind else "a payload")
    if kind is None:
        raise BadPayload("a payload: message is not set")
    if kind == CUSTOM:
        return _custom_from_pb(pb.custom)
    return Payload(kind, fields_from_pb(getattr(pb, kind), f"message {kind!r}"))


def _custom_from_pb(pb: pb2.Custom) -> Payload:
    kind = name(pb.kind, "a payload's kind")
    if kind in KINDS:
        raise BadPayload(f"message {kind!r} came as a custom one", "send it as the contract has it")
    limited(len(pb.parts), MAX_ENTRIES, "a payload's parts")
    found: dict[str, Part] = {}
    for key, part in pb.parts.items():
        name(key, f"message {kind!r}, a field's name")
        try:
            found[key] = _part_from_pb(part)
        except BadPayload as fault:
            raise BadPayload(f"message {kind!r}, field {key!r}: {fault.message}", fault.hint) from None
    return Payload(kind, found)


def _settings_to_pb(settings: Settings) -> pb2.Settings:
    return pb2.Settings(values=tensors.scalars_to_pb(settings.values, "settings"))


def _settings_from_pb(pb: pb2.Settings) -> Settings:
    return Settings(tensors.scalars_from_pb(pb.values, "settings"))


_SETTINGS = Converter((Settings,), _settings_to_pb, _settings_from_pb)
_ARMS = {
    field.name: PARTS.get(type(getattr(pb2.Part(), field.name)).DESCRIPTOR.name, _SETTINGS)
    for field in pb2.Part.DESCRIPTOR.fields
}
_BY_TYPE = {kind: arm for arm, converter in _ARMS.items() for kind in converter.types}


def _part_to_pb(part: Part) -> pb2.Part:
    arm = _BY_TYPE[type(part)]
    if isinstance(part, tuple):  # () goes as no numbers, and is taken for no tensor sets as well
        arm = "weights_list" if any(isinstance(item, Weights) for item in part) else "numbers"
    return pb2.Part(**{arm: _ARMS[arm].to_pb(part)})


def _part_from_pb(pb: pb2.Part) -> Part:
    arm = pb.WhichOneof("part")
    if arm is None:
        raise BadPayload("part is not set")
    found: Part = _ARMS[arm].from_pb(getattr(pb, arm))
    return found
