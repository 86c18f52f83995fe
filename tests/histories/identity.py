"""Who the devices of a world are: certificates of the server's own authority, shown at every call.

Each device joins once, by a token of its own, as soon as a server runs. What a connection's TLS would show is
handed to the server with each call; the rest, from the authorization to the registry, is the real
one.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

from fedserver.authority import setup
from fedserver.authority.authority import Authority
from fedserver.authority.authority_api import AuthorityApi
from fedserver.authority.joining import JoinService
from fedserver.authority.operator_accounts import OperatorAccounts
from fedserver.authority.peers import Peers
from fedserver.coordinator.coordinator import Coordinator
from fedserver.store.identities.records import Terms
from shoal.core.errors import ShoalError
from shoal.core.identity import proof
from shoal.core.identity.certificates import request
from shoal.core.identity.join import JoinString
from shoal.core.identity.joining import IssuedIdentity, Joining
from shoal.core.types import DeviceId

HOST, DEVICES, JOINING = "localhost", "localhost:50051", "localhost:50052"


class Identities:
    """certificates: PEM, by device. api: of the server that runs now. ending: who is being revoked.

    joined: set once the device has its certificate.
    """

    def __init__(self, devices: Sequence[DeviceId]) -> None:
        self.certificates: dict[DeviceId, bytes] = {}
        self.joined = {device: asyncio.Event() for device in devices}
        self.api: AuthorityApi | None = None
        self.ending: set[DeviceId] = set()
        self._strings: dict[DeviceId, JoinString] = {}
        self._requests = {device: request(generate_private_key(SECP256R1())) for device in devices}

    @staticmethod
    def prepare(state: Path) -> Authority:
        """What `fedserver init` does; safe to repeat."""
        setup.init(state, (HOST,), "127.0.0.1:50051", "127.0.0.1:50052", "histories")
        return Authority.open(state)

    async def open(self, coordinator: Coordinator, authority: Authority) -> Peers:
        peers = await Peers.open(coordinator.storage, authority)
        operators = await OperatorAccounts.open(coordinator.storage, authority)
        self.api = AuthorityApi(coordinator, peers, JOINING, operators)
        return peers

    async def join(self, peers: Peers, device: DeviceId) -> None:
        """A device gets its certificate, if it has none. It asks again with the same join string and key."""
        assert self.api is not None
        if device in self.certificates:
            return
        if device not in self._strings:
            _, self._strings[device] = await self.api.create_token(Terms(pattern=device))
        string, csr = self._strings[device], self._requests[device]
        service = JoinService(peers, DEVICES)
        nonce = (await service.challenge(device)).nonce
        shown = proof.prove(proof.key_of(string.secret), nonce, string.pin, csr)
        answer = await service.join(Joining(string.token, nonce, csr, shown, device), device)
        assert isinstance(answer, IssuedIdentity)
        self.certificates[device] = answer.certificate
        self.joined[device].set()

    async def revoke(self, api: AuthorityApi, device: DeviceId) -> None:
        """An operator ends an identity."""
        with contextlib.suppress(ShoalError):  # the server ends, or its disk fails: then it may hold or not
            await api.revoke(device, "someone stole it")

    def shown(self, device: DeviceId) -> Mapping[str, Any]:
        """What TLS knows of a device's connection."""
        return {"ssl_tls_version": [b"TLSv1.3"], "x509_pem_cert": [self.certificates[device]]}
