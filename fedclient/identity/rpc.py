"""The calls for getting certificates: EnrollmentService at a pinned port.

Of the server only the hash of its key is known, from the join string: it is checked before anything is sent.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from enum import Enum
from typing import TypeVar

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding
from grpc import aio

from fedclient.faults import WrongServer
from fedclient.identity.keyring import Identity, JoiningPort
from fedclient.net.rpc import OPTIONS, error_of
from shoal.core.engine import timeouts
from shoal.core.engine.timeouts import CONNECTION
from shoal.core.errors import Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import EnrollmentServiceStub
from shoal.core.identity.certificates import pin_of
from shoal.core.identity.joining import Challenge, IssuedIdentity, Joining, Pending, Returning
from shoal.core.identity.succession import leads


class Cause(Enum):
    """Why a TLS handshake failed. It is found in the text of gRPC's errors; tests hold it to that text."""

    OTHER_KEY = "the server's key is not the one that this device knows"
    NO_TLS = "the other side does not speak TLS"
    CUT = "the other side saw this device's certificate and closed the connection"


WORDS = (
    ("CERTIFICATE_VERIFY_FAILED", Cause.OTHER_KEY),
    ("certificate signature failure", Cause.OTHER_KEY),
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
    """For channels that identify this device and trust only its server."""
    return grpc.ssl_channel_credentials(identity.authority, identity.key, identity.certificate)


class EnrollmentClient:
    """Calls of EnrollmentService, made by `enrollment`. They raise ShoalErrors. pin: SHA-256 of the key that
    the server has now."""

    def __init__(self, channel: aio.Channel, address: str, pin: bytes) -> None:
        self._stub, self._address, self.pin = EnrollmentServiceStub(channel), address, pin

    async def challenge(self) -> Challenge:
        call = self._stub.Challenge(pb.ChallengeRequest(), timeout=timeouts.ANSWER)
        return wire.challenge_from_pb(await self._answer(call))

    async def join(self, joining: Joining) -> IssuedIdentity | Pending:
        call = self._stub.Join(wire.joining_to_pb(joining), timeout=timeouts.ANSWER)
        return wire.admitted_from_pb(await self._answer(call))

    async def come_back(self, returning: Returning) -> IssuedIdentity | Pending:
        call = self._stub.Return(wire.returning_to_pb(returning), timeout=timeouts.ANSWER)
        return wire.admitted_from_pb(await self._answer(call))

    async def _answer(self, call: Awaitable[T]) -> T:
        try:
            return await call
        except aio.AioRpcError as error:
            raise error_of(error, self._address) from None


@asynccontextmanager
async def enrollment(port: JoiningPort) -> AsyncIterator[EnrollmentClient]:
    """A client on a channel that trusts only the server's key: the one with the pin, or the one to which that
    has led since."""
    certificate = await shown(port)
    trust = grpc.ssl_channel_credentials(certificate.public_bytes(Encoding.PEM))
    async with aio.secure_channel(port.address, trust, options=OPTIONS) as channel:
        yield EnrollmentClient(channel, port.address, pin_of(certificate.public_key()))


async def shown(port: JoiningPort) -> x509.Certificate:
    """The certificate that is shown at `port`, if it is of the server with the pin.

    This is a TLS 1.3 handshake and nothing else: no name, no token, no data is sent.
    Raises Unavailable if no server answers, WrongServer if the key is another one.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # the pin is checked instead
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["h2"])
    try:
        async with asyncio.timeout(CONNECTION):
            _, writer = await asyncio.open_connection(port.host.strip("[]"), port.port, ssl=context)
    except ssl.SSLError:
        raise WrongServer(
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
        known = leads(port.pin, certificate)
    except (ValueError, UnsupportedAlgorithm):
        known = False
    if not known:
        raise WrongServer(
            f"another server answers at {port.address}: its key is not the one in the join string",
            "nothing was sent; ask the server's operator for the reason, and for a new join string",
        )
    return certificate
