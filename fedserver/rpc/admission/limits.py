"""How much at once, and how often: of one device, and of all together.

A device that works is never turned away for those that arrive: only `Hello` and `Place`, with which a device
arrives, are paced, and each device has places of its own. A refusal says when to come again.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fedserver.config import Settings
from fedserver.rpc.admission.identity import Context, Identify, address_of
from fedserver.rpc.admission.messages import Behavior
from shoal.core.engine.token_bucket import TokenBucket
from shoal.core.errors import BadPayload, Busy, TooOften
from shoal.core.types import DeviceId

AT_ONCE, FURTHEST = 100.0, 45.0
"""Devices that may arrive at one moment, and the seconds after which the last of a crowd may, unless all
devices together take longer: sent back too early, they would come and be sent away again and again."""
OWN_ARRIVALS, OWN_AT_ONCE = 1.0, 20.0
"""The same of one device: it cannot fill the queue of all."""
CALLS, MIN_CALLS, CROWDED_CALLS, ALL_CALLS = 8, 3, 8_192, 65_536
"""Calls of one device at a time; how many it may have while more than CROWDED_CALLS of all are open; and
calls of all. A device that works needs three: for a task or a report, for uploads, and for heartbeats."""
WAITS = 4
"""Calls of one device that wait for a task at a time. It needs one; those of a connection that was lost last
until the server notices."""
TRANSFERS, ALL_TRANSFERS = 4, 256
"""Transfers of one device at a time, and of all; each takes up to 8 MB of memory. While more than half are
taken, each device gets one."""

OURS = "/fed.v1."
ARRIVING = ("/fed.v1.DeviceService/Hello", "/fed.v1.PlacementService/Place")
WAITING = "/fed.v1.DeviceService/NextTask"
MOVING = ("/fed.v1.BlobService/Fetch", "/fed.v1.BlobService/Upload")


class Places:
    """Places for calls, by device: a device with many cannot take those of others.

    each: places of one device; least: what is left to it while more than `crowded` of all are taken. full:
    when no more are given. what, whose: their name, and that of a caller, in errors.
    """

    def __init__(
        self, what: str, each: int, least: int, crowded: int, full: int, whose: str = "device"
    ) -> None:
        self._whose = whose
        self._what, self._each, self._least, self._crowded, self._full = what, each, least, crowded, full
        self._taken: Counter[DeviceId] = Counter()
        self._all = 0

    @property
    def left(self) -> int:
        """How many places of all are free."""
        return self._full - self._all

    @contextmanager
    def taken(self, device: DeviceId) -> Iterator[None]:
        """Take a place for the block. Raises TooOften or Busy."""
        own = self._taken[device]
        if own >= self._each:
            raise TooOften(
                f"{self._whose} {device} has {own} {self._what} in progress",
                f"end one of them first; does another process use the name of this {self._whose}?",
                (1.0, 5.0),
            )
        if self._all >= self._full or (self._all >= self._crowded and own >= self._least):
            taken = f"{self._all} {self._what}"
            problem = f"the server has {taken} in progress, and takes no more of this {self._whose}"
            raise Busy(problem, "try again in a moment", (1.0, 10.0))
        self._taken[device] += 1
        self._all += 1
        try:
            yield
        finally:
            self._all -= 1
            self._taken[device] -= 1
            if not self._taken[device]:
                del self._taken[device]


class Admission:
    """Limits the calls of each device, and the transfers and arrivals of all.

    arrivals: devices that may arrive in a second. fleet: how many devices there are. waiting: calls that may
    wait for a task at a time. These have places of their own, so that an idle fleet takes none of those of
    the devices that work.
    """

    def __init__(
        self,
        identify: Identify,
        arrivals: float = Settings.arrivals,
        waiting: int = Settings.waiting,
        fleet: Callable[[], int] = lambda: 0,
    ) -> None:
        self._identify, self._fleet = identify, fleet
        self._calls = Places("calls", CALLS, MIN_CALLS, CROWDED_CALLS, ALL_CALLS)
        self._waits = Places("calls for a task", WAITS, WAITS, waiting, waiting)
        self._transfers = Places("transfers", TRANSFERS, 1, ALL_TRANSFERS // 2, ALL_TRANSFERS)
        self._arrivals = TokenBucket(arrivals, AT_ONCE, FURTHEST)
        self._own: dict[DeviceId, TokenBucket] = {}

    def places(self) -> dict[str, int]:
        """How many more calls, calls that wait for a task, and transfers devices may begin."""
        return {
            "calls": self._calls.left,
            "waiting": self._waits.left,
            "transfers": self._transfers.left,
        }

    def around(self, method: str, behavior: Behavior) -> Behavior:
        if not method:
            return behavior
        places = self._places_for(method)

        async def answered(request: Any, context: Context) -> Any:
            device = self._device(method, context)
            if method in ARRIVING:
                self._arrive(device)
            with places.taken(device):
                return await behavior(request, context)

        return answered

    def _places_for(self, method: str) -> Places:
        if method in MOVING:
            return self._transfers
        return self._waits if method == WAITING else self._calls

    def _device(self, method: str, context: Context) -> DeviceId:
        """Whose places a call takes. In plain text, a call for the server's health does not say who calls."""
        try:
            return self._identify(context)
        except BadPayload:
            if method.startswith(OURS):
                raise
            return address_of(context)

    def _arrive(self, device: DeviceId) -> None:
        """Count an arrival. Raises TooOften if this device arrives too often, Busy if too many do."""
        now = asyncio.get_running_loop().time()
        self._arrivals.furthest = max(FURTHEST, self._fleet() / self._arrivals.rate)
        own = self._own.setdefault(device, TokenBucket(OWN_ARRIVALS, OWN_AT_ONCE, FURTHEST))
        for pace in (own, self._arrivals):
            if delay := pace.delay(now):
                window, hint = (delay, delay + 1.0), f"try again in {delay:.0f} s"
                if pace is own:
                    raise TooOften(f"device {device} arrives too often", hint, window)
                raise Busy("many devices arrive at once", hint, window)
