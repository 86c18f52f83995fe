"""A link over mutual TLS that keeps its certificate valid.

Renewal: within the time that the server gives at each hello, over the link itself, with a new key. The first
call that finds no other call open uses a new channel with the new certificate, so no open call is cut. A
device that only fetches a model says hello after that, to learn whether it is time to renew. Rejoining: if
the server rejects the certificate, the device asks the enrollment port for the server's clock; if the
certificate is not valid by that clock, the device requests a new one with the key of the old one.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from random import Random

from grpc import aio

from fedclient import SOFTWARE
from fedclient.faults import SomeoneElse
from fedclient.identity.connection import Endpoint
from fedclient.identity.keyring import JOIN_AGAIN, Identity, Keyring, identity_of
from fedclient.identity.rpc import Cause, EnrollmentClient, cause_of, credentials, enrollment, renewed
from fedclient.net.backoff import Backoff, patiently
from fedclient.net.rpc import RpcLink, error_of
from fedclient.store.state import DeviceFolder
from shoal.core.errors import Refused, ShoalError, StorageFault, Unauthenticated, Unavailable
from shoal.core.exchange.link import Hello, Observation, Welcome
from shoal.core.identity.certificates import key_from_pem
from shoal.core.identity.joining import IssuedIdentity, Rejoining, Role
from shoal.core.identity.proof import sign

SOONEST = 1.0
"""The least number of seconds between two renewals, whatever the server says."""
JITTER = 0.1
"""Share of the time until a renewal that is added at random, so that a fleet does not renew all at once."""
DAY = 86_400.0


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
        chance: Random | None = None,
    ) -> None:
        others = () if address else identity.addresses
        super().__init__(address or identity.address, identity.device, credentials(identity), others)
        self._keyring, self.identity, self._say, self._given = keyring, identity, say, address
        self._chance, self._backoff = chance or Random(), Backoff(chance)
        self._one_at_a_time = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None

    async def hello(self, hello: Hello) -> Welcome:
        welcome = await super().hello(hello)
        if welcome.renew_in is not None:
            self._renew_in(welcome.renew_in)
        return welcome

    async def renew_if_required(self, hello: Hello) -> None:
        """Ask the server, with one more hello, whether it is time to renew, and renew if so.

        For devices that do not stay connected. An error is only printed: the next visit can still renew.
        """
        try:
            welcome = await super().hello(hello)
            await self.leave()  # this device takes no task
            if welcome.renew_in is not None and welcome.renew_in <= 0.0:
                await self._renew()
        except ShoalError as error:
            self._say(f"the certificate could not be renewed: {error}; trying again at the next visit")

    async def observe(self) -> Observation:
        """The state of all runs. Renews first if it is time, since an observer says no hello."""
        found = await super().observe()
        if found.renew_in <= 0.0:
            try:
                await self._renew()
            except ShoalError as error:
                self._say(f"the certificate could not be renewed: {error}; trying again at the next look")
        return found

    async def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.gather(self._renewal, return_exceptions=True)
        await super().close()

    # -- renewal ----------------------------------------------------------------------------------------

    def _renew_in(self, seconds: float) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        self._renewal = asyncio.create_task(self._renew_later(seconds))

    async def _renew_later(self, seconds: float) -> None:
        """Renew again and again, as long as the link is open; an error that ends this is printed once."""
        try:
            while True:
                await asyncio.sleep(seconds * (1.0 + JITTER * self._chance.random()))
                issued = await patiently(self._renew, self._backoff, float("inf"), lambda text: None)
                seconds = max(issued.renew_in, SOONEST)
        except ShoalError as error:
            self._say(f"the certificate could not be renewed: {error}; trying again at the next hello")

    async def _renew(self) -> IssuedIdentity:
        async with self._one_at_a_time:
            asking = self._keyring.asking()
            try:
                async with self._channel.calling() as to:
                    issued = await renewed(to.identity, asking.csr)
            except aio.AioRpcError as error:
                raise error_of(error, self.address) from None
            await self._adopt(identity_of(asking, issued, self.identity.joining_port))
            return issued

    def _learn(self, addresses: Sequence[str]) -> None:
        """Remember where else the leader may be, also for the next start. A given address stays the only
        one."""
        if self._given is None:
            super()._learn(addresses)
            self.identity = replace(self.identity, addresses=self.addresses)
            with suppress(StorageFault):  # the folder may be read-only; after a start it hears them again
                self._keyring.keep(self.identity)

    async def _adopt(self, identity: Identity) -> None:
        """Store an identity, and only then use it."""
        identity = replace(identity, addresses=self.identity.addresses)
        self._keyring.keep(identity)
        self.identity = identity
        self._say(f"{identity.device} has a new certificate, valid until {identity.ends:%Y-%m-%d %H:%M} UTC")
        await self.change(self._given or identity.address, credentials(identity))

    # -- what kept a call from working --------------------------------------------------------------------

    async def _meaning(self, error: aio.AioRpcError) -> ShoalError:
        found, cause = await super()._meaning(error), cause_of(error.details() or "")
        if cause is Cause.CUT or isinstance(found, Unauthenticated):
            return await self._after_refusal(found)
        if cause is Cause.OUT_OF_TIME:
            return await self._wrong_clock()
        if cause is None:
            return found
        return Unavailable(f"no connection to {self.address}: {cause.value}", HINTS[cause])

    async def _after_refusal(self, refusal: ShoalError) -> ShoalError:
        """The server rejected the certificate. Rejoin if by the server's clock it has expired, or is not
        valid yet: then that clock was wrong when it was signed."""
        used = self.identity
        async with self._one_at_a_time:
            if self.identity is not used:
                return Unavailable("the certificate has just been replaced", "the call is repeated")
            try:
                async with enrollment(used.joining_port) as port:
                    clock = (await port.challenge()).clock
                    if not used.begins.timestamp() <= clock <= used.ends.timestamp():
                        return await self._rejoin(port)
            except (Unavailable, SomeoneElse) as error:
                return Unavailable(f"{refusal.message}; {error.message}", error.hint)
            return refusal

    async def _rejoin(self, port: EnrollmentClient) -> ShoalError:
        """Ask for a certificate with the key of the last one. Returns the error for the failed call."""
        last, asking = self.identity, self._keyring.asking()
        valid = f"{last.begins:%Y-%m-%d} to {last.ends:%Y-%m-%d}"
        self._say(f"the certificate of {last.device} is valid from {valid}: asking for a new one")
        nonce = (await port.challenge()).nonce
        signature = sign(key_from_pem(last.key), nonce, last.joining_port.pin, asking.csr)
        try:
            issued = await port.rejoin(Rejoining(last.certificate, nonce, asking.csr, signature))
        except Refused as error:
            return error
        await self._adopt(identity_of(asking, issued, last.joining_port))
        self._renew_in(issued.renew_in)
        return Unavailable("the certificate was not valid now and has been replaced", "the call is repeated")

    async def _wrong_clock(self) -> ShoalError:
        """The server's certificate is not valid by this device's clock: find out whose clock is wrong."""
        try:
            async with enrollment(self.identity.joining_port) as port:
                ahead = (time.time() - (await port.challenge()).clock) / DAY
        except (Unavailable, SomeoneElse) as error:
            return Unavailable(error.message, error.hint)
        if abs(ahead) < 1.0:
            message = f"the certificate of {self.address} is not valid today"
            return Unavailable(message, "its operator has to renew it")
        way = "ahead of" if ahead > 0 else "behind"
        message = f"this device's clock is {abs(ahead):.0f} days {way} the server's"
        return Unavailable(f"{message}, so its certificate is not valid here", "set this device's clock")


HINTS = {
    Cause.OTHER_NAME: "use a server name that is in its certificate, or have its operator add this one",
    Cause.OTHER_AUTHORITY: f"check that this is the right server; if it was set up again, {JOIN_AGAIN}",
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


async def renewed_if_required(link: RpcLink, folder: DeviceFolder) -> None:
    """Renew the certificate of a device that was placed, if it is time; the agent of one that trains does."""
    if isinstance(link, SecureLink) and link.identity.role is not Role.TRAIN:
        await link.renew_if_required(Hello(SOFTWARE, mark=folder.mark.read()))
