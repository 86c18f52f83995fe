"""Waiting for a server: exponential backoff with full jitter, so that a fleet does not return all at once."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

from shoal.core.errors import SessionLost, ShoalError, Unavailable

T = TypeVar("T")

FIRST_WAIT, MAX_WAIT = 1.0, 45.0
"""Seconds: the longest first wait, unless the server sets one, and the longest wait of all. MAX_WAIT lets a
fleet be complete again within a minute after the server is back, however long it was away."""


class Backoff:
    """Waits of random length, whose bound doubles with each failure in a row.

    first: the longest first wait, in seconds. A server sends it to its fleet, so that devices that it lost at
    one moment do not all return at one moment.
    """

    def __init__(self, chance: Random | None = None) -> None:
        self.first = FIRST_WAIT
        self._chance = chance or Random()
        self._failures = 0

    def between(self, earliest: float, latest: float) -> float:
        """A random moment in a window that the server gave, in seconds from now."""
        return self._chance.uniform(earliest, latest)

    def next(self, window: tuple[float, float] | None = None) -> float:
        """Seconds to wait after one more failure: within `window`, if the server sent one."""
        grown = min(MAX_WAIT, self.first * 2.0 ** min(self._failures, 16))
        self._failures += 1
        return self.between(*(window or (0.0, grown)))

    def reset(self) -> None:
        """What failed has succeeded: what fails next is the first one in a row."""
        self._failures = 0


async def patiently(
    call: Callable[[], Awaitable[T]], backoff: Backoff, give_up_after: float, doing: Callable[[str], None]
) -> T:
    """Call until the server answers, for at most `give_up_after` seconds.

    doing: reports what the call waits for, once for each reason, however many attempts it takes. Raises what
    the call raises, and Unavailable when the time is over. Any other error is an answer, too, and ends the
    row of failures: code that calls again after such errors counts them with a Backoff of its own.
    """
    clock = asyncio.get_running_loop().time
    since, reason = clock(), ""
    while True:
        try:
            result = await call()
        except Unavailable as error:
            wait = backoff.next(error.window)
            if clock() + wait - since > give_up_after:
                raise
            if error.message != reason:
                reason = error.message
                doing(f"waiting for the server: {error}; trying again from time to time")
        except ShoalError:
            backoff.reset()
            raise
        else:
            backoff.reset()
            return result
        # Outside of the except block: a live error keeps its call alive, and gRPC would dial.
        await asyncio.sleep(wait)


async def heard(answer: Awaitable[T]) -> T:
    """The answer. A lost session is recognized by its code: without a wire it is the server's own error."""
    try:
        return await answer
    except ShoalError as error:
        if error.code == SessionLost.code:
            raise SessionLost(error.message, error.hint) from None
        raise
