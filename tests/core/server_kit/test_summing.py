"""A run with secure aggregation: the same models as plain sums in fixed point, with any drop-outs."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from shoal.core import algorithm
from shoal.core.algorithm import Report
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import initial_weights
from shoal.core.engine import checkpoint
from shoal.core.engine.events import Effect, Opened, Save
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.errors import ConfigError, Refused, Unavailable
from shoal.core.exchange.messages import Message, Train
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.summing import (
    Announce,
    Announced,
    Masked,
    Share,
    TrainMasked,
    Unmask,
    letters_of,
    letters_part,
)
from shoal.core.exchange.tensors import digest, manifest_of, nbytes
from shoal.core.privacy.accountant import Unmetered
from shoal.core.privacy.report import OPEN, left_open
from shoal.core.privacy.secure import fixed_point
from shoal.core.server_kit.aggregation.noised import promise
from shoal.core.types import DeviceId, Tensors
from shoal.lab.devices.simulated import Simulated
from tests.core.device_kit.conftest import blobs, small

DEVICES = [f"d{number:02d}" for number in range(10)]
SECURE: dict[str, Any] = {"aggregation": "mean", "secure_aggregation": True, "central_clip": 4.0, "epochs": 1}
Fault = Callable[[DeviceId, Message, int], Message | None]
"""What a device answers in place of the right answer; None: nothing special. It may raise Unavailable."""


@dataclass
class Fleet:
    """Ten small devices. fault: see `Fault`. plain: the models that devices trained, by round of training."""

    name: str = "fedavg"
    fault: Fault = lambda device, message, number: None
    titles: list[str] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    tasks: list[tuple[DeviceId, Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.learner = small()
        self.network = self.learner.module(seed=0)
        self.memories: dict[DeviceId, Tensors] = {}
        self.counts = dict.fromkeys(DEVICES, 0)

    def context(self, device: DeviceId) -> DeviceContext:
        number = DEVICES.index(device)
        noise = np.random.default_rng(number)
        views = Views.of(blobs(40 + 3 * number))
        return DeviceContext(self.learner, views, "cpu", 0, noise, self.network, Unmetered(noise.bytes))

    def run(self, minimum: int = 8, **parameters: Any) -> Outcome:
        card = algorithm.discover()[self.name]
        half, device_half = card.server(), card.device()
        contexts = {device: self.context(device) for device in DEVICES}

        def call(device: DeviceId) -> Callable[[Message, int], Message]:
            usual = Simulated(device_half, contexts[device], device, self.memories)

            def perform(message: Message, seed: int) -> Message:
                self.tasks.append((device, message))
                self.counts[device] += 1
                other = self.fault(device, message, self.counts[device])
                return usual(message, seed) if other is None else other

            return perform

        state = half.start(
            initial_weights(self.learner, 0), card.configure("default", {**SECURE, **parameters})
        )
        calls = {device: call(device) for device in DEVICES}
        policy = RoundPolicy(minimum=minimum, deadline=60.0)
        return simulate(half, state, calls, policy, 7, watch=self.watch)

    def watch(self, effect: Effect) -> None:
        if isinstance(effect, Opened):
            self.titles.append(effect.title)
        if isinstance(effect, Save):
            self.states.append(effect.state)

    def plain(
        self, base: Tensors, task: TrainMasked, seeds: dict[DeviceId, int], left: list[DeviceId]
    ) -> Tensors:
        """The mean of the updates of these devices, summed as whole numbers without any mask."""
        scale = fixed_point.scale_of(task.clip, 0.0, len(DEVICES))
        total = np.zeros(fixed_point.length(base), np.int64)
        half = algorithm.discover()[self.name].device()
        for device in left:
            context = self.context(device).for_task(seeds[device])
            model: Any = half.perform(Train(base, task.settings, task.cluster), context)
            total += fixed_point.steps_of(fixed_point.vector(base, model.model, task.clip), scale)
        return fixed_point.moved_by(base, fixed_point.to_words(total), scale, len(left))


def test_the_model_is_that_of_the_plain_sum_bit_for_bit_although_a_fifth_drops_out() -> None:
    seeds: dict[DeviceId, int] = {}

    def gone(device: DeviceId, message: Message, number: int) -> None:
        if isinstance(message, TrainMasked) and device in ("d03", "d07"):
            raise Unavailable("gone")

    fleet = Fleet(fault=gone)
    card = algorithm.discover()["fedavg"]
    base = initial_weights(fleet.learner, 0)
    usual = Simulated.__call__

    def seen(own: Simulated, message: Message, seed: int) -> Message:
        if isinstance(message, TrainMasked):
            seeds[own._device] = seed
        return usual(own, message, seed)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Simulated, "__call__", seen)
        outcome = fleet.run(rounds=1, evaluate=False)
    assert not outcome.failed
    assert card.name == "fedavg"
    left = [device for device in DEVICES if device not in ("d03", "d07")]
    task = next(each for _, each in fleet.tasks if isinstance(each, TrainMasked))
    expected = fleet.plain(base, task, seeds, left)
    found = outcome.state.models["global"]
    assert any((found[name] != base[name]).any() for name in base)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
    assert set(outcome.state.assignments) == set(left)
    assert [title.partition("secure aggregation")[2] for title in fleet.titles] == [
        "",
        ": shares of keys",
        ": training, with masked updates",
        ": the masks of the sum",
    ]


def test_no_answer_that_the_server_gets_is_an_update() -> None:
    fleet = Fleet()
    fleet.run(rounds=1, evaluate=False)
    kinds = {message.kind for _, message in fleet.tasks}
    assert kinds == {"announce", "share", "train_masked", "unmask"}
    open_things = {what for _, message in fleet.tasks for what in left_open(message)}
    assert open_things == {OPEN["summed"]}
    for device, message in fleet.tasks:
        if isinstance(message, TrainMasked):
            assert device not in letters_of(message.letters)
            assert len(letters_of(message.letters)) == 9


def test_every_state_in_between_survives_a_checkpoint() -> None:
    fleet = Fleet()
    fleet.run(rounds=1, evaluate=False)
    hint = algorithm.discover()["fedavg"].state_type()
    stages = []
    for state in fleet.states:
        kept: dict[str, Tensors] = {}

        def keep(tensors: Tensors, kept: dict[str, Tensors] = kept) -> Weights:
            kept[digest(tensors)] = tensors
            return Weights(manifest_of(tensors), BlobRef(digest(tensors), nbytes(tensors)))

        structure = json.loads(json.dumps(checkpoint.encode(hint, state, keep)))
        again = checkpoint.decode(hint, structure, lambda weights, kept=kept: kept[weights.blob.sha256])
        stages.append(again.summing.stage if again.summing else "")
        if again.summing:
            assert again.summing.cohorts[0].manifest.digest == state.summing.cohorts[0].manifest.digest
            assert dict(again.summing.cohorts[0].commitments) == dict(state.summing.cohorts[0].commitments)
    assert stages == ["share", "mask", "unmask", ""]


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
            right: Any = Simulated(
                algorithm.discover()["fedavg"].device(), fleet.context(device), device, fleet.memories
            )(message, 0)
            letters = letters_of(right.letters)
            wrong = {name: each if name == "" else bytes(len(each)) for name, each in letters.items()}
            return replace(right, letters=letters_part(wrong))
        return None

    fleet = Fleet(fault=lies)
    outcome = fleet.run(rounds=2, evaluate=False)
    assert not outcome.failed
    assert outcome.state.progress == 2
    assert outcome.state.summing is not None
    assert outcome.state.summing.excluded == ("d05",)
    asked = [
        message.session
        for device, message in fleet.tasks
        if device == "d05" and isinstance(message, Announce)
    ]
    assert asked == ["round 1, attempt 1"]


def wrong_shares(own: "Fleet", message: Message, device: DeviceId) -> Message:
    """What a device answers that makes the sum fail if it is believed."""
    right: Any = Simulated(
        algorithm.discover()["fedavg"].device(), own.context(device), device, own.memories
    )(message, 0)
    return replace(right, shares=letters_part(dict.fromkeys(letters_of(right.shares), b"\1" * 33)))


def test_wrong_shares_of_two_devices_cost_nothing_and_no_honest_device_is_blamed() -> None:
    def lies(device: DeviceId, message: Message, number: int) -> Message | None:
        lying = isinstance(message, Unmask) and device in ("d00", "d06")
        return wrong_shares(fleet, message, device) if lying else None

    fleet = Fleet(fault=lies)
    outcome = fleet.run(rounds=1, evaluate=False)
    assert outcome.state.progress == 1
    assert outcome.state.summing is None
    assert len([each for _, each in fleet.tasks if isinstance(each, Announce)]) == 10


def test_where_most_shares_are_wrong_no_device_is_blamed() -> None:
    def lies(device: DeviceId, message: Message, number: int) -> Message | None:
        lying = isinstance(message, Unmask) and device < "d06" and message.session.endswith("attempt 1")
        return wrong_shares(fleet, message, device) if lying else None

    fleet = Fleet(fault=lies)
    outcome = fleet.run(rounds=1, evaluate=False)
    assert outcome.state.progress == 1
    assert outcome.state.summing is None  # it has no `excluded`
    assert set(outcome.state.assignments) == set(DEVICES)


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


def test_noise_of_the_devices_has_the_promised_size_and_is_accounted() -> None:
    fleet = Fleet()
    outcome = fleet.run(rounds=1, evaluate=False, aggregation="noised", central_noise=2.0, central_clip=0.5)
    without = Fleet().run(rounds=1, evaluate=False, central_clip=0.5)
    apart = np.concatenate(
        [
            (outcome.state.models["global"][name] - array).reshape(-1)
            for name, array in without.state.models["global"].items()
        ]
    )
    # The fewest that suffice are 7 of 10, and 10 were there: sqrt(10 / 7) times z C / 10.
    expected = 2.0 * 0.5 * np.sqrt(10 / 7) / 10
    assert apart.std() == pytest.approx(expected, rel=0.35)
    assert dict(outcome.state.spent) == dict.fromkeys(DEVICES, 1 / (2 * 2.0**2))
    assert "by noise of all devices" in str(promise(outcome.state))
    assert promise(without.state) is None


def test_flux_sums_by_cluster_and_its_descriptors_are_not_summed() -> None:
    fleet = Fleet("flux")
    outcome = fleet.run(rounds=4, earliest=1, warm_up="rounds", privacy="off", classes=3, clusters=1)
    assert not outcome.failed, outcome.reason
    assert outcome.state.progress == 4
    assert set(outcome.state.assignments) == set(DEVICES)
    masked = [message for _, message in fleet.tasks if isinstance(message, TrainMasked)]
    assert sum(message.projector is not None for message in masked) == 10
    assert not any(isinstance(message, Train) for _, message in fleet.tasks)


def test_the_operator_learns_which_models_are_not_trained() -> None:
    state = Fleet().run(rounds=1, evaluate=False).state
    assert list(state.remarks) == []
    models = {"c0": state.models["global"], "c1": state.models["global"]}
    homes = {device: "c0" if device < "d08" else "c1" for device in DEVICES}
    small_one = replace(state, models=models, assignments=homes)
    (remark,) = small_one.remarks
    assert remark.startswith("c1 has 2 devices: models of fewer than 8 are not trained")


def test_clusters_that_are_too_small_are_refused_by_name() -> None:
    fleet = Fleet("flux")
    with pytest.raises(Refused, match="no model has the 8 devices that secure aggregation needs"):
        fleet.run(rounds=4, earliest=1, warm_up="rounds", privacy="off", classes=3, clusters=10)


@pytest.mark.parametrize("rule", ["auto", "clipped", "trimmed", "median"])
def test_robust_rules_are_refused_before_the_run_starts(rule: str) -> None:
    card = algorithm.discover()["fedavg"]
    with pytest.raises(ConfigError, match=f"aggregation={rule} has to see each update"):
        card.configure("default", {"secure_aggregation": True, "aggregation": rule})
    with pytest.raises(ConfigError, match="mixing=soft"):
        algorithm.discover()["flux"].configure("default", {**SECURE, "mixing": "soft"})


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


def test_where_a_sum_fails_a_device_that_came_meanwhile_does_not_end_the_run() -> None:
    """Announcements that few devices made, among answers to another question, are no cohort."""
    fleet = Fleet()
    fleet.run(rounds=1, evaluate=False)
    half = algorithm.discover()["fedavg"].server()
    at_share = next(state for state in fleet.states if state.summing and state.summing.stage == "share")
    announced = next(iter(at_share.summing.cohorts[0].announcements.values()))
    late = Announced(letters_part({"": bytes.fromhex(announced)}))
    after = half.reduce(at_share, [Report("d99", late)])
    assert after.summing.stage == "announce"
    assert after.summing.attempt == 1
