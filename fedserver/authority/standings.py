"""Which devices may call, in memory: what the server and its gateways ask at every call."""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping

from fedserver.store.identities.records import Certified, DeviceStanding, Registered
from shoal.core.errors import Revoked, Unauthenticated
from shoal.core.identity.certificates import Named
from shoal.core.identity.joining import Role
from shoal.core.types import DeviceId


class Standings:
    """The devices that are known, and their open calls."""

    def __init__(self, known: Iterable[Registered]) -> None:
        self._known = {each.device: each for each in known}
        self._calls: dict[DeviceId, set[asyncio.Task[object]]] = {}

    @property
    def federation(self) -> str:
        """The name that certificates of these devices carry."""
        raise NotImplementedError

    def trusts(self, certified: Certified) -> bool:
        """Whether the root that signed a certificate is still trusted."""
        raise NotImplementedError

    async def admit(self, peer: Named, certificate: bytes) -> Registered:
        """Find the device behind a certificate (PEM) that TLS has verified. peer: what the certificate says.

        Raises Unauthenticated for a certificate that is not valid, Revoked for a device that was revoked.
        """
        raise NotImplementedError

    async def note_denied(self, **facts: object) -> None:
        """Record a call that was denied, where operators look."""

    def _check(self, peer: Named) -> tuple[Registered, Certified]:
        known = self._known.get(peer.device)
        if peer.federation != self.federation or known is None:
            raise Unauthenticated(
                f"no device {peer.device} of federation {peer.federation} is known here",
                f"join the federation {self.federation} first, with: fedclient join",
            )
        self._check_standing(known)
        found = self._certified(peer)
        if found is None or not self.trusts(found):
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

    @contextlib.contextmanager
    def calling(self, device: DeviceId) -> Iterator[None]:
        """Around a call of a device; raises Revoked in it as soon as the device is revoked."""
        task = asyncio.current_task()
        assert task is not None
        calls = self._calls.setdefault(device, set())
        calls.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._calls.get(device) is calls:
                raise  # the caller went away
            task.uncancel()
            self._check_standing(self._known[device])
            raise
        finally:
            calls.discard(task)
            if not calls and self._calls.get(device) is calls:
                del self._calls[device]

    def cut(self, device: DeviceId) -> int:
        """End the open calls of a device; return how many there were."""
        calls = self._calls.pop(device, set())
        for task in calls:
            task.cancel()
        return len(calls)
