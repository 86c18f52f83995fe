"""How long a round of training takes: from the rounds, and not from how long the run has existed."""

import asyncio
from pathlib import Path

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.history.pace import LATEST, Pace
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.status_types import RunSummary
from fedserver.rpc.wire.operator_wire import SUMMARY
from tests.server.servers import DEVICES, SETTINGS, crash, hands, scenario, server, start
from tests.server.toys import honest


def test_it_is_that_of_the_middle_one_of_the_latest_rounds() -> None:
    pace = Pace(0)
    assert pace.seconds is None
    for progress, seconds in enumerate((3600.0, 1.0, 2.0), 1):  # the first one waited for a device
        pace.passed(seconds, progress)
    assert pace.seconds == 2.0
    for progress in range(LATEST):
        pace.passed(5.0, 4 + progress)
    assert pace.seconds == 5.0


def test_rounds_without_training_count_with_the_next_one_that_trains() -> None:
    pace = Pace(4)
    pace.passed(2.0, 4)
    assert pace.seconds is None
    pace.passed(1.0, 5)
    assert pace.seconds == 3.0


def test_rounds_that_show_nothing_do_not_count() -> None:
    pace = Pace(4)
    pace.passed(2.0, 4)
    pace.lost(1)  # an operator rolled the run back
    assert pace.seconds is None
    pace.passed(1.0, 2)
    assert pace.seconds == 1.0


async def first_round(coordinator: Coordinator) -> RunSummary:
    """The run, when its first round is over and its second one is open."""
    devices = [await hands(coordinator, number) for number in range(DEVICES)]
    for device in devices:
        await device.link.next_task(0.0)
    for number, device in enumerate(devices):
        await device.do(await device.task(), honest(number))
    await devices[0].task()
    summary = (await OperatorApi(coordinator).show("toy")).summary
    assert (summary.stage, summary.progress) == ("open", 1)
    return summary


def test_an_operator_sees_it_as_soon_as_a_round_is_complete(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        assert (await OperatorApi(coordinator).show("toy")).summary.pace is None
        summary = await first_round(coordinator)
        (found,) = await OperatorApi(coordinator).history("toy")
        assert summary.pace == pytest.approx(found.seconds, rel=1e-3)
        assert SUMMARY.from_pb(SUMMARY.to_pb(summary)).pace == pytest.approx(summary.pace, abs=1e-6)

    scenario(story, tmp_path)


def test_a_round_that_was_open_when_the_server_started_shows_nothing(tmp_path: Path) -> None:
    async def before() -> None:
        coordinator = await Coordinator.open(tmp_path, SETTINGS)
        await start(coordinator)
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        for device in devices:
            await device.task()
        await crash(coordinator)

    async def after() -> None:
        async with server(tmp_path) as coordinator:
            assert (await first_round(coordinator)).pace is None

    asyncio.run(before())
    asyncio.run(after())
