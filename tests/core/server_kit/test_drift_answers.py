"""Randomized answers of a cluster's devices: when they raise an alarm, and how seldom without a reason."""

from collections.abc import Callable

import numpy as np
import pytest

from shoal.core.privacy.noise.response import EVERY_DAYS, WATCHING, wrong
from shoal.core.server_kit import drift_answers
from shoal.core.server_kit.drift_answers import Day, movement


def answered(rng: np.random.Generator, day: int, devices: int, share: float) -> Day:
    """What a cluster says on a day, if each device says something once in 92 days."""
    answers, flipped = int(rng.binomial(devices, 1.0 / EVERY_DAYS)), wrong(WATCHING)
    return Day(day, answers, int(rng.binomial(answers, flipped + (1.0 - 2.0 * flipped) * share)))


def until_alarm(rng: np.random.Generator, devices: int, share: Callable[[int], float], most: int) -> int:
    days: list[Day] = []
    for day in range(most):
        days.append(answered(rng, day, devices, share(day)))
        if movement(days).since is not None:
            return day + 1
    return most


def test_false_alarms_are_as_rare_as_stated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit is the mean number of days, at a limit that can be waited for: here 40 of them."""
    monkeypatch.setattr(drift_answers, "LIMIT", 40.0)
    rng = np.random.default_rng(43)
    for devices in (20, 2000):
        runs = [until_alarm(rng, devices, lambda day: drift_answers.TOLERATED, 400) for _ in range(15)]
        assert np.mean(runs) > 40.0, f"{devices} devices"


def test_a_hundred_devices_that_move_are_found_within_weeks_and_since_when() -> None:
    rng = np.random.default_rng(43)
    days = [answered(rng, day, 100, 0.0 if day < 60 else 1.0) for day in range(180)]
    assert movement(days[:60]).since is None
    found = movement(days)
    assert found.since is not None
    assert 50 <= found.since <= 80
    assert abs(found.share - 1.0) < 2.0 * found.error < 0.5


def test_an_estimate_has_its_error_and_is_of_late_answers() -> None:
    old, now = Day(0, 1000, 900), Day(200, 1000, round(1000 * (wrong(WATCHING) + 0.0)))
    found = movement([old, now])
    assert (found.answers, round(found.share, 2)) == (1000, 0.0)
    assert 0.03 < found.error < 0.05
    assert movement([]) == drift_answers.Movement(0, 0.0, 0.0)


def test_an_alarm_ends_when_the_devices_have_good_models_again() -> None:
    days = [Day(day, 50, 34) for day in range(10)]
    assert movement(days).since == 0
    good = [Day(day, 50, 16) for day in range(10, 10 + int(EVERY_DAYS))]
    assert movement([*days, *good[:2]]).since is not None
    assert movement([*days, *good]).since is None, "each device has said otherwise by now"
