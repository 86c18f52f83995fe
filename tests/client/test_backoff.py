"""Waits: jittered from zero, growing, inside the server's window, and with an end where one is set."""

import asyncio
from random import Random

import pytest

from fedclient.backoff import FIRST, MOST, Backoff, patiently
from fedcore.errors import NotFound, Unavailable


class Recorder(Random):
    """Notes the bounds of each wait and takes the least."""

    def __init__(self) -> None:
        super().__init__(0)
        self.bounds: list[tuple[float, float]] = []

    def uniform(self, a: float, b: float) -> float:
        self.bounds.append((a, b))
        return a


def test_waits_double_up_to_a_minute() -> None:
    chance = Recorder()
    backoff = Backoff(chance)
    for _ in range(9):
        backoff.next()
    assert chance.bounds == [(0.0, min(FIRST * 2.0**n, MOST)) for n in range(9)]
    backoff.reset()
    backoff.next()
    assert chance.bounds[-1] == (0.0, FIRST)


def test_waits_stay_in_the_servers_window() -> None:
    chance = Recorder()
    backoff = Backoff(chance)
    assert backoff.window(5.0, 30.0) == 5.0
    for _ in range(4):
        backoff.next()
    assert chance.bounds == [(5.0, 30.0), (5.0, 5.0), (5.0, 10.0), (5.0, 20.0), (5.0, 30.0)]


def test_two_devices_do_not_wait_alike() -> None:
    assert Backoff(Random(1)).next() != Backoff(Random(2)).next()


def test_patience() -> None:
    said: list[str] = []
    left = [3]

    async def call() -> str:
        if left[0]:
            left[0] -= 1
            raise Unavailable("nobody there")
        return "answer"

    assert asyncio.run(patiently(call, Backoff(Recorder()), 60.0, said.append)) == "answer"
    assert said == ["waiting for the server: nobody there; next try in 0 s"] * 3


def test_patience_is_for_servers_that_are_away_only() -> None:
    async def away() -> None:
        raise Unavailable("nobody there")

    async def missing() -> None:
        raise NotFound("no such run")

    with pytest.raises(Unavailable):
        asyncio.run(patiently(away, Backoff(Recorder()), 0.05, lambda text: None))
    with pytest.raises(NotFound):
        asyncio.run(patiently(missing, Backoff(Recorder()), 60.0, lambda text: None))
