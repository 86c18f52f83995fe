"""How long the devices of an open round may take, and how many should step in."""

import math

import pytest

from shoal.core.algorithm import Plan
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.round.open_round import SHORTEST, OpenRound
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import Evaluate, Train, TrainingSettings
from tests.core import counting

TASK = Train(counting.model(), TrainingSettings())
TEN = [f"d{number}" for number in range(10)]


def opened(typical: dict[str, float] | None = None, timed: bool = True, **policy: float) -> OpenRound:
    """A round of ten devices that begins at 100 s."""
    found = OpenRound(
        Plan(dict.fromkeys(TEN, TASK), "round"),
        100.0,
        RoundPolicy(**policy),  # type: ignore[arg-type]
        typical,
        timed=timed,
    )
    for device in TEN:
        found.offered(device, 100.0)
    return found


def answered(found: OpenRound, *times: float) -> OpenRound:
    for device, seconds in zip(TEN, times, strict=False):
        found.answered(device, 100.0 + seconds)
    return found


def test_the_slow_have_no_limit_but_the_deadline_before_two_thirds_have_answered() -> None:
    found = answered(opened(), *[20.0] * 6)
    assert found.ends_for_the_slow() == math.inf
    assert answered(opened(), *[20.0] * 7).ends_for_the_slow() == 100.0 + 3 * 20.0


def test_half_are_enough_where_an_earlier_round_has_shown_what_it_takes() -> None:
    found = opened({"train": 50.0})
    assert answered(found, *[20.0] * 4).ends_for_the_slow() == math.inf
    assert answered(opened({"train": 50.0}), *[20.0] * 5).ends_for_the_slow() == 100.0 + 3 * 50.0


def test_what_the_others_needed_is_the_time_of_nine_of_ten_of_them() -> None:
    found = answered(opened(), 10, 11, 12, 13, 14, 15, 16, 17, 30)
    assert found.taken() == {"train": 30.0}
    found = opened()
    assert answered(found, 10, 11, 12, 13, 14, 15, 16, 17, 18, 99).taken() == {"train": 18.0}


def test_no_device_has_less_than_the_shortest_time_or_more_than_the_deadline() -> None:
    assert answered(opened(), *[0.5] * 7).ends_for_the_slow() == 100.0 + SHORTEST
    assert answered(opened(deadline=60.0), *[50.0] * 7).ends_for_the_slow() == 100.0 + 60.0


def test_without_a_factor_only_the_deadline_counts() -> None:
    found = answered(opened(straggler_factor=0.0), *[20.0] * 9)
    assert found.ends_for_the_slow() == math.inf


def test_devices_that_are_gone_are_not_among_those_at_work() -> None:
    found = opened()
    for device in TEN[5:9]:
        found.lost(device, "gone")
    assert answered(found, *[20.0] * 3).ends_for_the_slow() == math.inf
    assert answered(opened(), *[20.0] * 3).ends_for_the_slow() == math.inf
    found.answered("d3", 120.0)
    assert found.ends_for_the_slow() == 100.0 + 60.0


def test_each_kind_of_task_has_its_own_time() -> None:
    tasks = {**dict.fromkeys(TEN[:5], TASK), **dict.fromkeys(TEN[5:], Evaluate(counting.model()))}
    found = OpenRound(Plan(tasks, "round"), 0.0, RoundPolicy())
    for device in TEN[:4]:
        found.answered(device, 100.0)
    assert found.ends_for_the_slow() == math.inf
    for device in TEN[5:9]:
        found.answered(device, 10.0)
    assert found.ends_for_the_slow() == 300.0
    found.answered("d4", 120.0)
    assert found.ends_for_the_slow() == 30.0


def test_a_device_that_gets_its_task_again_does_not_begin_its_time_again() -> None:
    found = answered(opened(), *[20.0] * 7)
    found.lost("d8", "not heard from", silent=True)
    found.joined("d8")
    found.offered("d8", 150.0)
    assert found.ends_for_the_slow() == 160.0
    assert found.end("too late", lambda device: "!", 160.0) == ["d7", "d8", "d9"]
    assert found.missing == dict.fromkeys(("d7", "d8", "d9"), "too late!")


def test_a_resumed_round_does_not_learn_from_results_that_were_ready() -> None:
    found = answered(opened(timed=False), *[0.0] * 9)
    assert found.taken() == {}
    assert found.ends_for_the_slow() == 100.0 + RoundPolicy().deadline
    assert answered(opened({"train": 30.0}, timed=False), *[0.0] * 9).ends_for_the_slow() == 100.0 + 90.0


def test_devices_step_in_for_those_that_are_gone_or_have_used_half_of_their_time() -> None:
    found = answered(opened(devices=8, minimum=1), *[20.0] * 5)
    assert found.goal == 8
    assert found.lacking(120.0) == 0  # five have answered, and five are at work: more than enough
    for device in ("d5", "d6", "d7"):
        found.lost(device, "gone")
    assert found.lacking(120.0) == 1
    assert found.lacking(129.0) == 1
    assert found.lacking(130.0) == 3
    found.add({"e0": TASK, "e1": TASK, "e2": TASK}, 130.0)
    assert found.lacking(131.0) == 0


def test_a_round_that_depends_on_one_device_asks_another_one_after_a_minute() -> None:
    found = OpenRound(Plan({"d0": TASK}, "initial weights"), 100.0, RoundPolicy())
    assert [found.lacking(100.0 + seconds) for seconds in (0.0, 59.0, 60.0, 61.0)] == [0, 0, 1, 1]
    found.add({"d1": TASK}, 160.0)
    assert [found.lacking(100.0 + seconds) for seconds in (60.0, 119.0, 120.0)] == [0, 0, 1]
    found = OpenRound(Plan({"d0": TASK}, "initial weights"), 100.0, RoundPolicy(deadline=40.0))
    assert [found.lacking(100.0 + seconds) for seconds in (19.0, 20.0)] == [0, 1]


def test_only_a_device_that_had_its_time_has_missed_its_task() -> None:
    found = answered(opened(), *[20.0] * 7)
    found.lost("d7", "it failed")
    found.lost("d8", "not heard from", silent=True)
    found.add({"e0": TASK}, 150.0)
    found.end("the round is full", lambda device: " (missed)", 160.0)
    assert found.missing == {
        "d7": "it failed",
        "d8": "not heard from (missed)",
        "d9": "the round is full (missed)",
        "e0": "the round is full",
    }


def test_a_round_that_is_opened_again_counts_no_device_twice() -> None:
    missed = list[str]()
    found = answered(opened(), *[20.0] * 8)
    found.end("too late", lambda device: missed.append(device) or "!", 170.0)  # type: ignore[func-returns-value]
    found.withdrawn("d0")  # its report was damaged
    found.joined("d8")
    for device in ("d0", "d8"):
        found.offered(device, 170.0)
    assert found.outstanding == {"d0", "d8"}, "d9 is at work no more"
    assert found.ends_for_the_slow() == 170.0 + 3 * 20.0
    found.answered("d0", 180.0)
    found.answered("d8", 180.0)
    assert found.ends_for_the_slow() == math.inf, "no one is at work"
    found.end("too late", lambda device: missed.append(device) or "!", 180.0)  # type: ignore[func-returns-value]
    assert missed == ["d8", "d9"]
    assert found.missing == {"d9": "too late!"}


@pytest.mark.parametrize("factor", [0.5, -1.0, math.nan, math.inf])
def test_a_factor_that_makes_no_sense_is_refused(factor: float) -> None:
    with pytest.raises(ConfigError, match="straggler_factor"):
        RoundPolicy(straggler_factor=factor)
