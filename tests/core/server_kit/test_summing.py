"""A run with secure aggregation: the same models as plain sums in fixed point, with any drop-outs."""

import json
from dataclasses import replace

import numpy as np
import pytest

from shoal.core import algorithm
from shoal.core.device_kit.learner import initial_weights
from shoal.core.engine import checkpoint
from shoal.core.errors import ConfigError, Refused, Unavailable
from shoal.core.exchange.messages import Message, Train
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.summing import (
    Announce,
    Share,
    TrainMasked,
    Unmask,
)
from shoal.core.exchange.tensors import digest, manifest_of, nbytes
from shoal.core.privacy.report import OPEN, left_open
from shoal.core.server_kit import summing
from shoal.core.server_kit.aggregation.noised import promise
from shoal.core.types import DeviceId, Tensors
from shoal.simulation.simulated import Simulated
from tests.core.server_kit.summed import DEVICES, SECURE, Fleet


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
            assert device not in message.letters.by_device
            assert len(message.letters.by_device) == 9


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


def test_a_sum_goes_on_with_the_devices_that_were_drawn_for_it() -> None:
    fleet = Fleet()
    outcome = fleet.run(drawn=8, rounds=4, evaluate=False)
    assert not outcome.failed
    assert outcome.state.progress == 4
    asked: dict[str, list[set[str]]] = {}
    for kind in (Announce, Share, TrainMasked, Unmask):
        found = [device for device, task in fleet.tasks if isinstance(task, kind)]
        asked[kind.__name__] = [{*found[first : first + 8]} for first in range(0, len(found), 8)]
    assert len(asked["Announce"]) == 4
    assert all(len(part) == 8 for part in asked["Announce"])
    assert len({frozenset(part) for part in asked["Announce"]}) > 1  # or nothing was drawn
    assert asked["Share"] == asked["TrainMasked"] == asked["Unmask"] == asked["Announce"]


def test_a_drawn_device_that_is_gone_is_waited_for_and_then_the_sum_goes_on_without_it() -> None:
    def gone(device: DeviceId, message: Message, number: int) -> None:
        if device == "d03" and isinstance(message, Share):
            raise Unavailable("gone")

    fleet = Fleet(fault=gone)
    outcome = fleet.run(drawn=8, rounds=4, evaluate=False)
    assert not outcome.failed
    assert outcome.state.progress == 4
    kinds = [(device, type(task).__name__) for device, task in fleet.tasks]
    first = kinds.index(("d03", "Share")) // 8 * 8  # all exchanges until then had eight devices
    began = {device for device, kind in kinds[first : first + 8] if kind == "Share"}
    assert len(began) == 8
    trained = kinds[first + 8 : first + 15]
    assert {*trained} == {(device, "TrainMasked") for device in began - {"d03"}}


def test_the_operator_learns_which_models_are_not_trained() -> None:
    state = Fleet().run(rounds=1, evaluate=False).state
    assert summing.remarks(state) == []
    models = {"c0": state.models["global"], "c1": state.models["global"]}
    homes = {device: "c0" if device < "d08" else "c1" for device in DEVICES}
    small_one = replace(state, models=models, assignments=homes)
    (remark,) = summing.remarks(small_one)
    assert remark.startswith("c1 has 2 devices: models of fewer than 8 are not trained")


def test_clusters_that_are_too_small_are_refused_by_name() -> None:
    fleet = Fleet("flux")
    with pytest.raises(Refused, match="no model has the 8 devices that secure aggregation needs"):
        fleet.run(rounds=4, earliest=1, warm_up="rounds", privacy="off", classes=3, clusters=10)


@pytest.mark.parametrize("rule", ["clipped", "trimmed", "median"])
def test_robust_rules_are_refused_before_the_run_starts(rule: str) -> None:
    card = algorithm.discover()["fedavg"]
    with pytest.raises(ConfigError, match=f"aggregation={rule} has to see each update"):
        card.configure("default", {"secure_aggregation": True, "aggregation": rule})
    with pytest.raises(ConfigError, match="mixing=soft"):
        algorithm.discover()["flux"].configure("default", {**SECURE, "mixing": "soft"})
