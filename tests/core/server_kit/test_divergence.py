"""How training goes, by its losses: when it fell, what the model goes back to, and how often."""

import json
from collections.abc import Sequence

import numpy as np
import pytest

from shoal.core.algorithm import Report
from shoal.core.engine import checkpoint
from shoal.core.exchange.messages import Protected, Trained
from shoal.core.exchange.tensors import digest
from shoal.core.privacy.cost import ORDERS
from shoal.core.server_kit.aggregation.averaging import next_models
from shoal.core.server_kit.aggregation.divergence import FALLS, LossHistory
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.standard import training
from shoal.core.types import Tensors


def model(value: float) -> Tensors:
    return {"w": np.array([value, 0.0], np.float32)}


class Run:
    """One model and three devices; the update of each round is 1, and the losses are given."""

    def __init__(self, rule: str = "clipped") -> None:
        self.models, self.guard, self.rule = {"c0": model(0.0)}, Guard(), rule

    def round(self, *losses: float, private: bool = False) -> float:
        base = float(self.models["c0"]["w"][0])
        paid = {"private": Protected(1.0, 1.0, 0.1, 5), "curve": tuple(0.1 * each for each in ORDERS)}
        reports = [
            Report(f"d{i}", Trained(model(base + 1.0), 10, loss, **(paid if private else {})))  # type: ignore[arg-type]
            for i, loss in enumerate(losses)
        ]
        self.models, self.guard = next_models(self.models, reports, self.rule, self.guard)
        return float(self.models["c0"]["w"][0])


def test_a_round_in_which_most_is_lost_does_not_count_and_the_rate_is_halved() -> None:
    run = Run()
    assert [run.round(*[loss] * 3) for loss in (2.3, 1.5, 0.8)] == [1, 2, 3]
    assert run.round(2.2, 2.3, 2.3) == 3
    assert run.guard.rate("c0") == 0.5
    assert run.guard.remarks == (
        "model c0: most of what it had learned is gone (loss 2.3, at best 0.8): this round does not count, "
        "and its devices continue with 50 % of the learning rate",
    )
    assert run.round(0.9, 0.9, 0.9) == 4
    assert run.guard.rate("c0") == 0.5
    assert run.guard.remarks == ()


def test_if_the_next_round_falls_too_the_model_was_at_fault_and_the_one_before_returns() -> None:
    run = Run()
    assert [run.round(*[loss] * 3) for loss in (2.3, 0.5)] == [1, 2]
    assert [run.round(*[2.3] * 3) for _ in range(2)] == [2, 1]
    assert run.round(0.6, 0.6, 0.6) == 2


def test_it_goes_back_a_bounded_number_of_times_and_then_says_that_it_does_not_learn() -> None:
    run = Run()
    for loss in (2.3, 0.5):
        run.round(*[loss] * 3)
    found = [run.round(*[2.3] * 3) for _ in range(FALLS + 2)]
    assert found == [2, 1, 1, 2, 3]
    assert run.guard.rate("c0") == 0.5**FALLS
    assert run.guard.remarks[0].startswith("model c0 is not learning: after 7 rounds its loss is still")


def test_a_model_that_never_learns_and_is_worse_than_at_first_begins_again_with_half_the_rate() -> None:
    run = Run()
    assert [run.round(*[loss] * 3) for loss in (2.2, 2.3, 2.28, 2.31)] == [1, 2, 3, 4]
    assert run.guard.histories["c0"].lost
    assert run.round(2.3, 2.3, 2.3) == 0, "the first model"
    assert run.guard.rate("c0") == 0.5
    assert run.guard.remarks == (
        "model c0 did not learn: its losses stayed near the first one (2.2). Its devices begin again from "
        "an earlier model, with 50 % of the learning rate",
    )
    assert [run.round(*[loss] * 3) for loss in (2.2, 1.8)] == [1, 2]
    assert run.guard.remarks == ()
    assert [run.round(*[loss] * 3) for loss in (1.0, 2.2, 2.2)] == [3, 3, 2], "from here on it has learned"
    assert not run.guard.histories["c0"].lost


