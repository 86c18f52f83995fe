"""Secure aggregation with devices that leave, forget their part of a sum, or lie about it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.core import algorithm
from shoal.core.algorithm import Report
from shoal.core.engine.events import Joined, Opened, Reduce, Reduced, Reported, Save, Tick
from shoal.core.engine.rounds import RoundEngine, RoundPolicy
from shoal.core.errors import Refused, Unavailable
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import Letters
from shoal.core.exchange.summing import (
    Announce,
    Announced,
    Masked,
    Share,
    TrainMasked,
    Unmask,
)
from shoal.core.privacy.secure.cohort import KEYS
from shoal.core.privacy.secure.member import Member
from shoal.core.server_kit import summing
from shoal.core.server_kit.summing import Summing
from shoal.core.types import DeviceId
from shoal.simulation.simulated import Simulated
from tests.core.server_kit.summed import DEVICES, Fleet


@pytest.mark.parametrize("kind", [Share, TrainMasked, Unmask])
def test_where_too_many_have_lost_their_part_the_round_begins_again(kind: type[Message]) -> None:
    forgot: set[DeviceId] = set()

    def forgets(device: DeviceId, message: Message, number: int) -> None:
        if isinstance(message, kind) and device < "d06" and device not in forgot:
            forgot.add(device)
            fleet.memories.pop(device)

    fleet = Fleet(fault=forgets)
    outcome = fleet.run(rounds=1, evaluate=False)
    assert not outcome.failed
    assert outcome.state.progress == 1
    assert len(forgot) == 6
    sessions = [message.session for device, message in fleet.tasks if isinstance(message, Announce)]
    assert dict.fromkeys(sessions) == dict.fromkeys(["round 1, attempt 1", "round 1, attempt 2"])


def test_a_run_in_which_no_sum_is_ever_completed_fails_and_says_why() -> None:
    def forgets(device: DeviceId, message: Message, number: int) -> None:
        if isinstance(message, Unmask) and device < "d06":
            fleet.memories.pop(device)

    fleet = Fleet(fault=forgets)
    with pytest.raises(Refused, match="began 5 times in a row without a result"):
        fleet.run(rounds=1)


def test_a_device_whose_shares_no_one_can_read_is_not_asked_again() -> None:
    def lies(device: DeviceId, message: Message, number: int) -> Message | None:
        if isinstance(message, Share) and device == "d05":
            return changed(
                fleet,
                message,
                device,
                letters=lambda sent: Letters(
                    {to: each if to == "" else bytes(len(each)) for to, each in sent.by_device.items()}
                ),
            )
        return None

    fleet = Fleet(fault=lies)
    outcome = fleet.run(rounds=2, evaluate=False)
    assert not outcome.failed
    assert outcome.state.progress == 2
    assert outcome.state.summing is not None
    assert outcome.state.summing.excluded == ("d05",)
    (remark,) = summing.remarks(outcome.state)
    assert remark.startswith("d05 is quarantined: it sent wrong shares for a sum")
    assert outcome.state.summing.readmitted({"d05", "d06"}).excluded == ()
    assert outcome.state.summing.readmitted({"d06"}).excluded == ("d05",)
    asked = [
        message.session
        for device, message in fleet.tasks
        if device == "d05" and isinstance(message, Announce)
    ]
    assert asked == ["round 1, attempt 1"]


def test_a_device_that_leaves_one_other_out_of_its_shares_has_no_part_in_the_sum() -> None:
    """The other one would mask without it, and their masks would stay on the sum."""

    def lies(device: DeviceId, message: Message, number: int) -> Message | None:
        if device != "d05" or not isinstance(message, Share | TrainMasked):
            return None
        own = Simulated(
            algorithm.discover()["fedavg"].device(), fleet.context(device), device, fleet.memories
        )
        if isinstance(message, TrainMasked):  # it does not care about the letter to itself
            others = {name: each for name, each in message.letters.by_device.items() if name != device}
            return own(replace(message, letters=Letters(others)), 0)
        right: Any = own(message, 0)
        letters = {**right.letters.by_device}
        letters["d05"] = letters.pop("d06")
        return replace(right, letters=Letters(letters))

    fleet = Fleet(fault=lies)
    outcome = fleet.run(rounds=1, evaluate=False)
    assert not outcome.failed
    assert set(outcome.state.assignments) == {*DEVICES} - {"d05"}
    (model,) = outcome.state.models.values()
    assert max(np.abs(values).max() for values in model.values()) < 10.0


def changed(own: "Fleet", message: Message, device: DeviceId, **fields: Any) -> Message:
    """What a device answers, but for these fields."""
    right: Any = Simulated(
        algorithm.discover()["fedavg"].device(), own.context(device), device, own.memories
    )(message, 0)
    return replace(right, **{name: change(getattr(right, name)) for name, change in fields.items()})


def test_wrong_shares_of_three_devices_cost_nothing_and_name_these() -> None:
    def lies(device: DeviceId, message: Message, number: int) -> None:
        if isinstance(message, Unmask) and device in ("d00", "d06", "d07"):
            member = Member.from_tensors(fleet.memories[device])
            assert member is not None
            wrong = {of: bytes(33) + bytes(33) for of in member.held or {}}
            fleet.memories[device] = replace(member, held=wrong).to_tensors()

    fleet = Fleet(fault=lies)
    outcome = fleet.run(rounds=1, evaluate=False)
    assert outcome.state.progress == 1
    assert outcome.state.summing.excluded == ("d00", "d06", "d07")
    assert set(outcome.state.assignments) == {*DEVICES}
    assert len([each for _, each in fleet.tasks if isinstance(each, Announce)]) == 10


def test_where_most_openings_cannot_be_read_no_device_is_blamed() -> None:
    def lies(device: DeviceId, message: Message, number: int) -> Message | None:
        if isinstance(message, Unmask) and device < "d06" and message.session.endswith("attempt 1"):
            return changed(
                fleet,
                message,
                device,
                shares=lambda sent: Letters({to: bytes(len(each)) for to, each in sent.by_device.items()}),
            )
        return None

    fleet = Fleet(fault=lies)
    outcome = fleet.run(rounds=1, evaluate=False)
    assert outcome.state.progress == 1
    assert outcome.state.summing is None  # it has no `excluded`
    assert set(outcome.state.assignments) == set(DEVICES)
    assert len([each for _, each in fleet.tasks if isinstance(each, Announce)]) == 20


def test_devices_that_announce_the_same_keys_are_left_out_of_the_cohort() -> None:
    same: list[Message] = []

    def copies(device: DeviceId, message: Message, number: int) -> Message | None:
        if isinstance(message, Announce) and device in ("d02", "d08"):
            if not same:
                half = algorithm.discover()["fedavg"].device()
                same.append(Simulated(half, fleet.context(device), device, fleet.memories)(message, 0))
            return same[0]
        return None

    fleet = Fleet(fault=copies)
    outcome = fleet.run(rounds=1, evaluate=False)
    assert outcome.state.progress == 1
    assert set(outcome.state.assignments) == {*DEVICES} - {"d02", "d08"}


@pytest.mark.parametrize("kind", [Share, TrainMasked, Unmask])
def test_where_just_as_many_as_begin_are_there_one_may_still_leave(kind: type[Message]) -> None:
    """The minimum holds for those that begin a sum; more than two thirds of them complete it."""
    gone: set[DeviceId] = set()

    def leaves(device: DeviceId, message: Message, number: int) -> None:
        if (isinstance(message, kind) and device in ("d02", "d05")) or device in gone:
            gone.add(device)
            raise Unavailable("gone for good")

    fleet = Fleet(fault=leaves)
    outcome = fleet.run(minimum=len(DEVICES), rounds=1, evaluate=False)
    assert not outcome.failed, outcome.reason
    assert outcome.state.progress == 1
    assert {message.session for _, message in fleet.tasks if isinstance(message, Announce)} == {
        "round 1, attempt 1"
    }
    enough = [getattr(state, "enough", 0) for state in fleet.states]
    assert enough == [7, 7, 7, 0], "more than two thirds of ten, until the sum is complete"


def test_a_device_that_is_gone_at_the_end_costs_nothing() -> None:
    def gone(device: DeviceId, message: Message, number: int) -> None:
        if isinstance(message, Unmask) and device in ("d00", "d09"):
            raise Unavailable("gone")

    outcome = Fleet(fault=gone).run(rounds=1, evaluate=False)
    assert not outcome.failed
    assert len(outcome.state.assignments) == 10


def test_an_answer_of_another_shape_is_refused() -> None:
    fleet = Fleet(
        fault=lambda device, message, number: (
            Masked({"sum": np.zeros(3, np.int32)})
            if isinstance(message, TrainMasked) and device == "d01"
            else None
        )
    )
    outcome = fleet.run(rounds=1, evaluate=False)
    assert not outcome.failed
    assert "d01" not in outcome.state.assignments


def test_a_device_that_steps_into_an_exchange_is_asked_for_it_only_if_it_has_a_part_in_it() -> None:
    fleet = Fleet()
    fleet.run(rounds=1, evaluate=False)
    half = algorithm.discover()["fedavg"].server()
    at_share = next(state for state in fleet.states if state.summing and state.summing.stage == "share")
    (one,) = half.plan(at_share, ["d04"]).tasks.items()  # type: ignore[union-attr]
    assert (one[0], type(one[1])) == ("d04", Share)
    assert half.plan(at_share, ["d99"]).tasks == {}  # type: ignore[union-attr]
    again = half.plan(at_share, [f"d{number}" for number in range(90, 98)])
    assert {type(task) for task in again.tasks.values()} == {Announce}  # type: ignore[union-attr]


def test_where_a_device_of_each_cluster_is_silent_the_round_begins_again() -> None:
    """All of them together are enough for the round, and the devices of no model for a sum."""
    fleet = Fleet()
    state = fleet.run(rounds=2, evaluate=False).state
    half, model = algorithm.discover()["fedavg"].server(), state.models["global"]
    homes = {f"d{number:02}": f"c{number % 2}" for number in range(16)}
    keys = [(device, bytes([number]) * KEYS) for number, device in enumerate(homes)]
    said = [Report(device, Announced(Letters({"": each}))) for device, each in keys]
    state = replace(
        state, phase="train", progress=1, models={"c0": model, "c1": model}, assignments=homes, summing=None
    )
    after = half.reduce(state, said[2:])
    assert (after.summing.stage, after.summing.attempt) == ("announce", 1)
    assert [cohort.key for cohort in half.reduce(after, said[1:]).summing.cohorts] == ["c1"]
    last = replace(after, summing=replace(after.summing, attempt=summing.ATTEMPTS - 1))
    with pytest.raises(Refused, match=r"no model has the 8 devices .*c0 7, c1 7"):
        half.reduce(last, said[2:])
    few = {device: homes[device] for device in list(homes)[2:]}
    with pytest.raises(Refused, match=r"no model has the 8 devices .*c0 7, c1 7"):
        half.reduce(replace(state, assignments=few), said[2:])


def test_a_sum_begins_again_after_the_pause_of_an_abandoned_round() -> None:
    """At once it would fail five times within seconds, and end the run before a device is back."""
    fleet = Fleet()
    state = fleet.run(rounds=2, evaluate=False).state
    again = replace(state, phase="train", progress=1, summing=Summing().again().again())
    half = algorithm.discover()["fedavg"].server()
    engine = RoundEngine(half, RoundPolicy(minimum=8, retry_after=5.0), 7, replace(again, summing=None))
    for device in DEVICES:
        engine.feed(Joined(device))
    engine.feed(Tick(0.0))
    for device in DEVICES:
        effects = engine.feed(Reported(device, 1, engine.sessions.of(device).attempt))
    assert isinstance(effects[-1], Reduce)
    (saved,) = engine.feed(Reduced(1, again))
    assert isinstance(saved, Save)
    assert saved.abandoned_in_a_row == 2, "a restart waits, too"
    assert engine.feed(Tick(9.0)) == []
    assert "too few devices took part" in engine.waiting().text
    opened, *_ = engine.feed(Tick(10.0))
    assert isinstance(opened, Opened)
    for device in DEVICES:
        engine.feed(Reported(device, 2, engine.sessions.of(device).attempt))
    begun = replace(again, summing=replace(again.summing, stage=summing.SHARE))
    (saved,) = engine.feed(Reduced(2, begun))
    assert isinstance(saved, Save)
    assert saved.abandoned_in_a_row == 0, "an attempt that has begun goes on at once"


def test_where_a_sum_fails_a_device_that_came_meanwhile_does_not_end_the_run() -> None:
    """Announcements that few devices made, among answers to another question, are no cohort."""
    fleet = Fleet()
    fleet.run(rounds=1, evaluate=False)
    half = algorithm.discover()["fedavg"].server()
    at_share = next(state for state in fleet.states if state.summing and state.summing.stage == "share")
    announced = next(iter(at_share.summing.cohorts[0].announcements.values()))
    late = Announced(Letters({"": bytes.fromhex(announced)}))
    after = half.reduce(at_share, [Report("d99", late)])
    assert after.summing.stage == "announce"
    assert after.summing.attempt == 1
