"""When the next run of a series starts, whatever the clocks do, and what it is called."""

import pytest

from shoal.core.engine.series import next_name, seconds_left

DAY = 86400.0


@pytest.mark.parametrize(
    ("by_clock", "at_least", "left"),
    [
        (0.0, 0.0, DAY),
        (3600.0, 60.0, DAY - 3600.0),  # the server was restarted a minute ago
        (DAY, 0.0, 0.0),
        (10 * DAY, 5.0, 0.0),  # it was away for ten periods, or the clock jumped
        (-3650 * DAY, 60.0, DAY - 60.0),  # the clock was set back by ten years
        (-3650 * DAY, DAY, 0.0),
    ],
)
def test_a_period_is_counted_by_the_clock_and_at_most_from_when_the_run_is_known(
    by_clock: float, at_least: float, left: float
) -> None:
    assert seconds_left(DAY, by_clock, at_least) == left


def test_a_name_is_used_once() -> None:
    assert next_name("daily", {"daily"}) == "daily-2"
    assert next_name("daily", {"daily", "daily-2", "daily-3", "night"}) == "daily-4"