def test_it_begins_again_a_bounded_number_of_times() -> None:
    run = Run()
    run.round(2.2, 2.2, 2.2)
    found = [run.round(*[2.3] * 3) for _ in range(4 * (FALLS + 1))]
    assert found == [2, 3, 4, 0] + [1, 2, 3, 0] * (FALLS - 1) + [1, 2, 3, 4]
    assert run.guard.rate("c0") == 0.5**FALLS


@pytest.mark.parametrize(
    "losses",
    [
        (2.3, 2.3, 2.31, 2.3, 2.3),
        (2.3, 2.4, 2.4, 2.4, 2.31),
        (2.3, 2.2, 2.1),
        (0.41, 0.4, 0.39, 0.47, 0.46, 0.46, 0.53, 0.52, 0.5),  # the data of elec2 drift
    ],
)
def test_a_loss_that_does_not_move_or_rises_after_it_fell_is_no_reason_to_begin_again(
    losses: tuple[float, ...],
) -> None:
    run = Run()
    assert [run.round(*[loss] * 3) for loss in losses] == list(range(1, len(losses) + 1))
    assert run.guard.rate("c0") == 1.0


def two_models(first: Sequence[float], second: Sequence[float]) -> tuple[list[float], Guard]:
    """Where the first of two models is after each round, with these losses of its three devices, while the
    devices of the second report theirs."""
    models, guard, found = {"c0": model(0.0), "c1": model(0.0)}, Guard(), []
    for losses in zip(first, second, strict=True):
        reports = [
            Report(f"{key}-{i}", Trained({"w": models[key]["w"] + np.float32([1, 0])}, 10, loss))
            for key, loss in zip(models, losses, strict=True)
            for i in range(3)
        ]
        shares = {f"{key}-{i}": {key: 1.0} for key in models for i in range(3)}
        models, guard = next_models(models, reports, "clipped", guard, shares)
        found.append(float(models["c0"]["w"][0]))
    return found, guard


DEAD = (2.3, 2.31, 2.2, 2.3, 2.29, 2.3, 2.3, 2.31, 2.3)
"""Of a network that gives one answer for all samples; a single round looks better by chance."""
LEARNS = (2.3, 2.0, 1.5, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5)


def test_a_model_that_learns_nothing_begins_again_where_another_one_learns() -> None:
    found, guard = two_models(DEAD, LEARNS)
    assert found == [1, 2, 3, 4, 5, 6, 7, 0, 1], "the first model, as nothing was learned since"
    assert (guard.rate("c0"), guard.rate("c1")) == (0.5, 1.0)


@pytest.mark.parametrize("other", [DEAD, (2.3, 2.1, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3)])
def test_it_goes_on_where_no_other_has_learned_enough_to_show_that_the_rate_is_not_too_low(
    other: tuple[float, ...],
) -> None:
    found, guard = two_models(DEAD, other)
    assert (found, guard.rate("c0")) == (list(range(1, 10)), 1.0)


@pytest.mark.parametrize(
    "losses",
    [
        (2.3, 2.0, 2.1, 2.12, 2.1, 2.13, 2.1, 2.1, 2.1),  # it has learned something
        (2.3, 2.29, 2.28, 2.29, 2.27, 2.26, 2.25, 2.26, 2.24),  # it is slow
        (0.10, 0.11, 0.10, 0.12, 0.11, 0.10, 0.11, 0.12, 0.11),  # it was trained before the run
    ],
)
def test_nor_does_a_model_begin_again_that_has_learned_a_little_is_slow_or_is_good(
    losses: tuple[float, ...],
) -> None:
    found, _ = two_models(losses, LEARNS)
    assert found == list(range(1, 10))


