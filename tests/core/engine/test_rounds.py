"""The round engine, event by event."""

import math
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import Plan, Report
from shoal.core.engine.events import (
    Abandon,
    Changed,
    Effect,
    Event,
    Failed,
    Finished,
    Heard,
    Joined,
    Left,
    Offer,
    Opened,
    Reduce,
    Reduced,
    Reported,
    Save,
    SteppedIn,
    Tick,
    Withdraw,
)
from shoal.core.engine.round.attendance import Memory
from shoal.core.engine.rounds import RoundEngine, RoundPolicy, Stage, Waiting
from shoal.core.errors import ConfigError, IllegalEvent, StaleReport
from shoal.core.exchange.messages import Summarize, Train, Trained
from tests.core import counting


def engine(rounds: int = 2, **policy: float) -> RoundEngine:
    state = counting.start(counting.model(), rounds)
    return RoundEngine(counting, RoundPolicy(**policy), 7, state)  # type: ignore[arg-type]


def feed(machine: RoundEngine, *events: Event) -> list[Effect]:
    return [effect for event in events for effect in machine.feed(event)]


def kinds(effects: list[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def combined(machine: RoundEngine, *devices: str) -> counting.State:
    """The next state, of what these devices would answer."""
    assert isinstance(machine.state, counting.State)
    update = Trained({"w": np.ones(3, np.float32)}, examples=1, loss=0.5)
    return counting.reduce(machine.state, [Report(device, update) for device in devices])


def opened(devices: int = 3, **policy: float) -> RoundEngine:
    machine = engine(minimum=policy.pop("minimum", devices), **policy)
    feed(machine, *(Joined(f"d{i}") for i in range(devices)), Tick(0.0))
    assert machine.stage is Stage.OPEN
    return machine


def test_a_round_opens_on_a_tick_with_enough_devices_and_never_on_a_join() -> None:
    machine = engine(minimum=2)
    assert feed(machine, Joined("d1"), Tick(0.0), Joined("d0")) == []
    effects = feed(machine, Tick(1.0))
    assert kinds(effects) == ["Opened", "Offer", "Offer"]
    assert effects[0] == Opened(1, ("d0", "d1"), "round 1")
    assert [e.device for e in effects if isinstance(e, Offer)] == ["d0", "d1"]


def test_waiting_says_what_is_missing_and_from_whom() -> None:
    machine = engine(minimum=2)
    feed(machine, Joined("d0"), Tick(0.0))
    assert machine.waiting() == Waiting("1 of 2 devices are here")
    assert machine.waiting(["d0", "d2", "d1"]) == Waiting("1 of 2 devices are here", ("d1", "d2"))
    assert machine.waiting(["d0"]) == Waiting("1 of 2 devices are here, and 1 more must join")
    feed(machine, Joined("d1"), Tick(1.0), Reported("d1", 1, 1))
    assert machine.waiting().text == "1 of 2 reports are in"
    assert machine.waiting().devices == ("d0",)
    assert machine.waiting().seconds == RoundPolicy().deadline


def test_a_device_that_left_is_waited_for_by_its_name() -> None:
    machine = engine(minimum=2)
    feed(machine, Joined("d0"), Joined("d1"), Left("d0"), Tick(0.0))
    assert machine.waiting(["d0", "d1"]) == Waiting("1 of 2 devices are here", ("d0",))


def test_before_the_first_tick_all_of_wait_for_devices_is_left() -> None:
    machine = engine(devices=3, minimum=1, wait_for_devices=30.0)
    assert machine.waiting().seconds == 30.0
    feed(machine, Tick(100.0), Tick(112.0))
    assert machine.waiting().seconds == 18.0


@pytest.mark.parametrize(("minimum", "left"), [(2, 1.0), (3, 91.0)])
def test_a_round_that_lacks_reports_is_said_to_wait_until_its_deadline(minimum: int, left: float) -> None:
    machine = opened(3, minimum=minimum, deadline=100.0)
    feed(machine, Tick(1.0), Reported("d0", 1, 1), Reported("d1", 1, 1), Tick(9.0))
    assert machine.waiting().seconds == left
    feed(machine, Heard("d2"), Tick(11.0))  # three times what the others needed is less than ten seconds
    assert machine.stage is (Stage.REDUCING if minimum == 2 else Stage.OPEN)


def test_the_last_report_closes_the_round_and_reports_are_reduced_in_device_order() -> None:
    machine = opened(3)
    assert feed(machine, Reported("d2", 1, 1), Reported("d0", 1, 1)) == []
    assert feed(machine, Reported("d1", 1, 1)) == [Reduce(1, ("d0", "d1", "d2"))]
    state = counting.start(counting.model(1.0), 2)
    effects = feed(machine, Reduced(1, state))
    assert effects == [Save(2, state, 0, {}, Memory(("d0", "d1", "d2"), {}, {"train": 0.0}))]
    assert machine.stage is Stage.WAITING


def test_save_comes_before_any_offer_of_the_next_round() -> None:
    machine = opened(1)
    effects = feed(machine, Reported("d0", 1, 1), Reduced(1, machine.state), Tick(1.0))
    assert kinds(effects) == ["Reduce", "Save", "Opened", "Offer"]


def test_the_run_finishes_when_the_algorithm_plans_no_more() -> None:
    machine = engine(rounds=0)
    effects = feed(machine, Joined("d0"), Tick(0.0))
    assert effects == [Finished(False, "the run is complete")]
    assert machine.stage is Stage.OVER


def test_the_run_finishes_though_every_device_left_right_after_the_last_report() -> None:
    machine = engine(rounds=1, minimum=2)
    devices = ("d0", "d1")
    feed(machine, *map(Joined, devices), Tick(0.0), *(Reported(device, 1, 1) for device in devices))
    feed(machine, *map(Left, devices))
    state = combined(machine, *devices)
    memory = Memory((), {}, {"train": 0.0})  # they have said goodbye: the next round need not wait for them
    assert feed(machine, Reduced(1, state)) == [Save(2, state, 0, {}, memory)]
    assert feed(machine, Tick(1.0)) == [Finished(False, "the run is complete")]


def test_too_few_devices_neither_open_a_further_round_nor_end_a_run_that_has_one() -> None:
    machine = engine(rounds=2, minimum=2)
    devices = ("d0", "d1")
    feed(machine, *map(Joined, devices), Tick(0.0), *(Reported(device, 1, 1) for device in devices))
    feed(machine, Left("d0"))
    effects = feed(machine, Reduced(1, combined(machine, *devices)), Tick(1.0))
    assert kinds(effects) == ["Save"]
    assert feed(machine, Tick(2.0), Joined("d0")) == []
    assert kinds(feed(machine, Tick(3.0))) == ["Opened", "Offer", "Offer"]


def test_a_restored_run_that_was_complete_finishes_with_the_first_device_whatever_its_minimum() -> None:
    machine = engine(rounds=0, minimum=3)
    assert feed(machine, Tick(0.0), Joined("d0")) == []
    assert feed(machine, Tick(1.0)) == [Finished(False, "the run is complete")]


def test_oversampling_asks_more_and_withdraws_from_those_not_needed() -> None:
    machine = engine(devices=2, oversample=1.5)
    feed(machine, *(Joined(f"d{i}") for i in range(5)))
    offers = [e for e in feed(machine, Tick(0.0)) if isinstance(e, Offer)]
    assert len(offers) == 3
    first, second, third = (offer.device for offer in offers)
    effects = feed(machine, Reported(third, 1, 1), Reported(first, 1, 1))
    assert effects == [Withdraw(second, 1, "the round is full"), Reduce(1, tuple(sorted((first, third))))]
    with pytest.raises(StaleReport, match="round 1 is not open"):
        machine.feed(Reported(second, 1, 1))


def test_sampling_depends_on_seed_and_round_and_not_on_the_order_of_joins() -> None:
    chosen = []
    for order in (range(20), reversed(range(20))):
        machine = engine(devices=5)
        feed(machine, *(Joined(f"d{i:02}") for i in order))
        chosen.append([e.device for e in feed(machine, Tick(0.0)) if isinstance(e, Offer)])
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) == 5


def test_at_the_deadline_a_round_goes_on_with_the_minimum_and_says_who_was_missing() -> None:
    machine = opened(3, minimum=2, deadline=10.0)
    feed(machine, Reported("d0", 1, 1), Reported("d2", 1, 1), Heard("d1"))
    effects = feed(machine, Tick(10.0))
    late = "it did not report before the deadline"
    assert effects == [Withdraw("d1", 1, late), Reduce(1, ("d0", "d2"))]
    save = feed(machine, Reduced(1, machine.state))[0]
    assert isinstance(save, Save)
    assert save.missing == {"d1": late}


def test_below_the_minimum_a_round_is_abandoned_and_planned_again_under_a_new_number() -> None:
    machine = opened(3, deadline=10.0, device_timeout=100.0, retry_after=0.0)
    feed(machine, Reported("d0", 1, 1))
    effects = feed(machine, Tick(10.0))
    assert kinds(effects) == ["Withdraw", "Withdraw", "Abandon", "Save"]
    assert isinstance(effects[2], Abandon)
    assert effects[2].reason == "1 of at least 3 reports at the deadline"
    effects = feed(machine, Tick(11.0))
    assert effects[0] == Opened(2, ("d0", "d1", "d2"), "round 1")
    with pytest.raises(StaleReport):
        machine.feed(Reported("d1", 1, 1))


def test_a_run_whose_rounds_keep_being_abandoned_fails() -> None:
    machine = opened(1, deadline=10.0, max_abandoned_rounds=2, device_timeout=100.0, retry_after=0.0)
    assert "Finished" not in kinds(feed(machine, Tick(10.0), Tick(11.0)))
    effects = feed(machine, Tick(21.0))
    assert isinstance(effects[-1], Finished)
    assert effects[-1].failed


def test_a_run_waits_for_the_owners_of_its_devices_and_fails_only_by_rounds_that_failed() -> None:
    machine = opened(2, max_abandoned_rounds=2, retry_after=1.0)
    for number in range(1, 5):  # the pause doubles all the same
        effects = feed(machine, *(Failed(f"d{i}", number, 1, "ask", asks=True) for i in range(2)))
        assert kinds(effects) == ["Abandon", "Save"]
        assert feed(machine, Tick(2.0**number - 1.5)) == []
        assert kinds(feed(machine, Tick(2.0**number - 1.0))) == ["Opened", "Offer", "Offer"]
    refuse, fail = Failed("d0", 5, 1, "ask", asks=True), Failed("d1", 5, 1, "no memory")
    abandon, _ = feed(machine, refuse, fail)
    assert abandon == Abandon(5, "no device is left that takes part: d0: ask; d1: no memory")
    feed(machine, Tick(31.0))
    assert feed(machine, Failed("d0", 6, 1, "no memory"), Failed("d1", 6, 1, "no memory"))[-1] == Finished(
        True,
        "6 rounds in a row were abandoned, the last because every device that is left has failed: "
        "d0, d1: no memory",
    )


def test_a_device_that_fails_does_not_end_a_run_in_which_enough_others_ask_their_owners() -> None:
    machine = opened(3, minimum=1, max_abandoned_rounds=2, retry_after=0.0)
    for number in range(1, 5):
        asking = [Failed(f"d{i}", number, 1, "ask", asks=True) for i in range(2)]
        effects = feed(machine, *asking, Failed("d2", number, 1, "no memory"))
        assert kinds(effects) == ["Abandon", "Save"]
        feed(machine, Tick(float(number)))
    last = (Failed("d2", 5, 1, "no memory"), Failed("d1", 5, 1, "ask", asks=True), Reported("d0", 5, 1))
    assert feed(machine, *last) == [Reduce(5, ("d0",))]


@pytest.mark.parametrize(("before", "fails"), [(1, True), (7, False)])
def test_a_server_that_starts_again_takes_rounds_beyond_the_limit_for_those_in_which_owners_were_asked(
    before: int, fails: bool
) -> None:
    state = counting.start(counting.model(), 2)
    policy = RoundPolicy(minimum=1, max_abandoned_rounds=2, retry_after=0.0)
    machine = RoundEngine(counting, policy, 7, state, abandoned_in_a_row=before)
    feed(machine, Joined("d0"), Tick(0.0), Tick(1.0))
    effects = feed(machine, Failed("d0", machine.round, 1, "no memory"))
    assert (Finished in map(type, effects)) is fails


def test_a_failed_device_does_not_hold_the_round_up() -> None:
    machine = opened(3, minimum=2)
    feed(machine, Reported("d0", 1, 1), Failed("d1", 1, 1, "out of memory"))
    assert feed(machine, Reported("d2", 1, 1)) == [Reduce(1, ("d0", "d2"))]
    save = feed(machine, Reduced(1, machine.state))[0]
    assert isinstance(save, Save)
    assert save.missing == {"d1": "out of memory"}


def test_when_every_device_fails_the_round_is_abandoned_at_once() -> None:
    machine = opened(2)
    effects = feed(machine, Failed("d0", 1, 1, "a"), Failed("d1", 1, 1, "b"))
    assert kinds(effects) == ["Abandon", "Save"]


def test_a_run_that_fails_says_why_its_devices_did_each_reason_once() -> None:
    machine = opened(6, max_abandoned_rounds=1)
    reasons = ["the loss is NaN"] * 4 + ["no memory\n  at all", "x" * 1000]
    effects = feed(machine, *(Failed(f"d{i}", 1, 1, reason) for i, reason in enumerate(reasons)))
    because = (
        "every device that is left has failed: d0, d1, d2 and 1 more: the loss is NaN; "
        f"d4: no memory at all; d5: {'x' * 200}..."
    )
    assert effects[0] == Abandon(1, because)
    assert effects[-1] == Finished(True, f"a round was abandoned because {because}")


def test_only_the_first_few_of_many_reasons_are_named() -> None:
    machine = opened(9, max_abandoned_rounds=1)
    effects = feed(machine, *(Failed(f"d{i}", 1, 1, f"reason {i}") for i in range(9)))
    assert isinstance(effects[0], Abandon)
    assert effects[0].reason.endswith("d2: reason 2; and 6 more reasons")


def test_a_silent_device_counts_as_gone_and_one_that_is_heard_does_not() -> None:
    machine = opened(2, minimum=1, device_timeout=30.0)
    feed(machine, Tick(20.0), Heard("d0"), Reported("d1", 1, 1))
    assert feed(machine, Tick(40.0)) == []
    effects = feed(machine, Tick(51.0))
    assert effects == [Reduce(1, ("d1",))]
    save = feed(machine, Reduced(1, machine.state))[0]
    assert isinstance(save, Save)
    assert save.missing == {"d0": "not heard from for 30 s"}
    assert save.memory.misses == {"d0": 1}


@pytest.mark.parametrize(("former", "new", "ends"), [(math.inf, 60.0, 70.0), (600.0, 60.0, 60.0)])
def test_a_changed_deadline_counts_for_the_open_round(former: float, new: float, ends: float) -> None:
    machine = opened(2, minimum=1, deadline=former, device_timeout=1000.0)
    feed(machine, Reported("d1", 1, 1), Tick(10.0))
    policy = RoundPolicy(minimum=1, deadline=new, device_timeout=1000.0)
    assert feed(machine, Changed(policy, machine.state), Tick(ends - 1.0)) == []
    assert kinds(feed(machine, Tick(ends))) == ["Withdraw", "Reduce"]


def test_a_device_that_called_while_no_tick_came_is_not_silent() -> None:
    machine = opened(2, minimum=1, device_timeout=30.0)
    feed(machine, Tick(20.0), Heard("d0", 600.0))  # a decision waited for disk space until 601 s
    feed(machine, Tick(601.0))
    assert machine.sessions.present == ["d0"]


def test_what_the_server_does_is_no_sign_of_life_of_a_device() -> None:
    """Its tasks are offered and withdrawn more often than it may be silent."""
    machine = opened(1, deadline=25.0, device_timeout=60.0, retry_after=0.0)
    effects = feed(machine, *(Tick(float(now)) for now in range(60)))
    assert kinds(effects).count("Offer") == kinds(effects).count("Withdraw") == 2
    assert machine.sessions.is_here("d0")
    feed(machine, Tick(61.0))
    assert not machine.sessions.is_here("d0")


def test_the_minimum_holds_also_when_the_slow_run_out_of_time() -> None:
    machine = opened(4, minimum=4, deadline=100.0)
    feed(machine, Tick(10.0), *(Reported(f"d{i}", 1, 1) for i in range(3)), Tick(40.0))
    assert machine.stage is Stage.OPEN
    assert kinds(feed(machine, *(Heard(f"d{i}") for i in range(4)), Tick(100.0)))[-2:] == ["Abandon", "Save"]


def test_if_none_of_those_drawn_has_a_task_others_that_have_one_are_drawn() -> None:
    """As at the final evaluation, of devices that have a cluster, where each round asks few devices."""
    able: set[str] = set()

    def plan(state: counting.State, present: Sequence[str]) -> Plan | None:
        return counting.plan(state, [device for device in present if device in able])

    def fresh() -> RoundEngine:
        state = counting.start(counting.model(), 1)
        half = SimpleNamespace(plan=plan)
        machine = RoundEngine(half, RoundPolicy(devices=2, minimum=2), 7, state)  # type: ignore[arg-type]
        feed(machine, *(Joined(f"d{i}") for i in range(8)))
        return machine

    machine = fresh()
    assert feed(machine, Tick(0.0), Tick(1.0)) == []
    assert machine.stage is Stage.WAITING
    able |= {f"d{i}" for i in range(8)}
    drawn, *_ = feed(machine, Tick(2.0))
    assert isinstance(drawn, Opened)
    able -= {*drawn.devices}
    first, *offers = feed(fresh(), Tick(0.0))
    again, *_ = feed(fresh(), Tick(0.0))
    assert isinstance(first, Opened)
    assert first == again
    assert len(first.devices) == 2
    assert {*first.devices} <= able
    assert [offer.device for offer in offers if isinstance(offer, Offer)] == [*first.devices]


def test_a_round_that_decides_about_all_asks_those_too_that_it_has_not_drawn() -> None:
    def plan(state: counting.State, present: Sequence[str]) -> Plan | None:
        found = counting.plan(state, present)
        return replace(found, others=Summarize()) if found else None

    def fresh(devices: int, **restored: Any) -> RoundEngine:
        state, half = counting.start(counting.model(), 1), SimpleNamespace(plan=plan)
        policy = RoundPolicy(devices=devices, minimum=2)
        machine = RoundEngine(half, policy, 7, state, **restored)  # type: ignore[arg-type]
        feed(machine, *map(Joined, names))
        return machine

    names = [f"d{i}" for i in range(6)]
    machine = fresh(devices=2)
    drawn, others, *offers = feed(machine, Tick(0.0))
    assert isinstance(drawn, Opened)
    assert isinstance(others, SteppedIn)
    assert len(drawn.devices) == 2
    assert sorted({*drawn.devices, *others.devices}) == names
    asked = {offer.device: type(offer.message) for offer in offers if isinstance(offer, Offer)}
    assert asked == {**dict.fromkeys(names, Summarize), **dict.fromkeys(drawn.devices, Train)}
    late, *rest = names
    assert feed(machine, *(Reported(name, 1, 1) for name in rest)) == []
    assert machine.lacks == 1
    assert kinds(feed(machine, Failed(late, 1, 1, "no memory"))) == ["Reduce"]

    stored = {"asked": drawn.devices, "stepped_in": [others.devices], "reported": rest}
    again = feed(fresh(devices=2, **stored), Tick(0.0))
    assert [(each.device, type(each.message)) for each in again if isinstance(each, Offer)] == [
        (late, asked[late])
    ]
    assert len(again) == 1
    whole, *offers = feed(fresh(devices=0), Tick(0.0))
    assert isinstance(whole, Opened)
    assert [*whole.devices] == names
    assert {type(offer.message) for offer in offers if isinstance(offer, Offer)} == {Train}


def test_a_round_that_needs_a_quorum_waits_for_it_and_does_not_count_below_it() -> None:
    def plan(state: counting.State, present: Sequence[str]) -> Plan | None:
        found = counting.plan(state, present)
        return replace(found, quorum=0.75) if found and state.progress == 1 else found

    half = SimpleNamespace(plan=plan)
    machine = RoundEngine(half, RoundPolicy(deadline=500.0), 7, counting.start(counting.model(), 3))  # type: ignore[arg-type]
    names = [f"d{i}" for i in range(4)]
    feed(machine, *map(Joined, names), Tick(0.0), *(Reported(name, 1, 1) for name in names))
    state = combined(machine, *names)
    feed(machine, Left("d0"), Tick(30.0), Heard("d1"), Heard("d2"), Tick(61.0))  # d3 goes silent
    assert kinds(feed(machine, Reduced(1, state), Tick(62.0))) == ["Save"]
    assert machine.waiting().devices == ("d3",)  # d0 has said goodbye
    assert machine.waiting().text == "2 of the 3 devices of the last round are here, and 3 are needed"
    effects = feed(machine, Joined("d3"), Tick(63.0))
    assert kinds(effects) == ["Opened", "Offer", "Offer", "Offer"]
    feed(machine, Reported("d1", 2, 1), Reported("d2", 2, 1))
    assert kinds(feed(machine, Failed("d3", 2, 2, "no memory"))) == ["Abandon", "Save"]


def test_a_device_that_left_and_came_back_gets_the_same_task_with_the_next_attempt() -> None:
    machine = opened(2)
    feed(machine, Left("d0"))
    effects = feed(machine, Joined("d0"))
    assert kinds(effects) == ["Offer"]
    offer = effects[0]
    assert isinstance(offer, Offer)
    assert (offer.round, offer.attempt) == (1, 2)
    with pytest.raises(StaleReport, match="attempt 1 of device d0 was replaced by attempt 2"):
        machine.feed(Reported("d0", 1, 1))
    assert feed(machine, Reported("d0", 1, 2), Reported("d1", 1, 1)) == [Reduce(1, ("d0", "d1"))]


def test_the_seed_of_a_task_does_not_change_with_the_attempt() -> None:
    machine = engine(minimum=1)
    feed(machine, Joined("d0"))
    first = next(e for e in feed(machine, Tick(0.0)) if isinstance(e, Offer))
    again = next(e for e in feed(machine, Joined("d0")) if isinstance(e, Offer))
    assert first.seed == again.seed


def test_a_report_that_does_not_fit_changes_nothing() -> None:
    machine = opened(2)
    feed(machine, Reported("d0", 1, 1))
    for event in (
        Reported("d0", 1, 1),
        Reported("d1", 2, 1),
        Reported("d1", 1, 5),
        Reported("stranger", 1, 1),
    ):
        with pytest.raises(StaleReport):
            machine.feed(event)
    assert machine.reported == {"d0"}
    assert machine.stage is Stage.OPEN
    with pytest.raises(IllegalEvent):
        machine.feed(Reduced(1, machine.state))
    with pytest.raises(IllegalEvent):
        machine.feed(Left("stranger"))


def test_a_policy_that_cannot_work_is_refused() -> None:
    with pytest.raises(ConfigError, match="minimum of 5"):
        RoundPolicy(devices=4, minimum=5)
    with pytest.raises(ConfigError, match="oversample"):
        RoundPolicy(oversample=0.5)


def test_the_toy_algorithm_is_not_a_constant() -> None:
    task = counting.plan(counting.start(counting.model(), 1), ["d0"])
    assert task is not None
    answer = counting.answer("d3", task.tasks["d0"], 250)
    assert np.allclose(answer.model["w"], 3.25)  # type: ignore[attr-defined]
