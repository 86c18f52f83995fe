"""Waits: jittered from zero, growing, inside the server's window, and with an end where one is set."""

import asyncio
from random import Random

import pytest

from fedclient.net.backoff import FIRST_WAIT, MAX_WAIT, Backoff, patiently
from shoal.core.errors import NotFound, SessionLost, Unavailable


class Recorder(Random):
    """Notes the bounds of each wait and takes the least."""

    def __init__(self) -> None:
        super().__init__(0)
        self.bounds: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.bounds.append((a, b))
        return a


def test_waits_double_up_to_the_longest() -> None:
    chance = Recorder()
    backoff = Backoff(chance)
    for _ in range(9):
        backoff.next()
    assert chance.bounds == [(0.0, min(FIRST_WAIT * 2.0**n, MAX_WAIT)) for n in range(9)]
    backoff.reset()
    backoff.next()
    assert chance.bounds[-1] == (0.0, FIRST_WAIT)


def test_a_fleet_spreads_its_first_wait_as_the_server_says() -> None:
    chance = Recorder()
    backoff = Backoff(chance)
    backoff.first = 20.0
    for _ in range(3):
        backoff.next()
    assert chance.bounds == [(0.0, 20.0), (0.0, 40.0), (0.0, MAX_WAIT)]


def test_a_window_that_came_with_the_refusal_comes_first() -> None:
    chance = Recorder()
    backoff = Backoff(chance)
    assert backoff.between(5.0, 30.0) == 5.0
    backoff.next((7.0, 8.0))
    backoff.next()
    assert chance.bounds == [(5.0, 30.0), (7.0, 8.0), (0.0, 2.0 * FIRST_WAIT)]


def test_two_devices_do_not_wait_alike() -> None:
    assert Backoff(Random(1)).next() != Backoff(Random(2)).next()


def test_patience() -> None:
    said: list[str] = []
    chance = Recorder()

    async def call() -> str:
        left[0] -= 1
        if left[0]:
            raise Unavailable("busy" if left[0] == 1 else "no one there", "wait", (0.0, left[0] / 100))
        return "answer"

    left = [5]
    assert asyncio.run(patiently(call, Backoff(chance), 60.0, said.append)) == "answer"
    assert said == [  # once for each reason, and not at every try
        "waiting for the server: no one there (wait); trying again from time to time",
        "waiting for the server: busy (wait); trying again from time to time",
    ]
    assert chance.bounds == [(0.0, 0.04), (0.0, 0.03), (0.0, 0.02), (0.0, 0.01)]


def test_patience_is_for_servers_that_are_away_only() -> None:
    async def away() -> None:
        raise Unavailable("no one there")

    async def missing() -> None:
        raise NotFound("no such run")

    with pytest.raises(Unavailable):
        asyncio.run(patiently(away, Backoff(Recorder()), 0.05, lambda text: None))
    with pytest.raises(NotFound):
        asyncio.run(patiently(missing, Backoff(Recorder()), 60.0, lambda text: None))


def test_an_answer_that_is_an_error_ends_an_outage() -> None:
    answers: list[Exception] = [Unavailable("no one there", "", (0.0, 0.0))] * 8
    answers.append(SessionLost("no such session"))
    chance = Recorder()
    backoff = Backoff(chance)

    async def call() -> None:
        raise answers.pop(0)

    with pytest.raises(SessionLost):
        asyncio.run(patiently(call, backoff, 60.0, lambda text: None))
    backoff.next()
    assert chance.bounds[-1] == (0.0, FIRST_WAIT)
