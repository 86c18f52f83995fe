"""The peer cache: the registry in memory, which is asked at every call of a device.

The registry on disk is the truth. After each change of it, and before the change is reported, the cache gets
the new state of the device that changed. So a check at a call is one look into a dictionary, and a revoked
device is refused from the next call on.
"""

import asyncio
import contextlib
import itertools
import time
import zlib
from collections.abc import Iterator, Mapping

from fedserver.authority.issuing import DEVICE_LIFE
from fedserver.authority.roots import Authority
from fedserver.authority.standings import Standings
from fedserver.store.identities.audit import Event
from fedserver.store.identities.records import Certified, Registered
from fedserver.store.store import Storage
from shoal.core.identity.certificates import Named
from shoal.core.identity.certificates import certificate as parsed
from shoal.core.types import DeviceId

RENEW_AT, SPREAD = 2 / 3, 1 / 15
"""The share of its life after which a certificate is renewed, and the share over which devices are spread."""


class Peers(Standings):
    """The registry in memory; see `open`. The authority may change while the server runs."""

    def __init__(self, storage: Storage, authority: Authority, known: list[Registered], gaps: bool) -> None:
        super().__init__(known)
        self.storage, self.authority = storage, authority
        self._gaps = gaps
        self._followers: set[Changes] = set()

    @classmethod
    async def open(cls, storage: Storage, authority: Authority) -> "Peers":
        return cls(
            storage,
            authority,
            await storage.identities.devices(),
            await storage.identities.gap_was_accepted(),
        )

    @property
    def federation(self) -> str:
        return self.authority.federation

    def trusts(self, certified: Certified) -> bool:
        return certified.root in self.authority.roots

    async def note_denied(self, **facts: object) -> None:
        await self.storage.identities.note_event(Event.DENIED, **facts)

    async def admit(self, peer: Named, certificate: bytes) -> Registered:
        if self._gaps and self._certified(peer) is None:
            shown = parsed(certificate)
            if device := await self.storage.identities.take_up(peer, shown, self.authority):
                self.learn(device)
        known, certified = self._check(peer)
        if certified.first_used is None:
            self.learn(await self.storage.identities.use_certificate(certified.serial))
            known, _ = self._check(peer)
        return known

    def learn(self, known: Registered) -> None:
        super().learn(known)
        for follower in self._followers:
            follower.note(known)

    @contextlib.contextmanager
    def followed(self) -> Iterator["Changes"]:
        """All devices, and then each that changes, for the block."""
        changes = Changes(self._known, self._gaps)
        self._followers.add(changes)
        try:
            yield changes
        finally:
            self._followers.discard(changes)

    def knows(self, peer: Named) -> bool:
        """Whether a certificate is in the registry, or may be in the gap of a restored one."""
        return self._gaps or self._certified(peer) is not None

    def renew_in(self, device: DeviceId, serial: str) -> float:
        """Seconds until the next certificate is required; 0 if the authorities have changed."""
        certificates = self._known[device].certificates
        certified = next((each for each in certificates if each.serial == serial), None)
        return 0.0 if certified is None else self.renewal_in(certified)

    def renewal_in(self, certified: Certified) -> float:
        """Seconds until the certificate after this one is required, slightly different for each device."""
        if certified.root != self.authority.issuing or set(certified.bundle) != set(self.authority.roots):
            return 0.0
        share = RENEW_AT - SPREAD * (zlib.crc32(certified.serial.encode()) / (1 << 32))
        return max(0.0, certified.issued + share * DEVICE_LIFE - time.time())


class Changes:
    """The devices that a gateway does not know as they are now. accepts_others: see `Peers.knows`.

    Of a device that changes twice only the last state is kept, so that these are never more than the devices.
    """

    def __init__(self, known: Mapping[DeviceId, Registered], accepts_others: bool) -> None:
        self.accepts_others = accepts_others
        self._pending, self._some = dict(known), asyncio.Event()
        self._some.set()

    def note(self, known: Registered) -> None:
        self._pending[known.device] = known
        self._some.set()

    async def next(self, most: int, within: float) -> list[Registered]:
        """At most `most` of them, as soon as there are any; none after `within` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._some.wait()
        found = [self._pending.pop(name) for name in list(itertools.islice(self._pending, most))]
        if not self._pending:
            self._some.clear()
        return found

    @property
    def complete(self) -> bool:
        """Whether nothing is pending."""
        return not self._pending
