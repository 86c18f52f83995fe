"""A federation for tests of a device's identity: authorities, both services of identities, and a MemoryServer
that only devices with a certificate may call. Everything is real but the clock, the tokens and the registry.
"""
# ruff: noqa: N802 - gRPC names the methods

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

import grpc
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from grpc import aio

from fedclient.identity.keyring import Asking, Identity, JoiningPort, identity_of
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import (
    EnrollmentServiceServicer,
    IdentityServiceServicer,
    add_EnrollmentServiceServicer_to_server,
    add_IdentityServiceServicer_to_server,
)
from shoal.core.identity import certificates as certs
from shoal.core.identity.join import JoinString
from shoal.core.identity.joining import Challenge, IssuedIdentity, Pending, Role
from shoal.core.identity.proof import is_proved, is_signed, key_of
from tests.client.bridge import Bridge, add_to
from tests.client.memory_server import MemoryServer

DAY = timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """The key and the certificate of the one that signs."""

    key: EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def made(cls, name: str = "authority") -> "Authority":
        key = certs.new_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = _builder(key.public_key(), subject, -DAY, 3650 * DAY).subject_name(subject)
        certificate = builder.add_extension(x509.BasicConstraints(True, None), True).sign(key, SHA256())
        return cls(key, certificate)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    def sign(
        self, key: EllipticCurvePublicKey, names: list[x509.GeneralName], begins: timedelta, ends: timedelta
    ) -> x509.Certificate:
        """A certificate for `key`; its life is counted from now."""
        builder = _builder(key, self.certificate.subject, begins, ends).subject_name(x509.Name([]))
        return builder.add_extension(x509.SubjectAlternativeName(names), True).sign(self.key, SHA256())


def _builder(
    key: EllipticCurvePublicKey, issuer: x509.Name, begins: timedelta, ends: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + begins)
        .not_valid_after(now + ends)
    )


def pem_of(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(Encoding.PEM)


@dataclass
class Federation(EnrollmentServiceServicer, IdentityServiceServicer):
    """authority: who signs. authorities: what devices are sent to trust.

    life: of the certificates that are signed. renew_in: seconds, which devices are sent. slow: how far
    the server's clock is behind. pending: how many joins wait for approval first. answered: what was given
    for a request. lose: how many of the next answers are lost on the way. refuse: what requests end with.
    """

    authority: Authority = field(default_factory=Authority.made)
    authorities: list[Authority] = field(default_factory=list)
    life: timedelta = 14 * DAY
    role: Role = Role.TRAIN
    renew_in: float = 1e6
    slow: timedelta = timedelta()
    pending: int = 0
    lose: int = 0
    log: list[str] = field(default_factory=list)
    answered: dict[bytes, IssuedIdentity] = field(default_factory=dict)
    refuse: Callable[[Any], Awaitable[None]] | None = None
    address: str = ""

    def __post_init__(self) -> None:
        self.authorities = self.authorities or [self.authority]
        self.join_key = certs.new_key()
        pin = certs.pin_of(self.join_key.public_key())
        self.line = JoinString("127.0.0.1", 1, pin, "token-01", secrets.token_bytes(32))
        self._nonces: set[bytes] = set()

    # -- certificates -----------------------------------------------------------------------------------

    def issued(self, key: EllipticCurvePublicKey, device: str) -> IssuedIdentity:
        name = x509.UniformResourceIdentifier(certs.uri_of("shoal", device))
        certificate = pem_of(self.authority.sign(key, [name], -30 * DAY, self.life))
        roots = b"".join(authority.pem for authority in self.authorities)
        return IssuedIdentity(certificate, roots, "shoal", device, self.role, self.address, self.renew_in)

    def identity_for(self, device: str, address: str = "") -> Identity:
        """As it would have got it."""
        key = certs.new_key()
        self.address = address or self.address
        issued = self.issued(key.public_key(), device)
        joining_port = JoiningPort(self.line.host, self.line.port, self.line.pin)
        return identity_of(Asking(certs.key_to_pem(key), b""), issued, joining_port)

    # -- the two services -------------------------------------------------------------------------------

    async def Challenge(self, request: Any, context: Any) -> Any:
        self.log.append("challenge")
        nonce = secrets.token_bytes(32)
        self._nonces.add(nonce)
        clock = datetime.now(UTC) - self.slow
        return wire.challenge_to_pb(Challenge(nonce, 60.0, clock.timestamp()))

    async def Join(self, request: Any, context: Any) -> Any:
        self.log.append("join")
        await self._maybe_refuse(context)
        asked = wire.joining_from_pb(request)
        self._nonces.remove(asked.nonce)
        key = key_of(self.line.secret)
        if asked.token != self.line.token or not is_proved(
            key, asked.nonce, self.line.pin, asked.csr, asked.proof
        ):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no such token, or it is used up")
        if self.pending:
            self.pending -= 1
            pin = certs.pin_of(certs.key_of_request(asked.csr))
            return wire.joined_to_pb(Pending(pin, 0.01))
        return wire.joined_to_pb(await self._answer(asked.csr, asked.device, context))

    async def Rejoin(self, request: Any, context: Any) -> Any:
        self.log.append("rejoin")
        await self._maybe_refuse(context)
        asked = wire.rejoining_from_pb(request)
        self._nonces.remove(asked.nonce)
        last = certs.certificate(asked.certificate)
        key = last.public_key()
        assert isinstance(key, EllipticCurvePublicKey)
        if not is_signed(key, asked.nonce, self.line.pin, asked.csr, asked.signature):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not signed by that key")
        issued = await self._answer(asked.csr, certs.named_by(last).device, context)
        return pb.RejoinResponse(identity=wire.identity_to_pb(issued))

    async def Renew(self, request: Any, context: Any) -> Any:
        self.log.append("renew")
        await self._maybe_refuse(context)
        device = device_of(context)
        issued = await self._answer(request.csr, device, context)
        return pb.RenewResponse(identity=wire.identity_to_pb(issued))

    async def _answer(self, csr: bytes, device: str, context: Any) -> IssuedIdentity:
        """The same to the same request; lost on the way, it was given all the same."""
        if csr not in self.answered:
            self.answered[csr] = self.issued(certs.key_of_request(csr), device)
        if self.lose:
            self.lose -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "lost on the way")
        return self.answered[csr]

    async def _maybe_refuse(self, context: Any) -> None:
        if self.refuse is not None:
            await self.refuse(context)


