"""Convert tokens, devices and operators to protobuf, and back."""

from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TypeVar

from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp

from fedserver.authority.answers import Ended, IssuedOperator, Known, Withdrawn
from fedserver.coordinator.status_types import Withdrawal, WithdrawnRelease, WithdrawnRun
from fedserver.rpc.wire.rows import shown
from fedserver.store.identities.records import (
    DeviceStanding,
    Operator,
    Registered,
    Successor,
    Terms,
    Token,
    TokenStanding,
)
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import authority_service_pb2 as pb
from shoal.core.exchange.wire.checks import for_people
from shoal.core.exchange.wire.identity import OPERATOR_ROLE_OF, OPERATOR_ROLES, ROLE_OF, ROLES

T = TypeVar("T")
TOKENS = {each: pb.TokenStanding.Value(f"TOKEN_STANDING_{each.name}") for each in TokenStanding}
DEVICES = {each: pb.DeviceStanding.Value(f"DEVICE_STANDING_{each.name}") for each in DeviceStanding}
TOKEN_OF, DEVICE_OF = {TOKENS[each]: each for each in TOKENS}, {DEVICES[each]: each for each in DEVICES}


def terms_to_pb(terms: Terms) -> pb.CreateTokenRequest:
    return pb.CreateTokenRequest(
        role=ROLES[terms.role],
        uses=terms.uses,
        ttl=wire.seconds_to_pb(terms.ttl),
        labels=terms.labels,
        pattern=terms.pattern,
        hold=terms.hold,
    )


def terms_from_pb(request: pb.CreateTokenRequest) -> Terms:
    default = Terms()
    return Terms(
        ROLE_OF.get(request.role, default.role),
        request.uses if request.HasField("uses") else default.uses,
        wire.seconds_from_pb(request.ttl, "ttl") if request.HasField("ttl") else default.ttl,
        dict(request.labels),
        request.pattern or default.pattern,
        request.hold,
    )


def token_to_pb(token: Token) -> pb.Token:
    return pb.Token(
        token=token.token,
        role=ROLES[token.role],
        uses=token.uses,
        used=token.used,
        created=_stamp(token.created),
        expires=_stamp(token.expires),
        labels=token.labels,
        pattern=token.pattern,
        hold=token.hold,
        wrong=token.wrong,
        standing=TOKENS[token.standing],
    )


def token_from_pb(token: pb.Token) -> Token:
    return Token(
        token.token,
        ROLE_OF[token.role],
        token.uses,
        token.used,
        _clock(token.created),
        _clock(token.expires),
        dict(token.labels),
        token.pattern,
        token.hold,
        token.wrong,
        TOKEN_OF[token.standing],
    )


def device_to_pb(known: Known) -> pb.Device:
    device = known.device
    return pb.Device(
        device=device.device,
        display=device.display,
        role=ROLES[device.role],
        labels=device.labels,
        standing=DEVICES[device.standing],
        created=_stamp(device.created),
        fingerprint=bytes.fromhex(device.spki),
        token=device.token,
        successor=_successor_to_pb(device.successor),
        last_seen=_stamp(known.last_seen),
    )


def devices_to_pb(found: Iterable[Known]) -> Iterator[pb.Device]:
    """Those of a list."""
    return shown(found, device_to_pb, _bare_device)


def _bare_device(known: Known, why: str) -> pb.Device:
    device = known.device
    return pb.Device(
        device=for_people(device.device),
        display=for_people(why),
        role=ROLES[device.role],
        standing=DEVICES[device.standing],
    )


def device_from_pb(device: pb.Device) -> Known:
    registered = Registered(
        device.device,
        device.display,
        ROLE_OF[device.role],
        dict(device.labels),
        DEVICE_OF[device.standing],
        _clock(device.created),
        device.fingerprint.hex(),
        device.token,
        _successor_from_pb(device.successor) if device.HasField("successor") else None,
    )
    return Known(registered, _optional(device, "last_seen", device.last_seen))


def _successor_to_pb(found: Successor | None) -> pb.Successor | None:
    if found is None:
        return None
    return pb.Successor(
        fingerprint=bytes.fromhex(found.spki),
        role=ROLES[found.role],
        labels=found.labels,
        token=found.token,
        created=_stamp(found.created),
    )


def _successor_from_pb(found: pb.Successor) -> Successor:
    role, created = ROLE_OF[found.role], _clock(found.created)
    return Successor(found.fingerprint.hex(), role, dict(found.labels), found.token, created)


def ended_to_pb(ended: Ended) -> pb.RevokeDeviceResponse:
    counted = [pb.CountedUpdate(run=run, round=number) for run, number in ended.counted]
    return pb.RevokeDeviceResponse(device=device_to_pb(ended.known), cut=ended.cut, counted=counted)


def ended_from_pb(response: pb.RevokeDeviceResponse) -> Ended:
    counted = tuple((each.run, each.round) for each in response.counted)
    return Ended(device_from_pb(response.device), response.cut, counted)


def withdrawn_to_pb(found: Withdrawn) -> pb.WithdrawDeviceResponse:
    return pb.WithdrawDeviceResponse(
        device=device_to_pb(found.known),
        cut=found.cut,
        runs=[pb.WithdrawnRun(**vars(each)) for each in found.found.runs],
        releases=[pb.WithdrawnRelease(**vars(each)) for each in found.found.releases],
    )


def withdrawn_from_pb(response: pb.WithdrawDeviceResponse) -> Withdrawn:
    known = device_from_pb(response.device)
    runs = tuple(_row(WithdrawnRun, each) for each in response.runs)
    releases = tuple(_row(WithdrawnRelease, each) for each in response.releases)
    return Withdrawn(known, response.cut, Withdrawal(known.device.device, runs, releases))


def _row(kind: type[T], message: Message) -> T:
    """A dataclass whose fields have the names of the message's."""
    values = ((each.name, getattr(message, each.name)) for each in fields(kind))  # type: ignore[arg-type]
    plain = (int, float, str)
    return kind(**{name: value if isinstance(value, plain) else tuple(value) for name, value in values})


def operator_to_pb(operator: Operator) -> pb.Operator:
    return pb.Operator(
        operator=operator.name,
        role=OPERATOR_ROLES[operator.role],
        fingerprint=bytes.fromhex(operator.spki),
        created=_stamp(operator.created),
        revoked=operator.revoked,
    )


def operator_from_pb(found: pb.Operator) -> Operator:
    return Operator(
        found.operator,
        OPERATOR_ROLE_OF[found.role],
        found.fingerprint.hex(),
        _clock(found.created),
        found.revoked,
    )


def issued_to_pb(issued: IssuedOperator) -> pb.AddOperatorResponse:
    return pb.AddOperatorResponse(
        operator=operator_to_pb(issued.operator),
        certificate=issued.certificate,
        authority=issued.authority,
        address=issued.address,
    )


def issued_from_pb(response: pb.AddOperatorResponse) -> IssuedOperator:
    operator = operator_from_pb(response.operator)
    return IssuedOperator(operator, response.certificate, response.authority, response.address)


def _stamp(clock: float | None) -> Timestamp | None:
    if clock is None:
        return None
    stamp = Timestamp()
    stamp.FromNanoseconds(round(clock * 1e9))
    return stamp


def _clock(stamp: Timestamp) -> float:
    return stamp.ToNanoseconds() / 1e9


def _optional(message: Message, field: str, stamp: Timestamp) -> float | None:
    return _clock(stamp) if message.HasField(field) else None
