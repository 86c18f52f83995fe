"""The calls that lead to a certificate: EnrollmentService at a pinned port, IdentityService with one."""

import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import grpc
from cryptography import x509
from grpc import aio

from fedclient.identity.handshake import Cause, cause_of
from fedclient.identity.keyring import EnrolPort, Identity
from fedclient.identity.pinned import name_in, shown, to_pem
from fedclient.net.rpc import OPTIONS, error_of
from shoal.core.engine import timeouts
from shoal.core.errors import Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import EnrollmentServiceStub
from shoal.core.identity.enrolled import Challenge, Enrolled, Joining, Pending, Rejoining

if TYPE_CHECKING:
    from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import IdentityServiceAsyncStub

T = TypeVar("T")


def credentials(identity: Identity) -> grpc.ChannelCredentials:
    """For channels on which this device is known, and trusts its federation's authorities alone."""
    return grpc.ssl_channel_credentials(identity.authorities, identity.key, identity.certificate)


class Enrolment:
    """EnrollmentService, made by `enrolment`. Its calls raise ShoalErrors."""

    def __init__(self, channel: aio.Channel, address: str, certificate: x509.Certificate) -> None:
        self._stub, self._address, self._certificate = EnrollmentServiceStub(channel), address, certificate

    async def challenge(self) -> Challenge:
        call = self._stub.Challenge(pb.ChallengeRequest(), timeout=timeouts.ANSWER)
        return wire.challenge_from_pb(await self._answer(call))

    async def join(self, joining: Joining) -> Enrolled | Pending:
        call = self._stub.Join(wire.joining_to_pb(joining), timeout=timeouts.ANSWER)
        return wire.joined_from_pb(await self._answer(call))

    async def rejoin(self, rejoining: Rejoining) -> Enrolled:
        call = self._stub.Rejoin(wire.rejoining_to_pb(rejoining), timeout=timeouts.ANSWER)
        return wire.enrolled_from_pb((await self._answer(call)).identity)

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except aio.AioRpcError as error:
            if cause_of(error.details() or "") is not Cause.OUT_OF_TIME:
                raise error_of(error, self._address) from None
            begins, ends = self._certificate.not_valid_before_utc, self._certificate.not_valid_after_utc
            raise Unavailable(
                f"the certificate of {self._address} is good from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}, "
                f"and this device's clock says {time.strftime('%Y-%m-%d', time.gmtime())}",
                "set this device's clock",
            ) from None


@asynccontextmanager
async def enrolment(port: EnrolPort) -> AsyncIterator[Enrolment]:
    """Over a channel that trusts the one certificate whose key has the pin, whatever name it is for."""
    certificate = await shown(port)
    trust = grpc.ssl_channel_credentials(to_pem(certificate))
    options = (*OPTIONS, ("grpc.ssl_target_name_override", name_in(certificate)))
    async with aio.secure_channel(port.address, trust, options=options) as channel:
        yield Enrolment(channel, port.address, certificate)


async def renewed(stub: "IdentityServiceAsyncStub", csr: bytes) -> Enrolled:
    """The next certificate. Raises aio.AioRpcError, and BadPayload."""
    answer = await stub.Renew(pb.RenewRequest(csr=csr), timeout=timeouts.ANSWER)
    return wire.enrolled_from_pb(answer.identity)
