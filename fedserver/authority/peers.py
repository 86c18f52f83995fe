"""The peer cache: the registry in memory, which is asked at every call of a device.

The registry on disk is the truth. After each change of it, and before the change is reported, the cache gets
the new state of the device that changed. So a check at a call is one look into a dictionary, and a revoked
device is refused from the next call on.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager

from fedserver.authority.authority import Authority
from fedserver.authority.open_calls import OpenCalls
from fedserver.store.identities.records import DeviceStanding, Registered
from fedserver.store.store import Storage
from shoal.core.errors import Revoked, Unauthenticated
from shoal.core.identity.certificates import OPERATOR, Named
from shoal.core.identity.joining import Role
from shoal.core.texts import listed
from shoal.core.types import DeviceId

MAX_NAMED = 3
"""How many devices that wait for approval are named in a notice."""


class Peers:
    """The registry in memory, and the open calls of devices; see `open`. The authority may change while the
    server runs."""

    def __init__(self, storage: Storage, authority: Authority, known: list[Registered]) -> None:
        self.storage, self.authority = storage, authority
        self._known = {each.device: each for each in known}
        self._keys = {each.spki: each.device for each in known}
        self._calls = OpenCalls()

    @classmethod
    async def open(cls, storage: Storage, authority: Authority) -> "Peers":
        return cls(storage, authority, await storage.call(storage.identities.registry.all))

    def admit(self, peer: Named) -> Registered:
        """Find the device behind a certificate that TLS has verified. peer: what the certificate says.

        The key decides: anyone who has stolen the authority's key can sign a certificate with any name, but
        only for a key of its own. Raises Unauthenticated for a key that does not hold, Revoked for a device
        that was revoked.
        """
        known = self._known.get(peer.name)
        if peer.federation != self.authority.federation or peer.kind == OPERATOR or known is None:
            raise Unauthenticated(
                f"no device {peer.name} of federation {peer.federation} is known here",
                f"join the federation {self.authority.federation} first, with: fedclient join",
            )
        if known.spki != peer.spki:
            raise Unauthenticated(
                f"this key is not that of device {peer.name}",
                "use the key that it has; if that is lost, join again under the same name",
            )
        self._check_standing(known)
        return known

    def _check_standing(self, known: Registered) -> None:
        if known.standing.ended:
            raise Revoked(f"device {known.device} was {known.standing.value}", "ask the server's operator")
        if known.standing is DeviceStanding.PENDING:
            raise Unauthenticated(f"device {known.device} waits for approval", "ask the server's operator")

    def learn(self, known: Registered) -> None:
        """Replace the cached state of a device, after the registry has changed."""
        if former := self._known.get(known.device):
            self._keys.pop(former.spki, None)
        self._known[known.device] = known
        self._keys[known.spki] = known.device

    def known(self) -> list[Registered]:
        """All devices, by name."""
        return [self._known[device] for device in sorted(self._known)]

    def device_of(self, spki: str) -> DeviceId | None:
        """The device that has this key; None: none has."""
        return self._keys.get(spki)

    def notices(self) -> tuple[str, ...]:
        """For operators: which devices wait for approval."""
        waiting = [each.device for each in self.known() if each.waits]
        if not waiting:
            return ()
        who = f"{len(waiting)} devices wait" if len(waiting) > 1 else "1 device waits"
        verb = "fedserver device approve " + (waiting[0] if len(waiting) == 1 else "--all")
        return (f"{who} for approval, {listed(waiting, MAX_NAMED)}: {verb}",)

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

    # -- cutting off ----------------------------------------------------------------------------------------

    def calling(self, device: DeviceId) -> AbstractContextManager[None]:
        """Around a call of a device; raises Revoked in it as soon as the device is revoked, and
        Unauthenticated when it has another key."""
        return self._calls.calling(device, lambda: self._end(device))

    def _end(self, device: DeviceId) -> None:
        self._check_standing(self._known[device])
        raise Unauthenticated(f"device {device} has another key", "use that one")

    def cut(self, device: DeviceId) -> int:
        """End the open calls of a device; return how many there were."""
        return self._calls.cut(device)
