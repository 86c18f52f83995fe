"""How to wait for a server: full jitter, so that a fleet does not come back all at once."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from shoal.core.errors import Unavailable

T = TypeVar("T")

FIRST, MOST = 1.0, 45.0
"""Seconds: the longest first wait where the server has not said, and the longest of all. With MOST a fleet is
whole again within a minute after the server is back, however long it was away."""


class Backoff:
    """Waits of random length, whose bound doubles with each failure in a row.

    first: the longest first wait, in seconds; a server says it to a fleet, so that what it lost at one moment
    does not come back at one moment.
    """

    def __init__(self, chance: Random | None = None) -> None:
        self.first = FIRST
        self._chance = chance or Random()
        self._failures = 0

    def between(self, earliest: float, latest: float) -> float:
        """A moment in a window that the server gave, in seconds from now."""
        return self._chance.uniform(earliest, latest)

    def next(self, window: tuple[float, float] | None = None) -> float:
        """Seconds to wait after one more failure: in the window that came with it, if one did."""
        grown = min(MOST, self.first * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return self.between(*(window or (0.0, grown)))

    def reset(self) -> None:
        """A try has worked."""
        self._failures = 0


async def patiently(
    call: Callable[[], Awaitable[T]], backoff: Backoff, patience: float, doing: Callable[[str], None]
) -> T:
    """Call until the server is there, for at most `patience` seconds.

    doing: hears what is waited for, once for each reason, however many tries it takes. Raises what the call
    raises, and Unavailable when the patience is over.
    """
    clock = asyncio.get_running_loop().time
    since, reason = clock(), ""
    while True:
        try:
            result = await call()
        except Unavailable as error:
            wait = backoff.next(error.window)
            if clock() + wait - since > patience:
                raise
            if error.message != reason:
                reason = error.message
                doing(f"waiting for the server: {error}; it is tried again now and then")
        else:
            backoff.reset()
            return result
        await asyncio.sleep(wait)  # not above: an error in hand keeps its call, and gRPC then dials by itself
