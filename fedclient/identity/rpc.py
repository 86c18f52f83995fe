"""The calls for getting certificates: EnrollmentService at a pinned port, and IdentityService.

Of the enrollment port only the hash of its key is known, from the join string: it is checked before anything
is sent.
"""

import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

import grpc
from cryptography import x509
from grpc import aio

from fedclient.identity.keyring import Identity, JoiningPort
from fedclient.net.rpc import OPTIONS, error_of
from shoal.core.engine import timeouts
from shoal.core.errors import Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import EnrollmentServiceStub
from shoal.core.identity.joining import Challenge, IssuedIdentity, Joining, Pending, Rejoining

if TYPE_CHECKING:
    from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import IdentityServiceAsyncStub

import asyncio
import ssl
from enum import Enum

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from fedclient.faults import SomeoneElse
from shoal.core.engine.timeouts import CONNECTION
from shoal.core.identity.certificates import pin_of


class Cause(Enum):
    """Why a TLS handshake failed. It is found in the text of gRPC's errors; tests hold it to that text."""

    OTHER_NAME = "the server's certificate is for another name than the one in its address"
    OTHER_AUTHORITY = "the server's certificate is not from an authority that this device trusts"
    OUT_OF_TIME = "the server's certificate is not valid by this device's clock"
    NO_TLS = "the other side does not speak TLS"
    CUT = "the other side saw this device's certificate and closed the connection"


WORDS = (
    ("Hostname Verification Check failed", Cause.OTHER_NAME),
    ("certificate has expired", Cause.OUT_OF_TIME),
    ("certificate is not yet valid", Cause.OUT_OF_TIME),
    ("CERTIFICATE_VERIFY_FAILED", Cause.OTHER_AUTHORITY),
    ("certificate signature failure", Cause.OTHER_AUTHORITY),
    ("WRONG_VERSION_NUMBER", Cause.NO_TLS),
    ("Socket closed", Cause.CUT),
    ("Connection reset by peer", Cause.CUT),
    ("Broken pipe", Cause.CUT),
)
"""The first one found counts."""


def cause_of(details: str) -> Cause | None:
    """details: of a call without a connection. None: no server answers, or there is another cause."""
    if "failed to connect to all addresses" not in details:
        return None
    return next((cause for words, cause in WORDS if words in details), None)


T = TypeVar("T")


def credentials(identity: Identity) -> grpc.ChannelCredentials:
    """For channels that identify this device and trust only the authorities of its federation."""
    return grpc.ssl_channel_credentials(identity.authorities, identity.key, identity.certificate)


class EnrollmentClient:
    """Calls of EnrollmentService, made by `enrollment`. They raise ShoalErrors."""

    def __init__(self, channel: aio.Channel, address: str, certificate: x509.Certificate) -> None:
        self._stub, self._address, self._certificate = EnrollmentServiceStub(channel), address, certificate

    async def challenge(self) -> Challenge:
        call = self._stub.Challenge(pb.ChallengeRequest(), timeout=timeouts.ANSWER)
        return wire.challenge_from_pb(await self._answer(call))

    async def join(self, joining: Joining) -> IssuedIdentity | Pending:
        call = self._stub.Join(wire.joining_to_pb(joining), timeout=timeouts.ANSWER)
        return wire.joined_from_pb(await self._answer(call))

    async def rejoin(self, rejoining: Rejoining) -> IssuedIdentity:
        call = self._stub.Rejoin(wire.rejoining_to_pb(rejoining), timeout=timeouts.ANSWER)
        return wire.identity_from_pb((await self._answer(call)).identity)

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except aio.AioRpcError as error:
            if cause_of(error.details() or "") is not Cause.OUT_OF_TIME:
                raise error_of(error, self._address) from None
            begins, ends = self._certificate.not_valid_before_utc, self._certificate.not_valid_after_utc
            raise Unavailable(
                f"the certificate of {self._address} is valid from {begins:%Y-%m-%d} to {ends:%Y-%m-%d}, "
                f"and this device's clock says {time.strftime('%Y-%m-%d', time.gmtime())}",
                "set this device's clock",
            ) from None


@asynccontextmanager
async def enrollment(port: JoiningPort) -> AsyncIterator[EnrollmentClient]:
    """A client on a channel that trusts only the certificate whose key has the pin, whatever its name."""
    certificate = await shown(port)
    trust = grpc.ssl_channel_credentials(to_pem(certificate))
    options = (*OPTIONS, ("grpc.ssl_target_name_override", name_in(certificate)))
    async with aio.secure_channel(port.address, trust, options=options) as channel:
        yield EnrollmentClient(channel, port.address, certificate)


async def renewed(stub: "IdentityServiceAsyncStub", csr: bytes) -> IssuedIdentity:
    """The next certificate. Raises aio.AioRpcError, and BadPayload."""
    answer = await stub.Renew(pb.RenewRequest(csr=csr), timeout=timeouts.ANSWER)
    return wire.identity_from_pb(answer.identity)


async def shown(port: JoiningPort) -> x509.Certificate:
    """The certificate that is shown at `port`, if its key has the pin; it is then the one to trust.

    This is a TLS 1.3 handshake and nothing else: no name, no token, no data is sent.
    Raises Unavailable if no server answers, SomeoneElse if the key is another one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the pin is checked instead
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(CONNECTION):
            _, writer = await asyncio.open_connection(port.host.strip("[]"), port.port, ssl=context)
    except ssl.SSLError:
        raise SomeoneElse(
            f"{port.address} is not an enrollment port: it does not speak TLS 1.3",
            "ask for a new join string",
        ) from None
    except (OSError, TimeoutError) as error:
        why = getattr(error, "strerror", None) or str(error) or "no answer in time"
        hint = "check that the server is running there, and that this device can reach it"
        raise Unavailable(f"{port.address} does not answer: {why}", hint) from None
    data = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.transport.abort()
    try:
        certificate = x509.load_der_x509_certificate(data)
        found = pin_of(certificate.public_key())
    except (ValueError, UnsupportedAlgorithm):
        found = b""
    if found != port.pin:
        raise SomeoneElse(
            f"another server answers at {port.address}: its key is not the one in the join string",
            "nothing was sent; ask the server's operator for the reason, and for a new join string",
        )
    return certificate


def to_pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


def name_in(certificate: x509.Certificate) -> str:
    """Any name in the certificate, for only its key is trusted. "" if it has none."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        return str(common[0].value) if common else ""
    found = [*names.get_values_for_type(x509.DNSName), *names.get_values_for_type(x509.IPAddress)]
    return str(found[0]) if found else ""