def device_of(context: Any) -> str:
    """Who calls, by the certificate."""
    (uri,) = context.auth_context()["x509_subject_alternative_name"]
    return str(uri.decode().rpartition("/")[2])


def names_of(hosts: list[str]) -> list[x509.GeneralName]:
    return [x509.IPAddress(ip_address(host)) if host[0].isdigit() else x509.DNSName(host) for host in hosts]


@asynccontextmanager
async def join_port(federation: Federation, days: tuple[float, float] = (-365, 3650)) -> AsyncIterator[None]:
    """EnrollmentService on a free port, in the join string from now on. days: its certificate's life."""
    key, server = federation.join_key, aio.server()
    life = (days[0] * DAY, days[1] * DAY)
    certificate = federation.authority.sign(key.public_key(), names_of(["join.test"]), *life)
    add_EnrollmentServiceServicer_to_server(federation, server)  # type: ignore[no-untyped-call]
    pair = (certs.key_to_pem(key), pem_of(certificate))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([pair]))
    federation.line = replace(federation.line, port=port)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@asynccontextmanager
async def devices_port(
    federation: Federation,
    memory: MemoryServer,
    hosts: list[str] | None = None,
    days: tuple[float, float] = (-365, 3650),
    trusting: Authority | None = None,
    port: int = 0,
) -> AsyncIterator[Bridge]:
    """A MemoryServer and IdentityService for devices with certificates. hosts: what its own is for."""
    key, server, bridge = certs.new_key(), aio.server(), Bridge(memory)
    life = (days[0] * DAY, days[1] * DAY)
    certificate = federation.authority.sign(key.public_key(), names_of(hosts or ["127.0.0.1"]), *life)
    add_to(server, bridge)
    add_IdentityServiceServicer_to_server(federation, server)  # type: ignore[no-untyped-call]
    pair = (certs.key_to_pem(key), pem_of(certificate))
    roots = b"".join(authority.pem for authority in ([trusting] if trusting else federation.authorities))
    credentials = grpc.ssl_server_credentials([pair], roots, True)
    federation.address = f"127.0.0.1:{server.add_secure_port(f'127.0.0.1:{port}', credentials)}"
    await server.start()
    try:
        yield bridge
    finally:
        await server.stop(None)
