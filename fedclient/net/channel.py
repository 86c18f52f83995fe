"""A connection that is dialed when it is needed, and dialed again after it broke or fell silent.

Left to itself, gRPC redials in its own rhythm, which no server asked for, and in between lets every call fail
without dialing. Here one attempt is one dial: a channel that failed is never used for a new call, and only
`backoff` decides when the next attempt is made. Calls that are still open on an abandoned channel may
succeed.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc
from grpc import aio

S = TypeVar("S")

FAULT = "shoal-fault-bin"
"""The trailing metadata that a Shoal server adds to a status. If it is there, the server did answer."""
CONNECTION_LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass
class _Channel(Generic[S]):
    channel: aio.Channel
    stubs: S
    calls: int = 0


class Redialed(Generic[S]):
    """A channel that is replaced after a failure. dial: opens one. stubs: makes the stubs of a channel."""

    def __init__(self, dial: Callable[[], aio.Channel], stubs: Callable[[aio.Channel], S]) -> None:
        self._dial, self._stubs = dial, stubs
        self._current: _Channel[S] | None = None
        self._outdated = False

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[S]:
        """Around one call. An error that means that no server answers makes the next call dial again."""
        if self._current is None:
            channel, self._outdated = self._dial(), False
            self._current = _Channel(channel, self._stubs(channel))
        used = self._current
        used.calls += 1
        try:
            yield used.stubs
        except (aio.AioRpcError, TimeoutError) as error:
            if self._current is used and is_gone(error):
                self.hang_up()
            raise
        finally:
            used.calls -= 1
            await self._release(used)

    async def replace(self) -> None:
        """Dial again, because the address or the credentials changed, as soon as no call is open."""
        self._outdated = True
        if self._current is not None:
            await self._release(self._current)

    async def _release(self, used: _Channel[S]) -> None:
        if used.calls:
            return
        if used is self._current and self._outdated:
            self.hang_up()
        if used is not self._current:
            await used.channel.close(None)

    def hang_up(self) -> None:
        """Let the next call dial again. Open calls continue, and the last of them closes the channel."""
        self._current = None

    async def close(self) -> None:
        """Close the channel and every call on it."""
        if self._current is not None:
            await self._current.channel.close(None)


def is_gone(error: Exception) -> bool:
    """Whether no server answered, so that the connection may be dead."""
    if isinstance(error, aio.AioRpcError):
        return error.code() in CONNECTION_LOST and FAULT not in dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    return True
