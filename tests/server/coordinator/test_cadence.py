"""What idle devices cost does not grow with their number, and a device that waits is here all the time."""

import asyncio
from pathlib import Path

from fedserver.config import Settings
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.visits.cadence import POLLS, poll, spread
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.link import Hello
from tests.server.servers import server, start
from tests.server.toys import Hands
from tests.waiting import until


def test_a_large_fleet_waits_longer_in_each_call() -> None:
    settings = Settings(poll=20.0, age=1800.0)
    assert [poll(fleet, settings) for fleet in (0, 10, 500)] == [20.0] * 3
    assert poll(1000, settings) == 1000 / POLLS == 40.0
    assert poll(10_000, settings) == poll(1_000_000, settings) == 1800.0 / 8
    assert poll(10_000, Settings(poll=300.0)) == 300.0  # an operator may want more


def test_a_fleet_spreads_its_return() -> None:
    assert [spread(fleet) for fleet in (0, 25, 100, 10_000)] == [1.0, 1.0, 4.0, 45.0]


def test_a_device_is_told_how_long_to_wait(tmp_path: Path) -> None:
    async def story() -> None:
        async with server(tmp_path / "s") as coordinator:
            coordinator.known = 10_000
            welcome = await DeviceApi(coordinator, "d0").hello(Hello("toy"))
            assert (welcome.poll, welcome.spread) == (225.0, 45.0)

    asyncio.run(story())


def test_a_device_that_waits_longer_than_the_timeout_stays_in_the_run(tmp_path: Path) -> None:
    async def story() -> None:
        async with server(tmp_path / "s") as coordinator:
            device = Hands(DeviceApi(coordinator, "d0"))
            await device.hello()
            await start(coordinator, policy=RoundPolicy(devices=2, minimum=2, device_timeout=0.5))
            call = asyncio.create_task(device.link.next_task(10.0))
            sessions = coordinator.runs["toy"].engine.sessions
            await until(lambda: sessions.is_here("d0"))
            attempt, joined = sessions.of("d0").attempt, sessions.of("d0").seen
            await until(lambda: sessions.of("d0").seen > joined + 1.0)  # two timeouts, by the engine's clock
            assert sessions.is_here("d0")
            assert sessions.of("d0").attempt == attempt  # it never left and came back
            call.cancel()
            await asyncio.wait([call])
            await until(lambda: not sessions.is_here("d0"))

    asyncio.run(story())
