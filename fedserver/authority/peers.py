"""The peer cache: the registry in memory, which is asked at every call of a device.

The registry on disk is the truth. After each change of it, and before the change is reported, the cache gets
the new state of the device that changed. So a check at a call is one look into a dictionary, and a revoked
device is refused from the next call on.
"""

import time
import zlib
from collections.abc import Mapping
from contextlib import AbstractContextManager

from fedserver.authority.issuing import DEVICE_LIFE
from fedserver.authority.open_calls import OpenCalls
from fedserver.authority.roots import Authority
from fedserver.store.identities.records import Certified, DeviceStanding, Registered
from fedserver.store.store import Storage
from shoal.core.errors import Revoked, Unauthenticated
from shoal.core.identity.certificates import Named
from shoal.core.identity.certificates import certificate as parsed
from shoal.core.identity.joining import Role
from shoal.core.types import DeviceId

RENEW_AT, SPREAD = 2 / 3, 1 / 15
"""The share of its life after which a certificate is renewed, and the share over which devices are spread."""
NAMED = 3
"""How many devices that wait for approval are named in a notice."""


class Peers:
    """The registry in memory, and the open calls of devices; see `open`. The authority may change while the
    server runs."""

    def __init__(self, storage: Storage, authority: Authority, known: list[Registered], gaps: bool) -> None:
        self.storage, self.authority = storage, authority
        self._known = {each.device: each for each in known}
        self._gaps = gaps
        self._calls = OpenCalls()

    @classmethod
    async def open(cls, storage: Storage, authority: Authority) -> "Peers":
        return cls(
            storage,
            authority,
            await storage.call(storage.identities.registry.all),
            await storage.call(storage.identities.gap.was_accepted),
        )

    async def admit(self, peer: Named, certificate: bytes) -> Registered:
        """Find the device behind a certificate (PEM) that TLS has verified. peer: what the certificate says.

        Raises Unauthenticated for a certificate that is not valid, Revoked for a device that was revoked.
        """
        if self._gaps and self._certified(peer) is None:
            shown = parsed(certificate)
            if device := await self.storage.call(
                self.storage.identities.gap.take_up, peer, shown, self.authority
            ):
                self.learn(device)
        known, certified = self._check(peer)
        if certified.first_used is None:
            self.learn(
                await self.storage.call(self.storage.identities.registry.use_certificate, certified.serial)
            )
            known, _ = self._check(peer)
        return known

    def _check(self, peer: Named) -> tuple[Registered, Certified]:
        known = self._known.get(peer.device)
        if peer.federation != self.authority.federation or known is None:
            raise Unauthenticated(
                f"no device {peer.device} of federation {peer.federation} is known here",
                f"join the federation {self.authority.federation} first, with: fedclient join",
            )
        self._check_standing(known)
        found = self._certified(peer)
        if found is None or found.root not in self.authority.roots:
            raise Unauthenticated(
                f"this certificate of device {peer.device} is not valid: a newer one has replaced it, or it "
                "was not issued here",
                "use the newest one; if it is lost, join again under a new name",
            )
        if time.time() >= found.expires:
            raise Unauthenticated(
                f"the certificate of device {peer.device} has expired", "it can rejoin with its last key"
            )
        return known, found

    def _certified(self, peer: Named) -> Certified | None:
        """The certificate, if it is in the registry and valid.

        The key is compared too: anyone who has stolen a root's key can sign another certificate with the same
        device and serial, but only for a key of its own.
        """
        known = self._known.get(peer.device)
        certificates = known.certificates if known else ()
        return next(
            (each for each in certificates if (each.serial, each.spki) == (peer.serial, peer.spki)), None
        )

    def _check_standing(self, known: Registered) -> None:
        if known.standing is DeviceStanding.REVOKED:
            raise Revoked(f"device {known.device} was revoked", "ask the server's operator")
        if known.standing is DeviceStanding.PENDING:
            raise Unauthenticated(f"device {known.device} waits for approval", "ask the server's operator")

    def learn(self, known: Registered) -> None:
        """Replace the cached state of a device, after the registry has changed."""
        self._known[known.device] = known

    def known(self) -> list[Registered]:
        """All devices, by name."""
        return [self._known[device] for device in sorted(self._known)]

    def notices(self) -> tuple[str, ...]:
        """For operators: which devices wait for approval."""
        waiting = [each.device for each in self.known() if each.standing is DeviceStanding.PENDING]
        if not waiting:
            return ()
        more = f" and {len(waiting) - NAMED} more" if len(waiting) > NAMED else ""
        who = f"{len(waiting)} devices wait" if len(waiting) > 1 else "1 device waits"
        verb = "fedserver device approve " + (waiting[0] if len(waiting) == 1 else "--all")
        return (f"{who} for approval, {', '.join(waiting[:NAMED])}{more}: {verb}",)

    def role(self, device: DeviceId) -> Role:
        """What a known device may do."""
        return self._known[device].role

    def may_train(self, device: DeviceId) -> bool:
        """Whether a device may take part in runs."""
        return self.role(device) is Role.TRAIN

    def labels(self, device: DeviceId) -> Mapping[str, str]:
        """The labels of a device, which its token gave it; none if it is not known."""
        known = self._known.get(device)
        return known.labels if known else {}

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

    # -- cutting off ----------------------------------------------------------------------------------------

    def calling(self, device: DeviceId) -> AbstractContextManager[None]:
        """Around a call of a device; raises Revoked in it as soon as the device is revoked."""
        return self._calls.calling(device, lambda: self._check_standing(self._known[device]))

    def cut(self, device: DeviceId) -> int:
        """End the open calls of a device; return how many there were."""
        return self._calls.cut(device)
