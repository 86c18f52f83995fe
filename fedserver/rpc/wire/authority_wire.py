"""Convert tokens, devices and operators to protobuf, and back."""

from collections.abc import Iterable, Iterator

from fedserver.authority.answers import Ended, IssuedOperator, Known, Withdrawn
from fedserver.coordinator.status_types import Withdrawal, WithdrawnRelease, WithdrawnRun
from fedserver.rpc.wire.converter import STAMP, Converter, time_from_now
from fedserver.rpc.wire.rows import shown
from fedserver.store.identities.records import Operator, Registered, Successor, Terms, Token
from shoal.core.exchange._pb.fed.v1 import authority_service_pb2 as pb

KEY = {"spki": "fingerprint"}
TERMS = Converter(Terms, pb.CreateTokenRequest, own={"ttl": time_from_now("ttl")})
TOKEN = Converter(Token, pb.Token)
SUCCESSOR = Converter(Successor, pb.Successor, names=KEY)
DEVICE = Converter(Registered, pb.Device, names=KEY, parts=(SUCCESSOR,), words="token")
OPERATOR = Converter(Operator, pb.Operator, names={**KEY, "name": "operator"})
RUN, RELEASE = Converter(WithdrawnRun, pb.WithdrawnRun), Converter(WithdrawnRelease, pb.WithdrawnRelease)
ISSUED = Converter(IssuedOperator, pb.AddOperatorResponse, parts=(OPERATOR,))


def device_to_pb(known: Known) -> pb.Device:
    message = DEVICE.to_pb(known.device)
    if known.last_seen is not None:
        message.last_seen.CopyFrom(STAMP.to_pb(known.last_seen))
    return message


def devices_to_pb(found: Iterable[Known]) -> Iterator[pb.Device]:
    """Those of a list."""
    return shown(found, device_to_pb, lambda known, why: DEVICE.bare(known.device, why))


def device_from_pb(message: pb.Device) -> Known:
    last_seen = STAMP.from_pb(message.last_seen) if message.HasField("last_seen") else None
    return Known(DEVICE.from_pb(message), last_seen)


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
        runs=map(RUN.to_pb, found.found.runs),
        releases=map(RELEASE.to_pb, found.found.releases),
    )


def withdrawn_from_pb(response: pb.WithdrawDeviceResponse) -> Withdrawn:
    known = device_from_pb(response.device)
    runs = tuple(map(RUN.from_pb, response.runs))
    releases = tuple(map(RELEASE.from_pb, response.releases))
    return Withdrawn(known, response.cut, Withdrawal(known.device.device, runs, releases))
