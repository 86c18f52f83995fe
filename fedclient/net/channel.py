"""A connection that is dialled when it is needed, and anew when it broke or fell silent.

gRPC would go on dialling by itself, in a rhythm of its own that no server has asked for, and for a while it
lets every call fail without dialling. So one try is one dial: a channel that failed is never asked again, and
when the next try is due is for `backoff` alone. Calls on a channel that was given up may still end well.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import grpc
from grpc import aio

S = TypeVar("S")

FAULT = "shoal-fault-bin"
"""The trailing metadata that a server of ours puts beside a status: who sends it does answer."""
GONE = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


@dataclass
class _Channel(Generic[S]):
    channel: aio.Channel
    stubs: S
    calls: int = 0


class Line(Generic[S]):
    """dial: a new channel. stubs: what calls are made with, of a channel."""

    def __init__(self, dial: Callable[[], aio.Channel], stubs: Callable[[aio.Channel], S]) -> None:
        self._dial, self._stubs = dial, stubs
        self._current: _Channel[S] | None = None
        self._outdated = False

    @asynccontextmanager
    async def calling(self) -> AsyncIterator[S]:
        """Around one call. An error that says that nobody answers makes the next call dial anew."""
        if self._current is None:
            channel, self._outdated = self._dial(), False
            self._current = _Channel(channel, self._stubs(channel))
        used = self._current
        used.calls += 1
        try:
            yield used.stubs
        except (aio.AioRpcError, TimeoutError) as error:
            if self._current is used and _is_gone(error):
                self.hang_up()
            raise
        finally:
            used.calls -= 1
            await self._let_go(used)

    async def replace(self) -> None:
        """Dial anew, what was dialled for has changed: once no call is under way, so that none is cut."""
        self._outdated = True
        if self._current is not None:
            await self._let_go(self._current)

    async def _let_go(self, used: _Channel[S]) -> None:
        if used.calls:
            return
        if used is self._current and self._outdated:
            self.hang_up()
        if used is not self._current:
            await used.channel.close(None)

    def hang_up(self) -> None:
        """The next call dials anew; calls that are under way go on, and the last of them closes it."""
        self._current = None

    async def close(self) -> None:
        """End it, and every call on it."""
        if self._current is not None:
            await self._current.channel.close(None)


def _is_gone(error: Exception) -> bool:
    """Whether nobody answered, so that the connection may be dead."""
    if isinstance(error, aio.AioRpcError):
        return error.code() in GONE and FAULT not in dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    return True
