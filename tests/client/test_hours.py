"""The owner's hours: read from text, kept to by the agent."""

import asyncio
import math
from dataclasses import replace
from datetime import datetime

import pytest

from fedclient.agent import agent as agents
from fedclient.agent.agent import Until
from fedclient.agent.allowance import ALL_DAY, Hours
from fedclient.config import LimitsConfig
from shoal.core.errors import ConfigError, Unavailable
from shoal.core.exchange.link import Hello, Idle, Task, Welcome
from tests.client.memory_server import MemoryLink, MemoryServer
from tests.client.visits import Device
from tests.waiting import HANG, until

WAITING = "waiting for limits.hours to begin (22:00-06:00)"


class Wall:
    """A clock that is set by hand."""

    def __init__(self, hour: int, minute: int = 0) -> None:
        self.set(hour, minute)

    def set(self, hour: int, minute: int = 0) -> None:
        self._time = datetime(2026, 3, 1, hour, minute)

    def __call__(self) -> datetime:
        return self._time


@pytest.mark.parametrize(
    ("text", "hour", "closed", "opened"),
    [
        ("22:00-06:00", 21, 1, 9),
        ("22:00-06:00", 22, 0, 8),
        ("22:00-06:00", 0, 0, 6),
        ("22:00-06:00", 6, 16, 24),
        ("9:00-17:00", 8, 1, 9),
        ("9:00-17:00", 16, 0, 1),
        ("9:00-17:00", 17, 16, 24),
        ("00:00-06:00", 23, 1, 7),
        ("18:00-24:00", 23, 0, 1),
        ("18:00-24:00", 0, 18, 24),
        (ALL_DAY, 0, 0, math.inf),
        (ALL_DAY, 23, 0, math.inf),
    ],
)
def test_hours_of_a_day(text: str, hour: int, closed: float, opened: float) -> None:
    read = Hours.read(text)
    hours = Hours(read.begin, read.end, Wall(hour))
    assert (hours.closed_for() / 3600, hours.open_for() / 3600) == (closed, opened)
    assert str(hours) == ("0" + text if text.startswith("9") else text)


@pytest.mark.parametrize("text", ["", "22:00", "22:00-", "24:01-06:00", "22-6", "22:60-23:00", "1:00-2:00-3"])
def test_a_text_that_is_no_hours_is_named(text: str) -> None:
    with pytest.raises(ConfigError, match="is not two times of day") as caught:
        LimitsConfig(hours=text)
    assert repr(text) in caught.value.message
    assert "22:00-06:00" in caught.value.hint


class Opens(list[str]):
    """What an agent is doing; as soon as it waits for its hours, they begin."""

    def __init__(self, wall: Wall) -> None:
        super().__init__()
        self.wall = wall

    def append(self, text: str) -> None:
        super().append(text)
        if text == WAITING:
            self.wall.set(22)


@pytest.fixture
def wall(device: Device, monkeypatch: pytest.MonkeyPatch) -> Wall:
    """At night, within the device's hours."""
    monkeypatch.setattr(agents, "REST_SECONDS", 0.0)
    device.doing = Opens(Wall(23))
    return device.doing.wall


def at_night(wall: Wall) -> Hours:
    return Hours(22 * 3600, 6 * 3600, wall)


def test_a_device_does_not_call_before_its_hours_begin(device: Device, wall: Wall) -> None:
    wall.set(21)
    device.run(Until.ONCE, hours=at_night(wall))
    assert device.doing[:2] == [
        "waiting for limits.hours to begin (22:00-06:00)",
        "saying hello to the server",
    ]
    assert device.executor.performed == [1]


def test_what_was_begun_is_reported_and_then_the_device_leaves(
    device: Device, server: MemoryServer, wall: Wall
) -> None:
    device.executor.before = [lambda: wall.set(6)]
    device.run(Until.FINISHED, hours=at_night(wall))
    assert [report.round for report in server.reports] == [1, 2]
    first = next(place for place, line in enumerate(server.log) if line.startswith("report"))
    assert [line.split()[0] for line in server.log[first : first + 4]] == [
        "report",
        "leave",
        "hello",
        "next_task",
    ]


def test_work_is_finished_after_the_hours_over_a_lost_session(
    device: Device, server: MemoryServer, wall: Wall
) -> None:
    async def over_until_a_new_session() -> None:
        wall.set(6)
        server.forget = True
        await until(lambda: "alive 2" in server.log)

    device.executor.before = [over_until_a_new_session]
    device.run(Until.ONCE, hours=at_night(wall))
    assert [(report.round, report.attempt) for report in server.reports] == [(1, 2)]
    assert wall().hour == 6  # it did not wait for the next night


@pytest.mark.parametrize("answer", ["nothing", "another task"])
def test_a_device_whose_work_is_not_wanted_any_more_asks_for_no_other_after_the_hours(
    device: Device, server: MemoryServer, wall: Wall, answer: str
) -> None:
    """The session is lost after the hours, and the round has been closed without this device meanwhile."""
    asked: list[int] = []

    class Late(MemoryLink):
        async def next_task(self, wait: float) -> Task | Idle:
            asked.append(wall().hour)
            if wall().hour == 6 and answer == "nothing":
                return Idle("the round is over", 0.0, 0.0)
            return await super().next_task(wait)

    async def over_until_a_new_session() -> None:
        wall.set(6)
        server.tasks.pop(0)
        server.forget = True
        await asyncio.sleep(HANG)

    device.executor.before = [over_until_a_new_session]
    asyncio.run(asyncio.wait_for(device.agent(Late(server), hours=at_night(wall)).run(Until.ONCE), HANG))
    assert asked == [23, 6, 22], "asked once after the hours, for the work that was begun"
    assert device.executor.performed == [1, 2]
    assert device.executor.abandoned == 1
    assert [(report.round, report.attempt) for report in server.reports] == [(2, 3)]
    assert server.calls("hello", "leave") == ["hello", "hello", "leave", "hello", "leave"]


def test_a_server_that_answers_after_the_hours_gives_no_task(
    device: Device, server: MemoryServer, wall: Wall
) -> None:
    class Away(MemoryLink):
        async def next_task(self, wait: float) -> Task | Idle:
            if wall().hour == 23:
                wall.set(6)
                raise Unavailable("no answer")
            assert wall().hour == 22
            return await super().next_task(wait)

    asyncio.run(device.agent(Away(server), hours=at_night(wall)).run(Until.ONCE))
    assert device.executor.performed == [1]
    assert server.calls("hello", "leave") == ["hello", "leave", "hello", "leave"]


def test_a_wait_for_a_task_ends_with_the_hours(device: Device, server: MemoryServer, wall: Wall) -> None:
    waited: list[float] = []

    class Patient(MemoryLink):
        async def hello(self, hello: Hello) -> Welcome:
            return replace(await super().hello(hello), poll=600.0)

        async def next_task(self, wait: float) -> Task | Idle:
            waited.append(wait)
            wall.set(5, 59)
            return await super().next_task(wait)

    asyncio.run(device.agent(Patient(server), hours=at_night(wall)).run(Until.FINISHED))
    assert waited == [600.0, 60.0, 60.0]
