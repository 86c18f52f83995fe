"""What is said on the way to a certificate comes back as it was, and odd sizes are refused."""

import pytest

from shoal.core.errors import BadPayload
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1 import role_pb2
from shoal.core.identity.joining import Challenge, IssuedIdentity, Joining, Pending, Returning, Role

CHALLENGE = Challenge(b"n" * 32, 60.0, 1_790_000_000.5)
JOINING = Joining("token-01", b"n" * 32, b"csr", b"p" * 32, "kitchen")
RETURNING = Returning(b"pem", b"n" * 32, b"csr", b"signature")
ISSUED = IssuedIdentity(b"pem", b"pems", "shoal", "kitchen", Role.OBSERVER, "localhost:1")
PENDING = Pending(b"f" * 32, 5.0)


def test_every_value_comes_back() -> None:
    assert wire.challenge_from_pb(wire.challenge_to_pb(CHALLENGE)) == CHALLENGE
    assert wire.joining_from_pb(wire.joining_to_pb(JOINING)) == JOINING
    assert wire.returning_from_pb(wire.returning_to_pb(RETURNING)) == RETURNING
    for answer in (ISSUED, PENDING):
        assert wire.admitted_from_pb(wire.joined_to_pb(answer)) == answer
        assert wire.admitted_from_pb(wire.returned_to_pb(answer)) == answer


@pytest.mark.parametrize("role", Role)
def test_every_role_comes_back(role: Role) -> None:
    issued = IssuedIdentity(b"pem", b"pems", "shoal", "kitchen", role, "localhost:1")
    assert wire.identity_from_pb(wire.identity_to_pb(issued)).role is role


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token", ""),
        ("nonce", b"n" * 31),
        ("csr", b"c" * 4097),
        ("csr", b""),
        ("proof", b"p" * 33),
        ("device", "../etc"),
        ("device", "a" * 65),
        ("device", ""),
    ],
)
def test_a_join_with_something_odd_is_refused(field: str, value: object) -> None:
    request = wire.joining_to_pb(JOINING)
    setattr(request, field, value)
    with pytest.raises(BadPayload):
        wire.joining_from_pb(request)


def test_empty_answers_are_refused() -> None:
    with pytest.raises(BadPayload, match="answer"):
        wire.admitted_from_pb(pb.JoinResponse())
    with pytest.raises(BadPayload, match="the certificate"):
        wire.identity_from_pb(pb.Identity())
    unset = wire.identity_to_pb(ISSUED)
    unset.role = role_pb2.ROLE_UNSPECIFIED
    with pytest.raises(BadPayload, match="role"):
        wire.identity_from_pb(unset)
