"""The registry as a gateway knows it: what the server has sent it since it is connected."""

import time
from collections.abc import Callable

from fedserver.authority.peers import Standings
from fedserver.store.identities.records import Certified, DeviceStanding, Registered
from shoal.core.errors import Unavailable
from shoal.core.exchange._pb.fed.v1 import gateway_service_pb2 as pb
from shoal.core.exchange.wire.identity import ROLE_OF
from shoal.core.identity.certificates import Named
from shoal.core.identity.joining import Role

SOON = (1.0, 5.0)
"""Seconds after which a device may call again that came while a gateway has no server."""


class Followed(Standings):
    """Refuses whom the server would refuse, as far as that is known here. The server asks its own registry,
    too, at each call.

    away: why the server cannot be asked now; None if it can. ready: whether all of the registry has arrived
    once.
    """

    def __init__(self, federation: str, away: Callable[[], Unavailable | None]) -> None:
        super().__init__(())
        self._federation, self._away, self.ready = federation, away, False

    @property
    def federation(self) -> str:
        return self._federation

    def trusts(self, certified: Certified) -> bool:
        return True  # the server sends no others

    def hear(self, found: pb.FollowResponse) -> None:
        """Take in what the server sends. Calls of a device that was revoked are cut."""
        for device in found.devices:
            self.learn(_registered(device))
            if device.revoked:
                self.cut(device.device)
        self.ready = self.ready or found.complete

    async def admit(self, peer: Named, certificate: bytes) -> Registered:
        if not self.ready:
            raise self._away() or away()
        if self._certified(peer) is not None:
            known, _ = self._check(peer)
            return known
        # The certificate may be newer than what has been heard here, so only the server can judge it. To
        # refuse it would end a device that has just joined or renewed.
        if missing := self._away():
            raise missing
        found = self._known.get(peer.device) or _unknown(peer.device)
        if found.standing is DeviceStanding.REVOKED:
            self._check_standing(found)
        return found

    def check_allowed(self, known: Registered, method: str) -> None:
        if known.certificates:
            super().check_allowed(known, method)


def away() -> Unavailable:
    """The error of a call that only the server could answer while there is none."""
    return Unavailable("this gateway has no connection to the server", "try again soon", SOON)


def _registered(device: pb.KnownDevice) -> Registered:
    standing = DeviceStanding.APPROVED if device.approved else DeviceStanding.PENDING
    return Registered(
        device.device,
        device.device,
        ROLE_OF[device.role],
        {},
        DeviceStanding.REVOKED if device.revoked else standing,
        0.0,
        "",
        "",
        tuple(
            Certified(each.serial, each.key, b"", "", (), 0.0, each.expires.ToNanoseconds() / 1e9, 0.0)
            for each in device.certificates
        ),
    )


def _unknown(device: str) -> Registered:
    """A device that only the server can judge."""
    return Registered(device, device, Role.TRAIN, {}, DeviceStanding.APPROVED, time.time(), "", "")
