"""A limit on bytes a second, in simulated time."""

import asyncio
from random import Random

import pytest

from fedclient.config import MIN_BANDWIDTH, LimitsConfig
from fedclient.net.throttle import Throttle
from shoal.core.errors import ConfigError
from tests.histories.loop import SimLoop


def taken(rate: float, *sizes: int, pause: float = 0.0) -> list[float]:
    """When each of these many bytes may be used, with a pause before the last of them."""
    loop, found = SimLoop(Random(1), 0.0), list[float]()

    async def story() -> None:
        throttle = Throttle(rate)
        for at, size in enumerate(sizes):
            await asyncio.sleep(pause if at == len(sizes) - 1 else 0.0)
            await throttle.take(size)
            found.append(round(loop.now, 6))

    loop.run_until_complete(story())
    loop.close()
    return found


def test_bytes_wait_for_those_before_them() -> None:
    assert taken(100.0, 200, 100, 50, 1) == [0.0, 2.0, 3.0, 3.5]
    assert taken(float("inf"), 1 << 40, 1 << 40) == [0.0, 0.0]


def test_a_pause_is_not_made_up_for() -> None:
    """Else a device that was quiet for an hour would take its whole line for a while."""
    assert taken(100.0, 100, 100, 100, pause=50.0) == [0.0, 1.0, 51.0]
    assert taken(100.0, 100, 100, pause=0.5) == [0.0, 1.0]


def test_a_limit_that_no_transfer_could_keep_to_is_refused() -> None:
    assert LimitsConfig(bandwidth=MIN_BANDWIDTH).bandwidth == MIN_BANDWIDTH
    assert LimitsConfig().bandwidth is None
    with pytest.raises(ConfigError, match="bandwidth is 1000 bytes a second, and the least is 32768"):
        LimitsConfig(bandwidth=1000)
