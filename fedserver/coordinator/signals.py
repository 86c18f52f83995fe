"""Waking whoever waits for something to change."""

import asyncio
import contextlib


class Signal:
    """Take `next()` before looking at what may change, then `wait` on it: so that no change is missed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def next(self) -> asyncio.Event:
        """Set by the next `fire`."""
        return self._next

    def fire(self) -> None:
        self._next.set()
        self._next = asyncio.Event()


async def wait(event: asyncio.Event, seconds: float) -> bool:
    """Whether it came in time."""
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), seconds)
    return event.is_set()
