"""A run knows its fleet: which devices its rounds wait for at the start and after a restart of the server."""

import asyncio
from pathlib import Path

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from shoal.core.engine.rounds import RoundPolicy, Stage
from shoal.core.exchange.link import Idle
from tests.server.servers import DEVICES, expected, hands, models, serve_all, server, start
from tests.server.toys import Hands, honest, same_models
from tests.waiting import until

ANYBODY = RoundPolicy()
"""The default policy: any device will do, and all that are here are asked."""


async def ready(coordinator: Coordinator) -> "list[asyncio.Task[object]]":
    """Devices that wait for a task before there is a run."""
    devices = [await hands(coordinator, number) for number in range(DEVICES)]
    polls = [asyncio.create_task(device.link.next_task(10.0)) for device in devices]
    await until(lambda: len(coordinator.connected(polling=True)) == DEVICES)
    return polls


def test_the_first_round_asks_all_devices_that_wait_for_work_and_not_only_the_first_of_them(
    tmp_path: Path,
) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            polls = await ready(coordinator)
            await start(coordinator, policy=ANYBODY)
            await asyncio.gather(*polls)
            run = coordinator.runs["toy"]
            assert sorted(run.engine.plan.tasks) == ["d0", "d1", "d2"]
            await serve_all(coordinator)
            assert same_models(models(coordinator), expected())
            assert not run.answers, "a server has the runs of years, and no one asks of their devices"

    asyncio.run(play())


def test_after_a_restart_no_round_opens_for_the_device_that_is_back_first(tmp_path: Path) -> None:
    async def one_round(coordinator: Coordinator) -> None:
        await asyncio.gather(*(_do(coordinator, number) for number in range(DEVICES)))

    async def play() -> None:
        async with server(tmp_path) as first:
            polls = await ready(first)
            await start(first, policy=ANYBODY)
            await asyncio.gather(*polls)
            first.runs["toy"].held = True  # no time passes, so round 2 does not open before the restart
            await one_round(first)
            await until(lambda: first.runs["toy"].engine.stage is Stage.WAITING)
        async with server(tmp_path) as second:
            engine = second.runs["toy"].engine
            devices = [await hands(second, number) for number in range(DEVICES)]
            for number, device in enumerate(devices):
                assert (engine.round, engine.stage) == (2, Stage.WAITING)
                assert engine.waiting().devices == ("d0", "d1", "d2")[number:]
                assert isinstance(await device.link.next_task(0.0), Idle) or number == DEVICES - 1
            await until(lambda: engine.stage is Stage.OPEN)
            assert sorted(engine.plan.tasks) == ["d0", "d1", "d2"]
            await serve_all(second)
            assert same_models(models(second), expected())

    asyncio.run(play())


async def _do(coordinator: Coordinator, number: int) -> None:
    visitor = coordinator.visitors[f"d{number}"]
    device = Hands(DeviceApi(coordinator, f"d{number}", visitor.session))
    await device.do(await device.task(), honest(number))


def test_a_device_that_may_not_train_is_not_part_of_the_fleet(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            await ready(coordinator)
            coordinator.may_train = lambda device: device != "d1"
            assert coordinator.connected() == ("d0", "d2")

    asyncio.run(play())
