"""How to wait for a server: full jitter, so that a fleet does not come back all at once."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from fedcore.errors import Unavailable

T = TypeVar("T")

FIRST, MOST = 1.0, 60.0
"""Seconds: bounds of the first wait and of every wait, where the server has named no window."""


class Backoff:
    """Waits that grow with each failure in a row, inside a window that the server may set."""

    def __init__(self, chance: Random | None = None) -> None:
        self._chance = chance or Random()
        self._failures = 0
        self._earliest, self._latest = 0.0, MOST

    def window(self, earliest: float, latest: float) -> float:
        """Stay between these seconds from now on; a moment between them."""
        self._earliest, self._latest = earliest, latest
        return self._chance.uniform(earliest, latest)

    def next(self) -> float:
        """How many seconds to wait after one more failure."""
        grown = max(self._earliest, FIRST) * 2.0 ** min(self._failures, 16)
        self._failures += 1
        return self._chance.uniform(self._earliest, min(self._latest, grown))

    def reset(self) -> None:
        """A try has worked."""
        self._failures = 0


async def patiently(
    call: Callable[[], Awaitable[T]], backoff: Backoff, patience: float, doing: Callable[[str], None]
) -> T:
    """Call until the server is there, for at most `patience` seconds; `doing` hears what is waited for.

    Raises what the call raises, and Unavailable when the patience is over.
    """
    clock = asyncio.get_running_loop().time
    since = clock()
    while True:
        try:
            result = await call()
        except Unavailable as error:
            wait = backoff.next()
            if clock() + wait - since > patience:
                raise
            doing(f"waiting for the server: {error.message}; next try in {wait:.0f} s")
            await asyncio.sleep(wait)
        else:
            backoff.reset()
            return result