@pytest.mark.parametrize("lie", [1e30, -1e30, 2.3])
def test_one_of_three_devices_cannot_make_a_model_fall(lie: float) -> None:
    run = Run()
    assert [run.round(loss, loss, lie) for loss in (2.3, 1.0, 0.5, 0.4)] == [1, 2, 3, 4]


def test_a_loss_that_rises_a_little_or_that_never_fell_is_no_fall() -> None:
    run = Run()
    assert [run.round(*[loss] * 3) for loss in (2.3, 2.28, 2.35, 1.0, 1.6)] == [1, 2, 3, 4, 5]


def test_nothing_is_watched_under_the_mean_of_the_papers_or_where_no_loss_is_released() -> None:
    for run, private in ((Run("mean"), False), (Run(), True)):
        assert [run.round(*[loss] * 3, private=private) for loss in (2.3, 0.5, 2.3)] == [1, 2, 3]
        assert run.guard.histories == {}


def test_a_cluster_whose_devices_are_worse_off_than_all_were_together_has_not_fallen() -> None:
    """Those with few samples count little in one model for all: here its loss at them is above the very first
    one of all devices."""
    run = Run()
    assert [run.round(*[loss] * 3) for loss in (2.0, 1.5, 1.0)] == [1, 2, 3]
    run.guard = run.guard.split("c0", ["c0"])
    assert [run.round(*[loss] * 3) for loss in (2.2, 2.1, 1.9, 1.2)] == [4, 5, 6, 7]
    assert run.round(2.1, 2.1, 2.1) == 7, "now most is lost of what was learned from 2.2 on"
    assert run.guard.rate("c0") == 0.5


def test_what_an_untrained_model_has_is_known_in_clusters_too() -> None:
    run = Run()
    assert [run.round(*[loss] * 3) for loss in (2.3, 1.0, 0.9)] == [1, 2, 3]
    run.guard = run.guard.split("c0", ["c0"])
    assert run.round(0.8, 0.8, 0.8) == 4
    assert run.round(2.2, 2.2, 2.2) == 4, "the second round of a cluster falls like any other"


def test_a_cluster_of_a_model_that_knows_nothing_yet_goes_on_with_its_course() -> None:
    history = LossHistory(2.3, 2.29, 2.32, 3, 0, False, model(0.0), 2)
    assert Guard(histories={"global": history}).split("global", ["c0"]).histories == {"c0": history}


def test_clusters_inherit_the_rate_of_the_model_that_they_split_from_and_a_checkpoint_keeps_it() -> None:
    history = LossHistory(2.3, 1.0, 1.0, 4, 1, True, model(7.0), knows=True)
    guard = Guard(histories={"global": history}).split("global", ["c0", "c1"])
    assert guard.rate("c0") == guard.rate("c1") == 0.5
    found = guard.histories["c0"]
    assert (found.first, found.best, found.rounds, found.fell) == (2.3, float("inf"), 0, False)
    assert guard.moved({"c9": "c1"}, {}, {}).histories == {"c9": found}
    kept: dict[str, Tensors] = {}

    def keep(tensors: Tensors):  # type: ignore[no-untyped-def]
        from shoal.core.exchange.payload import BlobRef, Weights
        from shoal.core.exchange.tensors import manifest_of, nbytes

        kept[digest(tensors)] = tensors
        return Weights(manifest_of(tensors), BlobRef(digest(tensors), nbytes(tensors)))

    stored = json.loads(json.dumps(checkpoint.encode(Guard, guard, keep)))
    again = checkpoint.decode(Guard, stored, lambda weights: kept[weights.blob.sha256])
    assert again == guard
    assert digest(again.histories["c0"].good) == digest(model(7.0))


def test_the_rate_is_that_of_the_tasks() -> None:
    class Parameters:
        learning_rate, epochs, rounds = 0.1, 1, 5

    assert training(Parameters(), rate=0.25).learning_rate == pytest.approx(0.025)
