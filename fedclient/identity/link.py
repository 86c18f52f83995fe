"""A link over mutual TLS that comes back by itself.

If the server has another key than before, or does not know this device's key, the device goes to the joining
port with its key. It gets another certificate, and goes on: after a change of the server's key, however long
it slept, after a change of its own key whose answer was lost, and once an operator has approved it, when a
server that was restored from a backup has forgotten it.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from grpc import aio

from fedclient.faults import WrongServer
from fedclient.identity.connection import Endpoint
from fedclient.identity.join import come_back
from fedclient.identity.keyring import JOIN_AGAIN, Identity, Keyring
from fedclient.identity.rpc import Cause, cause_of, credentials
from fedclient.net.rpc import RpcLink
from fedclient.store.state import DeviceFolder
from shoal.core.errors import Refused, Revoked, ShoalError, StorageFault, Unauthenticated, Unavailable
from shoal.core.identity.joining import Pending


class SecureLink(RpcLink):
    """A device's calls under its identity. address: used instead of the one in the identity.

    say: prints what people may read later.
    """

    def __init__(
        self,
        keyring: Keyring,
        identity: Identity,
        say: Callable[[str], None],
        address: str | None = None,
    ) -> None:
        others = () if address else identity.addresses
        super().__init__(address or identity.address, identity.device, credentials(identity), others)
        self._keyring, self.identity, self._say, self._given = keyring, identity, say, address
        self._one_at_a_time = asyncio.Lock()

    def _learn(self, addresses: Sequence[str]) -> None:
        """Remember where else the leader may be, also for the next start. A given address stays the only
        one."""
        if self._given is None:
            super()._learn(addresses)
            self.identity = replace(self.identity, addresses=self.addresses)
            with suppress(StorageFault):  # the folder may be read-only; after a start it hears them again
                self._keyring.keep(self.identity)

    async def _meaning(self, error: aio.AioRpcError) -> ShoalError:
        found, cause = await super()._meaning(error), cause_of(error.details() or "")
        if cause is not None:
            found = Unavailable(f"no connection to {self.address}: {cause.value}", HINTS[cause])
        if cause in (Cause.CUT, Cause.OTHER_KEY) or isinstance(found, Unauthenticated):
            return await self._come_back(found)
        return found

    async def _come_back(self, refusal: ShoalError) -> ShoalError:
        """Go to the joining port with this device's key. Returns the error for the failed call."""
        used = self.identity
        async with self._one_at_a_time:
            if self.identity is not used:
                return Unavailable("the certificate has just been replaced", "the call is repeated")
            try:
                found = await come_back(self._keyring, used)
            except (Unavailable, WrongServer) as error:
                return Unavailable(f"{refusal.message}; {error.message}", error.hint)
            except Refused as error:
                return error if isinstance(error, Revoked) or not isinstance(refusal, Refused) else refusal
            if isinstance(found, Pending):
                wait = (found.retry_in, 2 * found.retry_in)
                verb = f"fedserver device approve {used.device}"
                return Unavailable(f"{used.device} waits for an operator's approval", verb, wait)
            self.identity = found
            self._say(f"{found.device} came back with its key, and has a new certificate")
            await self.change(self._given or found.address, credentials(found))
            return Unavailable("the certificate was replaced", "the call is repeated")


HINTS = {
    Cause.OTHER_KEY: f"check that this is the right server; if it was set up again, {JOIN_AGAIN}",
    Cause.CUT: "the server may have another key: `fedclient run` asks for another certificate",
    Cause.NO_TLS: "check the port, and that the server runs without --insecure-loopback",
}


@asynccontextmanager
async def opened(
    reached: Endpoint, folder: DeviceFolder, say: Callable[[str], None]
) -> AsyncIterator[RpcLink]:
    """A link to the server, closed at the end, under the device's name, which the folder gets at first."""
    device = folder.device(reached.device)
    if reached.identity is None:
        link = RpcLink(reached.address, device)
    else:
        link = SecureLink(Keyring(folder.identity), reached.identity, say, reached.server)
    try:
        yield link
    finally:
        await link.close()
