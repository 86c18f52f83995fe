"""How much at once, and how often: of one device, and of all together.

A device that works is never turned away for those that arrive: only `Hello` and `Place`, with which a device
arrives, are paced, and each device has places of its own. A refusal says when to come again.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import grpc
from grpc import aio

from fedserver.rpc.errors import Behavior, around
from fedserver.rpc.identity import Callers
from shoal.core.engine.pacing import Pace
from shoal.core.errors import Busy, TooOften
from shoal.core.types import DeviceId

ARRIVALS, AT_ONCE, FURTHEST = 50.0, 100.0, 45.0
"""Devices that may arrive in a second, and at one moment; seconds after which the last of a crowd may."""
OWN_ARRIVALS, OWN_AT_ONCE = 1.0, 20.0
"""The same of one device: it cannot fill the queue of all."""
CALLS, TRANSFERS, ALL_TRANSFERS = 8, 4, 256
"""Calls and transfers of one device at a time, and transfers of all; each takes up to 5 MB of memory."""

OURS = "/fed.v1."
ARRIVING = ("/fed.v1.DeviceService/Hello", "/fed.v1.PlacementService/Place")
MOVING = ("/fed.v1.BlobService/Fetch", "/fed.v1.BlobService/Upload")


class Admission(aio.ServerInterceptor):  # type: ignore[type-arg]
    """Limits the calls of each device, and the transfers and arrivals of all."""

    def __init__(self, callers: Callers) -> None:
        self._callers = callers
        self._calls: Counter[DeviceId] = Counter()
        self._transfers: Counter[DeviceId] = Counter()
        self._arrivals = Pace(ARRIVALS, AT_ONCE, FURTHEST)
        self._own: dict[DeviceId, Pace] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler, method = await continuation(handler_call_details), handler_call_details.method
        if handler is None or not method.startswith(OURS):
            return handler

        def admitted(behavior: Behavior) -> Behavior:
            async def answered(request: Any, context: Any) -> Any:
                with self._admitted(method, self._callers.identify(context)):
                    return await behavior(request, context)

            return answered

        return around(handler, admitted)

    @contextmanager
    def _admitted(self, method: str, device: DeviceId) -> Iterator[None]:
        """Count a call while it is open. Raises TooOften or Busy."""
        if method in ARRIVING:
            self._arrive(device)
        counted, most = (self._transfers, TRANSFERS) if method in MOVING else (self._calls, CALLS)
        if counted[device] >= most:
            raise TooOften(
                f"device {device} has {most} {'transfers' if method in MOVING else 'calls'} under way",
                "end one of them first; does a second process use this device's name?",
                (1.0, 5.0),
            )
        if method in MOVING and self._transfers.total() >= ALL_TRANSFERS:
            problem = f"the server has {ALL_TRANSFERS} transfers under way, and takes no more"
            raise Busy(problem, "try again in a moment", (1.0, 10.0))
        counted[device] += 1
        try:
            yield
        finally:
            counted[device] -= 1
            if not counted[device]:
                del counted[device]

    def _arrive(self, device: DeviceId) -> None:
        """Count an arrival. Raises TooOften if this device arrives too often, Busy if too many do."""
        now = asyncio.get_running_loop().time()
        own = self._own.setdefault(device, Pace(OWN_ARRIVALS, OWN_AT_ONCE, FURTHEST))
        for pace in (own, self._arrivals):
            if delay := pace.delay(now):
                window, hint = (delay, delay + 1.0), f"try again in {delay:.0f} s"
                if pace is own:
                    raise TooOften(f"device {device} arrives too often", hint, window)
                raise Busy("many devices arrive at once", hint, window)
