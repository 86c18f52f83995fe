"""When a run of `auto` rounds ends: by what tasks of training measure, or at its bound."""

from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import MAX_ROUNDS, Report, find
from shoal.core.algorithms.fedavg import server
from shoal.core.engine.checkpoint import decode, encode
from shoal.core.exchange.messages import HeldOut, Train, Trained
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.exchange.tensors import digest, layout, manifest_of
from shoal.core.server_kit.ending import FALL, WINDOW, Ending
from shoal.core.types import Tensors

DEVICES = tuple(f"d{number}" for number in range(4))
MODEL = {"w": np.zeros(2, np.float32)}
LEAST = 2 * WINDOW
"""Rounds after which a run can have settled."""


def reports(
    accuracy: float, loss: float = 1.0, examples: int = 10_000, devices: Any = DEVICES
) -> list[Report]:
    held_out = HeldOut(accuracy, loss, examples)
    return [Report(device, Trained(MODEL, 10, 0.5, held_out=held_out)) for device in devices]


def settled(*rounds: list[Report], learns: bool = True) -> int:
    found = Ending()
    for progress, each in enumerate(rounds):
        found = found.heard(each, progress, learns)
    return found.settled


def test_a_run_settles_where_neither_figure_gets_better_and_not_before() -> None:
    assert settled(*[reports(0.9)] * LEAST) == LEAST
    assert settled(*[reports(0.9)] * (LEAST - 1)) == 0
    assert settled(*[reports(0.5 + 0.01 * number) for number in range(15)]) == 0
    assert settled(*[reports(0.9, 0.9**number) for number in range(15)]) == 0, "the loss still falls"
    assert settled(*[reports(0.0, 5.0)] * 15, learns=False) == 0, "a model that has yet to learn"
    rising = [reports(0.5 + 0.05 * min(number, 8)) for number in range(20)]
    assert 8 + WINDOW < settled(*rising) <= 8 + LEAST


def test_few_samples_show_no_small_gain_so_they_stop_nothing() -> None:
    assert settled(*[reports(0.9, examples=20)] * 15) == 0
    one_says_it_has_many = reports(0.9, examples=20)[1:] + reports(0.9, examples=1 << 40)[:1]
    assert settled(*[one_says_it_has_many] * 15) == 0
    assert settled(*[reports(1.0, examples=20)] * LEAST) == LEAST, "there is nothing left to gain"


def test_one_device_cannot_hide_that_the_others_get_better() -> None:
    def lied(number: int) -> list[Report]:
        honest = reports(0.3 + 0.03 * number, devices=[f"d{each}" for each in range(1, 20)])
        return reports(max(0.0, 1.0 - 0.1 * number), devices=["d0"]) + honest

    assert settled(*map(lied, range(15))) == 0


@pytest.mark.parametrize("liars", [1, 4])
def test_fewer_than_a_quarter_neither_keep_a_run_from_its_end_nor_end_it(liars: int) -> None:
    """By losses without bounds, by accuracies that fall, and by claims of many samples."""

    def lied(accuracy: float, lie: float, loss: float) -> list[Report]:
        honest = reports(accuracy, devices=[f"d{number}" for number in range(17 - liars)])
        return honest + reports(lie, loss, 1 << 40, [f"z{number}" for number in range(liars)])

    assert settled(*[lied(0.9, 1.0, 1e30 * 0.5**number) for number in range(LEAST)]) == LEAST
    assert settled(*[lied(0.3 + 0.03 * number, 1.0 - 0.06 * number, 1e30) for number in range(15)]) == 0


def test_rounds_of_other_devices_are_not_compared_and_without_figures_there_is_no_end() -> None:
    drawn = [reports(0.9, devices=DEVICES[number % 2 :: 2]) for number in range(15)]
    assert settled(*drawn) == 0
    silent = [Report(device, Trained(MODEL, 10, 0.5)) for device in DEVICES]
    assert settled(*[silent] * 15) == 0


def run(accuracy: float, **changes: Any) -> tuple[list[float], Any]:
    """The learning rates of a run in which nothing ever gets better, and its last state. The server is
    restarted after each round."""
    state: Any = server.start(
        MODEL, find("fedavg")[0].configure("default", {"inputs": "raw", "evaluate": False, **changes})
    )
    rates, kept = [], dict[str, Tensors]()

    def keep(tensors: Tensors) -> Weights:
        kept[digest(tensors)] = tensors
        return Weights(manifest_of(tensors), BlobRef(digest(tensors), layout(manifest_of(tensors))[1]))

    while plan := server.plan(state, DEVICES):
        task = plan.tasks["d0"]
        assert isinstance(task, Train)
        rates.append(task.settings.learning_rate)
        held_out = HeldOut(accuracy, 1.0, 10_000)
        answer = Trained(MODEL, 10, 1.0 / (1 + state.progress), held_out=held_out)
        state = server.reduce(state, [Report(device, answer) for device in DEVICES])
        state = decode(server.State, encode(server.State, state, keep), lambda it: kept[it.blob.sha256])
    return rates, state


def test_when_it_has_settled_the_rate_falls_and_the_run_ends_and_says_so() -> None:
    rates, state = run(0.9)
    assert len(rates) == state.progress == state.rounds < MAX_ROUNDS
    first = state.ending.settled
    assert state.rounds == first + FALL
    assert rates[: first + 1] == [rates[0]] * (first + 1)
    assert sorted(rates, reverse=True) == rates
    assert rates[-1] == pytest.approx(0.1 * rates[0])
    assert any(f"round {state.rounds} is the last" in remark for remark in state.remarks)


def test_a_number_means_that_number_and_with_dp_sgd_auto_means_the_most() -> None:
    assert run(0.9, rounds=14)[1].progress == 14
    card = find("fedavg")[0]
    private = server.start(MODEL, card.configure("default", {"dp_epsilon": 3.0}))
    assert private.lessons == private.rounds == MAX_ROUNDS
    plan = server.plan(private, DEVICES)
    assert plan is not None
    task = plan.tasks["d0"]
    assert isinstance(task, Train)
    assert task.private is not None
    assert task.private.rounds == MAX_ROUNDS
    assert plan.title.startswith(f"training round 1 of {MAX_ROUNDS}:")
