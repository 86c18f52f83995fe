"""The owner's limit on how fast a device sends and receives."""

import asyncio


class Throttle:
    """Lets `rate` bytes a second through on average, of all transfers together; infinite: all at once."""

    def __init__(self, rate: float) -> None:
        self._rate, self._free = rate, 0.0

    async def take(self, size: int) -> None:
        """Wait until bytes may be used, after all that were taken before."""
        clock = asyncio.get_running_loop().time
        if (early := self._free - clock()) > 0.0:
            await asyncio.sleep(early)
        self._free = max(self._free, clock()) + size / self._rate
