"""Attacks on a real fleet: ten devices learn digits in one small network, two of them do not mean well."""

import functools
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shoal.core.algorithm import find
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.exchange.messages import Evaluate, Evaluated, Message, Train, Trained
from shoal.core.exchange.tensors import digest
from shoal.core.types import DeviceId
from shoal.simulation import images
from shoal.simulation.images import unit
from tests.fleet import data, first_model, fleet, learner

Device = Callable[[Message, int], Message]
SETTINGS = {"inputs": "raw", "evaluate": False}
CLAIM = 10**9
DEVICES = 10


def context(own: Dataset, test: Dataset | None = None) -> DeviceContext:
    return DeviceContext(learner(), Views.of(own, test), "cpu", 0, np.random.default_rng(0))


def run(hostile: Callable[[Device, int], Device] | None, rule: str = "default", rounds: int = 3) -> Outcome:
    """Ten devices of upright digits; the last two are what `hostile` makes of them, or are not there."""
    card, _ = find("fedavg")
    devices: dict[DeviceId, Device] = dict(fleet(card, DEVICES, (0,)))
    for number in (8, 9):
        device = devices.pop(f"d{number}")
        if hostile is not None:
            devices[f"d{number}"] = hostile(device, number)
    changes = SETTINGS | {"rounds": rounds} | ({} if rule == "default" else {"aggregation": rule})
    state = card.server().start(first_model(), card.configure("default", changes))
    return simulate(card.server(), state, devices, RoundPolicy(minimum=8), 7)


def accuracy(outcome: Outcome) -> float:
    """In percent, on the digits that no device trains on."""
    _, test = images.digits()
    judge = context(data(0, (0,)), Dataset(unit(test.x), test.y))
    answer = standard.perform(Evaluate(outcome.state.models["global"], "test"), judge)
    assert isinstance(answer, Evaluated)
    return 100.0 * answer.accuracy


@functools.cache
def honest(rounds: int) -> float:
    """The accuracy that eight honest devices reach in this many rounds."""
    return accuracy(run(None, rounds=rounds))


def answering(change: Callable[[Train, Trained], Trained]) -> Callable[[Device, int], Device]:
    """A device that trains as it should, and reports something else."""

    def hostile(device: Device, number: int) -> Device:
        def perform(message: Message, seed: int) -> Message:
            answer = device(message, seed)
            assert isinstance(message, Train)
            assert isinstance(answer, Trained)
            return change(message, answer)

        return perform

    return hostile


def stretched(times: float) -> Callable[[Device, int], Device]:
    def change(task: Train, answer: Trained) -> Trained:
        model = {
            name: (start + times * (answer.model[name] - start)).astype(start.dtype)
            for name, start in task.model.items()
        }
        return replace(answer, model=model)

    return answering(change)


def flipping_labels(device: Device, number: int) -> Device:
    """It trains on 9 - y, with its whole heart, and claims a billion samples."""
    own = data(number, (0,))
    assert own.y is not None
    flipped = context(Dataset(own.x, 9 - own.y))

    def perform(message: Message, seed: int) -> Message:
        answer = standard.perform(message, flipped.for_task(seed))
        assert isinstance(answer, Trained)
        return replace(answer, examples=CLAIM)

    return perform


ON_DIGITS = {"times 100": stretched(100.0), "labels": flipping_labels}
"""Updates that are reversed, every algorithm bears: tests/checks/test_liars.py."""


@pytest.mark.parametrize("attack", ON_DIGITS)
def test_digits_are_learned_as_well_when_two_of_ten_are_hostile(attack: str) -> None:
    assert accuracy(run(ON_DIGITS[attack], rounds=12)) >= honest(12) - 2.0


@pytest.mark.parametrize("attack", ON_DIGITS)
def test_the_plain_mean_learns_less_from_eight_rounds_than_honest_devices_from_one(attack: str) -> None:
    assert accuracy(run(ON_DIGITS[attack], "mean", rounds=8)) < honest(1)


def test_a_model_that_is_no_number_is_refused_before_it_is_near_any_rule() -> None:
    """The round goes on without the device, as if it were not there."""

    def change(task: Train, answer: Trained) -> Trained:
        return replace(answer, model={name: array * np.nan for name, array in answer.model.items()})

    outcome = run(answering(change))
    assert digest(outcome.state.models["global"]) == digest(run(None).state.models["global"])
    assert "values are NaN or infinite" in outcome.missing[1]["d9"]
