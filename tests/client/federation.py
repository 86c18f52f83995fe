"""A federation for tests of a device's identity: the server's key, EnrollmentService, and a MemoryServer that
only devices with a certificate may call. Everything is real but the tokens and the registry.
"""
# ruff: noqa: N802 - gRPC names the methods

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
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
from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import (
    EnrollmentServiceServicer,
    add_EnrollmentServiceServicer_to_server,
)
from shoal.core.identity import certificates as certs
from shoal.core.identity.join import JoinString
from shoal.core.identity.joining import TLS_NAME, Challenge, IssuedIdentity, Pending, Role
from shoal.core.identity.proof import is_proved, is_signed, key_of
from shoal.core.identity.succession import extension, links_in, succeeded
from tests.client.bridge import Bridge, add_to
from tests.client.memory_server import MemoryServer


@dataclass(frozen=True)
class Authority:
    """A server's key and certificate."""

    key: EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def made(cls, after: "Authority | None" = None) -> "Authority":
        """after: whose key this one replaces."""
        key = certs.new_key()
        pin = certs.pin_of(key.public_key())
        links = succeeded(links_in(after.certificate), after.key, pin) if after else ()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "server")])
        builder = _builder(key.public_key(), subject).subject_name(subject)
        builder = builder.add_extension(x509.BasicConstraints(True, None), True)
        builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(TLS_NAME)]), False)
        return cls(key, builder.add_extension(extension(links), False).sign(key, SHA256()))

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def pin(self) -> bytes:
        return certs.pin_of(self.key.public_key())

    @property
    def pair(self) -> tuple[bytes, bytes]:
        return certs.key_to_pem(self.key), self.pem

    def sign(self, key: EllipticCurvePublicKey, uri: str) -> bytes:
        """A certificate for a caller's key, PEM."""
        builder = _builder(key, self.certificate.subject).subject_name(x509.Name([]))
        names = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(uri)])
        return builder.add_extension(names, True).sign(self.key, SHA256()).public_bytes(Encoding.PEM)


def _builder(key: EllipticCurvePublicKey, issuer: x509.Name) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(certs.BEGIN)
        .not_valid_after(certs.END)
    )


@dataclass
class Federation(EnrollmentServiceServicer):
    """authority: the server's key. pending: how many requests wait for approval first. answered: what was
    given for a request. lose: how many of the next answers are lost. refuse: what requests end with.
    """

    authority: Authority = field(default_factory=Authority.made)
    role: Role = Role.TRAIN
    pending: int = 0
    lose: int = 0
    log: list[str] = field(default_factory=list)
    answered: dict[bytes, IssuedIdentity] = field(default_factory=dict)
    refuse: Callable[[Any], Awaitable[None]] | None = None
    address: str = ""

    def __post_init__(self) -> None:
        self.line = JoinString("127.0.0.1", 1, self.authority.pin, "token-01", secrets.token_bytes(32))
        self._nonces: set[bytes] = set()

    # -- certificates -----------------------------------------------------------------------------------

    def issued(self, key: EllipticCurvePublicKey, device: str) -> IssuedIdentity:
        certificate = self.authority.sign(key, certs.uri_of("shoal", self.role.value, device))
        return IssuedIdentity(certificate, self.authority.pem, "shoal", device, self.role, self.address)

    def identity_for(self, device: str, address: str = "") -> Identity:
        """As it would have got it."""
        key = certs.new_key()
        self.address = address or self.address
        issued = self.issued(key.public_key(), device)
        joining_port = JoiningPort(self.line.host, self.line.port, self.line.pin)
        return identity_of(Asking(certs.key_to_pem(key), b""), issued, joining_port)

    # -- the service ------------------------------------------------------------------------------------

    async def Challenge(self, request: Any, context: Any) -> Any:
        self.log.append("challenge")
        nonce = secrets.token_bytes(32)
        self._nonces.add(nonce)
        return wire.challenge_to_pb(Challenge(nonce, 60.0, datetime.now(UTC).timestamp()))

    async def Join(self, request: Any, context: Any) -> Any:
        self.log.append("join")
        await self._maybe_refuse(context)
        asked = wire.joining_from_pb(request)
        self._nonces.remove(asked.nonce)
        key = key_of(self.line.secret)
        if asked.token != self.line.token or not is_proved(
            key, asked.nonce, self.authority.pin, asked.csr, asked.proof
        ):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "no such token, or it is used up")
        if self.pending:
            self.pending -= 1
            pin = certs.pin_of(certs.key_of_request(asked.csr))
            return wire.joined_to_pb(Pending(pin, 0.01))
        return wire.joined_to_pb(await self._answer(asked.csr, asked.device, context))

    async def Return(self, request: Any, context: Any) -> Any:
        self.log.append("return")
        await self._maybe_refuse(context)
        asked = wire.returning_from_pb(request)
        self._nonces.remove(asked.nonce)
        last = certs.certificate(asked.certificate)
        if not is_signed(certs.key_in(last), asked.nonce, self.authority.pin, asked.csr, asked.signature):
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "not signed by that key")
        if self.pending:
            self.pending -= 1
            pin = certs.pin_of(certs.key_of_request(asked.csr))
            return wire.returned_to_pb(Pending(pin, 0.01))
        return wire.returned_to_pb(await self._answer(asked.csr, certs.named_by(last).name, context))

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


@asynccontextmanager
async def join_port(federation: Federation) -> AsyncIterator[None]:
    """EnrollmentService on a free port, in the join string from now on."""
    server = aio.server()
    add_EnrollmentServiceServicer_to_server(federation, server)  # type: ignore[no-untyped-call]
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([federation.authority.pair]))
    federation.line = replace(federation.line, port=port)
    await server.start()
    try:
        yield
    finally:
        await server.stop(None)


@asynccontextmanager
async def devices_port(
    federation: Federation, memory: MemoryServer, trusting: Authority | None = None, port: int = 0
) -> AsyncIterator[Bridge]:
    """A MemoryServer for devices with certificates. trusting: whose certificates it takes."""
    server, bridge, authority = aio.server(), Bridge(memory), federation.authority
    add_to(server, bridge)
    credentials = grpc.ssl_server_credentials([authority.pair], (trusting or authority).pem, True)
    federation.address = f"127.0.0.1:{server.add_secure_port(f'127.0.0.1:{port}', credentials)}"
    await server.start()
    try:
        yield bridge
    finally:
        await server.stop(None)
