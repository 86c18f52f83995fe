"""When a transfer stalls, how long an answer may take, how often someone may come."""

import pytest

from shoal.core.engine import timeouts
from shoal.core.engine.timeouts import ANSWER, MIN_BYTES, STALL, Progress
from shoal.core.engine.token_bucket import TokenBucket


def test_a_transfer_that_moves_enough_never_stalls() -> None:
    progress = Progress(100.0)
    for number in range(1, 10):
        now = 100.0 + number * (STALL - 1.0)
        assert now < progress.until()
        progress.moved(MIN_BYTES, now)
    assert progress.until() == now + STALL


def test_drips_do_not_keep_a_transfer_alive() -> None:
    progress = Progress(0.0)
    for second in range(60):
        progress.moved(1, float(second))
    assert progress.until() == STALL
    progress.moved(MIN_BYTES - 60, 59.5)  # together they are enough
    assert progress.until() == 59.5 + STALL


def test_a_large_request_has_the_time_that_a_slow_line_needs_for_it() -> None:
    assert timeouts.answer(0) == ANSWER
    assert timeouts.answer(MIN_BYTES) == ANSWER + STALL
    assert timeouts.answer(4 << 20) > (4 << 20) / 32_000  # 256 kbit/s


def test_there_are_seven_timeouts() -> None:
    """An eighth needs a better reason than a place to put it."""
    seconds = {name for name, value in vars(timeouts).items() if name.isupper() and isinstance(value, float)}
    assert seconds == {
        "CONNECTION",
        "ANSWER",
        "STALL",
        "FIRST_MESSAGE",
        "DEVICE_TIMEOUT",
        "GRACE",
        "MOMENT",
    }


def test_a_burst_goes_through_and_then_rate_per_second() -> None:
    bucket = TokenBucket(rate=10.0, burst=5.0, furthest=60.0)
    assert [bucket.delay(1000.0) for _ in range(5)] == [0.0] * 5
    assert bucket.delay(1000.0) > 0.0
    assert bucket.delay(1000.1) == 0.0
    assert bucket.delay(1000.1) > 0.0
    assert [bucket.delay(1010.0) for _ in range(5)] == [0.0] * 5  # saved up, and no more than that
    assert bucket.delay(1010.0) > 0.0


def test_callers_that_come_back_at_their_time_are_let_in() -> None:
    bucket = TokenBucket(rate=50.0, burst=100.0, furthest=45.0)
    delays = [bucket.delay(0.0) for _ in range(500)]
    assert delays.count(0.0) == 100
    later = sorted(delay for delay in delays if delay)
    assert later[-1] == pytest.approx(400 / 50.0)
    assert all(bucket.delay(moment) == 0.0 for moment in later)


def test_no_caller_is_sent_away_for_longer_than_the_furthest() -> None:
    bucket = TokenBucket(rate=1.0, burst=1.0, furthest=45.0)
    assert max(bucket.delay(0.0) for _ in range(1000)) == 45.0
