"""Commands that go on until a signal ends them."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any


async def until_signal(work: Coroutine[Any, Any, None]) -> signal.Signals | None:
    """Run this until its end; SIGTERM or SIGINT cancels it, so that it can end in order. Returns the
    signal that did."""
    caught: list[signal.Signals] = []
    serving = asyncio.ensure_future(work)

    def stop(number: signal.Signals) -> None:
        caught.append(number)
        serving.cancel()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    try:
        await serving
    except asyncio.CancelledError:
        if not caught:
            raise
        return caught[0]
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
    return None
