"""Devices that join and call over real TLS by hand, so that these tests need no `fedclient`."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from grpc import aio

from fedserver.authority import setup
from fedserver.authority.authority import Authority
from fedserver.authority.authority_api import AuthorityApi
from fedserver.authority.issuing import Key
from fedserver.authority.operator_accounts import OperatorAccounts
from fedserver.authority.peers import Peers
from fedserver.coordinator.coordinator import Coordinator
from fedserver.rpc.channel import SOCKET
from fedserver.rpc.server import Listeners, listen
from fedserver.rpc.tls import Access
from fedserver.store.identities.audit import FILE, Event
from fedserver.store.identities.records import Terms
from shoal.core.exchange import wire
from shoal.core.exchange._pb.fed.v1 import enrollment_service_pb2 as pb
from shoal.core.exchange._pb.fed.v1.enrollment_service_pb2_grpc import EnrollmentServiceStub
from shoal.core.exchange._pb.fed.v1.fault_pb2 import Fault
from shoal.core.identity import proof
from shoal.core.identity.certificates import key_to_pem, new_key, pin_of, request
from shoal.core.identity.join import JoinString, parse
from shoal.core.identity.joining import TLS_NAME, IssuedIdentity, Joining, Pending, Returning
from shoal.core.identity.succession import leads
from tests.server.servers import server
from tests.server.wire_link import WireLink

HOST = "127.0.0.1"
OWN = (("grpc.use_local_subchannel_pool", 1), ("grpc.ssl_target_name_override", TLS_NAME))
"""A connection for each channel, as devices on machines of their own have it."""


@dataclass
class World:
    """A server with certificates, and those who run it."""

    state: Path
    coordinator: Coordinator
    peers: Peers
    api: AuthorityApi
    listeners: Listeners

    async def token(self, **terms: Any) -> JoinString:
        _, join = await self.api.create_token(Terms(**terms))
        return join

    async def device(self, name: str, **terms: Any) -> "Peer":
        """A device that has joined."""
        peer = Peer(await self.token(**terms), name, self.listeners.address)
        await peer.join()
        return peer


@asynccontextmanager
async def world(state: Path, hosts: tuple[str, ...] = (HOST,)) -> AsyncIterator[World]:
    """A server on a state folder, which is made if it is not there, in this process."""
    setup.init(state, hosts, f"{HOST}:0", f"{HOST}:0", "clinic")
    authority = Authority.open(state)
    async with server(state) as coordinator:
        peers = await Peers.open(coordinator.storage, authority)
        operators = await OperatorAccounts.open(coordinator.storage, authority)
        access = Access(peers, f"{HOST}:0", hosts[0], operators, f"{HOST}:0")
        listeners = await listen(coordinator, f"{HOST}:0", state / SOCKET, access)
        try:
            yield World(
                state,
                coordinator,
                peers,
                AuthorityApi(coordinator, peers, listeners.join_address, operators),
                listeners,
            )
        finally:
            coordinator.stop_serving()
            await listeners.stop(1.0)


class Peer:
    """A device's hands: its key, its join string, its certificate once it has one."""

    def __init__(self, join: JoinString | str, name: str, address: str = "", key: Key | None = None) -> None:
        self.string = parse(join) if isinstance(join, str) else join
        self.name, self.address = name, address
        self.key: Key = key or new_key()
        self.csr, self.pin = request(self.key), self.string.pin
        self.issued: IssuedIdentity | None = None

    async def join(self, **changes: Any) -> IssuedIdentity | Pending:
        """Ask for a certificate. changes: to what is sent."""
        key = proof.key_of(self.string.secret)
        async with self.joining_stub() as stub:
            nonce = (await stub.Challenge(pb.ChallengeRequest())).nonce
            shown = proof.prove(key, nonce, self.pin, self.csr)
            joining = replace(Joining(self.string.token, nonce, self.csr, shown, self.name), **changes)
            answer = wire.admitted_from_pb(await stub.Join(wire.joining_to_pb(joining)))
        if isinstance(answer, IssuedIdentity):
            self.issued = answer
            self.address = self.address or answer.address
        return answer

    async def come_back(self, key: Key | None = None, **changes: Any) -> IssuedIdentity | Pending:
        """Ask with the key for another certificate, and go on with that; key: one to take its place."""
        assert self.issued is not None
        key = key or self.key
        async with self.joining_stub() as stub:
            nonce = (await stub.Challenge(pb.ChallengeRequest())).nonce
            csr = request(key)
            signature = proof.sign(self.key, nonce, self.pin, csr)
            returning = replace(Returning(self.issued.certificate, nonce, csr, signature), **changes)
            answer = wire.admitted_from_pb(await stub.Return(wire.returning_to_pb(returning)))
        if isinstance(answer, IssuedIdentity):
            self.key, self.issued = key, answer
        return answer

    def channel(self) -> aio.Channel:
        """To where devices call."""
        assert self.issued is not None
        return channel_of(self.address, self.issued.authority, self.key, self.issued.certificate)

    def link(self, channel: aio.Channel) -> WireLink:
        """Calls of this device; it claims to be another device, which the server must not believe."""
        return WireLink(channel, "someone-else")

    @asynccontextmanager
    async def joining_stub(self) -> AsyncIterator[Any]:
        """EnrollmentService, as this device finds it."""
        async with self.joining_channel() as channel:
            yield EnrollmentServiceStub(channel)

    @asynccontextmanager
    async def joining_channel(self) -> AsyncIterator[aio.Channel]:
        """To where devices join: the certificate there is trusted only for its pin."""
        pem = await asyncio.to_thread(
            ssl.get_server_certificate, (self.string.host.strip("[]"), self.string.port)
        )
        found = x509.load_pem_x509_certificate(pem.encode())
        assert leads(self.string.pin, found)
        self.pin = pin_of(found.public_key())
        credentials = grpc.ssl_channel_credentials(found.public_bytes(Encoding.PEM))
        async with aio.secure_channel(self.string.address, credentials, OWN) as channel:
            yield channel


def moved(join: JoinString, found: World) -> JoinString:
    """The same join string where the server is now: ports differ from start to start here."""
    host, _, port = found.listeners.join_address.rpartition(":")
    return replace(join, host=host, port=int(port))


def channel_of(
    address: str, roots: bytes, key: Key | None = None, certificate: bytes | None = None
) -> aio.Channel:
    """A channel that trusts these roots, with a certificate if one is given."""
    pem = None if key is None else key_to_pem(key)
    return aio.secure_channel(address, grpc.ssl_channel_credentials(roots, pem, certificate), OWN)


async def refused(call: Awaitable[Any]) -> tuple[aio.AioRpcError, Fault]:
    """How a call fails that has to."""
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    trailing: dict[str, Any] = dict(caught.value.trailing_metadata() or ())  # type: ignore[arg-type]
    return caught.value, Fault.FromString(trailing["shoal-fault-bin"])


def lines_of(state: Path, event: Event) -> list[dict[str, Any]]:
    """The lines of the audit log about one kind of event."""
    found = map(json.loads, (state / FILE).read_text().splitlines())
    return [line for line in found if line["event"] == event.value]


def play(story: Callable[[World], Awaitable[None]], state: Path) -> None:
    """Let a story happen to a server on a state folder."""

    async def run() -> None:
        async with world(state) as found:
            await story(found)

    asyncio.run(run())
