"""Requests and answers of EnrollmentService, and the roles that may make a call."""

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.descriptor import ServiceDescriptor
from google.protobuf.timestamp_pb2 import Timestamp

from shoal.core.errors import BadPayload
from shoal.core.exchange._pb.fed.v1 import (
    authority_service_pb2,
    blob_service_pb2,
    device_service_pb2,
    observer_service_pb2,
    operator_service_pb2,
    placement_service_pb2,
    release_service_pb2,
    role_pb2,
)
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb2
from shoal.core.exchange.wire.checks import (
    MAX_TEXT,
    between,
    meaning,
    name,
    seconds_from_pb,
    seconds_to_pb,
)
from shoal.core.identity.joining import (
    MAX_REQUEST,
    NONCE,
    Challenge,
    IssuedIdentity,
    Joining,
    OperatorRole,
    Pending,
    Returning,
    Role,
    check_name,
)

SHORTEST_RETRY, LONGEST_RETRY = 1.0, 60.0
"""Bounds, in seconds, of the time between two requests while an operator has not approved yet."""
PIN = PROOF = 32
MAX_SIGNATURE = 80
"""Bytes of an ECDSA signature on P-256, DER."""
ROLES = {
    Role.TRAIN: role_pb2.ROLE_TRAIN,
    Role.INFER_ONLY: role_pb2.ROLE_INFER_ONLY,
    Role.OBSERVER: role_pb2.ROLE_OBSERVER,
}
ROLE_OF: dict[int, Role] = {number: role for role, number in ROLES.items()}
OPERATOR_ROLES = {
    OperatorRole.VIEWER: role_pb2.OPERATOR_ROLE_VIEWER,
    OperatorRole.OPERATOR: role_pb2.OPERATOR_ROLE_OPERATOR,
}
OPERATOR_ROLE_OF: dict[int, OperatorRole] = {number: role for role, number in OPERATOR_ROLES.items()}


def roles_by_call() -> dict[str, frozenset[Role]]:
    """Which roles may make each call of the devices' port, as the contract says, by "/fed.v1.Service/Call".

    A method in the contract without the option `allowed` is left out.
    """
    services = (
        device_service_pb2.DESCRIPTOR.services_by_name["DeviceService"],
        placement_service_pb2.DESCRIPTOR.services_by_name["PlacementService"],
        blob_service_pb2.DESCRIPTOR.services_by_name["BlobService"],
        observer_service_pb2.DESCRIPTOR.services_by_name["ObserverService"],
    )
    return {
        call: frozenset(ROLE_OF[number] for number in numbers)
        for call, numbers in _options(services, role_pb2.allowed)
        if numbers
    }


def operator_roles_by_call() -> dict[str, OperatorRole | None]:
    """The least role that each operators' call needs over the network, by "/fed.v1.Service/Call".

    None: the method has no option `needs`, and cannot be called over the network.
    """
    services = (
        operator_service_pb2.DESCRIPTOR.services_by_name["OperatorService"],
        authority_service_pb2.DESCRIPTOR.services_by_name["AuthorityService"],
        release_service_pb2.DESCRIPTOR.services_by_name["ReleaseService"],
        blob_service_pb2.DESCRIPTOR.services_by_name["BlobService"],
    )
    return {call: OPERATOR_ROLE_OF.get(number) for call, number in _options(services, role_pb2.needs)}


def _options(services: Iterable[ServiceDescriptor], option: Any) -> Iterator[tuple[str, Any]]:
    """Each call of these services, and what this option of it says."""
    for service in services:
        for method in service.methods:
            yield f"/{service.full_name}/{method.name}", method.GetOptions().Extensions[option]


def challenge_to_pb(challenge: Challenge) -> pb2.ChallengeResponse:
    clock = Timestamp()
    clock.FromNanoseconds(round(challenge.clock * 1e9))
    valid = seconds_to_pb(challenge.valid)
    return pb2.ChallengeResponse(nonce=challenge.nonce, valid=valid, server_time=clock)


def challenge_from_pb(pb: pb2.ChallengeResponse) -> Challenge:
    clock = pb.server_time.seconds + pb.server_time.nanos / 1e9
    return Challenge(
        _bytes(pb.nonce, "the challenge", NONCE, NONCE), seconds_from_pb(pb.valid, "valid"), clock
    )


def joining_to_pb(joining: Joining) -> pb2.JoinRequest:
    return pb2.JoinRequest(**vars(joining))


def joining_from_pb(pb: pb2.JoinRequest) -> Joining:
    return Joining(
        name(pb.token, "the token's name"),
        _bytes(pb.nonce, "the nonce", NONCE, NONCE),
        _bytes(pb.csr, "the certificate request", 1, MAX_REQUEST),
        _bytes(pb.proof, "the proof", PROOF, PROOF),
        check_name(pb.device, "a device", BadPayload),
    )


def returning_to_pb(returning: Returning) -> pb2.ReturnRequest:
    return pb2.ReturnRequest(**vars(returning))


def returning_from_pb(pb: pb2.ReturnRequest) -> Returning:
    return Returning(
        _bytes(pb.certificate, "the certificate", 1, MAX_TEXT),
        _bytes(pb.nonce, "the nonce", NONCE, NONCE),
        _bytes(pb.csr, "the certificate request", 1, MAX_REQUEST),
        _bytes(pb.signature, "the signature", 1, MAX_SIGNATURE),
    )


Answer = IssuedIdentity | Pending


def joined_to_pb(answer: Answer) -> pb2.JoinResponse:
    return pb2.JoinResponse(**_admitted_to_pb(answer))


def returned_to_pb(answer: Answer) -> pb2.ReturnResponse:
    return pb2.ReturnResponse(**_admitted_to_pb(answer))


def _admitted_to_pb(answer: Answer) -> dict[str, Any]:
    if isinstance(answer, IssuedIdentity):
        return {"identity": identity_to_pb(answer)}
    retry = seconds_to_pb(answer.retry_in)
    return {"pending": pb2.Pending(fingerprint=answer.fingerprint, retry_in=retry)}


def admitted_from_pb(pb: pb2.JoinResponse | pb2.ReturnResponse) -> Answer:
    match pb.WhichOneof("answer"):
        case "identity":
            return identity_from_pb(pb.identity)
        case "pending":
            retry = between(seconds_from_pb(pb.pending.retry_in, "retry_in"), SHORTEST_RETRY, LONGEST_RETRY)
            return Pending(_bytes(pb.pending.fingerprint, "the fingerprint", PIN, PIN), retry)
        case None:
            raise BadPayload("the answer to a device that joins: answer is not set")


def identity_to_pb(issued: IssuedIdentity) -> pb2.Identity:
    return pb2.Identity(**vars(issued) | {"role": ROLES[issued.role]})


def identity_from_pb(pb: pb2.Identity) -> IssuedIdentity:
    return IssuedIdentity(
        _bytes(pb.certificate, "the certificate", 1, MAX_TEXT),
        _bytes(pb.authority, "the server's certificate", 1, MAX_TEXT),
        name(pb.federation, "the federation"),
        check_name(pb.device, "a device", BadPayload),
        meaning(ROLE_OF, pb.role, "the role"),
        name(pb.address, "the address"),
    )


def _bytes(value: bytes, what: str, least: int, most: int) -> bytes:
    if not least <= len(value) <= most:
        expected = f"{least}" if least == most else f"{least} to {most}"
        raise BadPayload(f"{what} has {len(value)} bytes, expected {expected}")
    return value
