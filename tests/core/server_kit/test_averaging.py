"""From a round's reports to the next models: shares, what is remembered, and the remarks for an operator."""

import json
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import Report
from shoal.core.engine import checkpoint
from shoal.core.exchange.messages import Evaluated
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.aggregation import averaging
from shoal.core.server_kit.aggregation.averaging import (
    ALL,
    combined_models,
    held_back,
    next_models,
    steadied,
)
from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.aggregation.robust import Update
from tests.reports import model, trained

MODELS = {"c0": model(0, 0), "c1": model(5, 5)}


def test_a_model_without_updates_is_the_same_object_and_others_take_their_share() -> None:
    shares = {"a": {"c0": 1.0, "gone": 1.0}, "b": {"c0": 0.5}}
    reports = [trained("a", 1, 0), trained("b", 0, 1), Report("c", Evaluated(0.5, 0.1, 9))]
    for rule in ("mean", "clipped"):
        models, guard = next_models(MODELS, reports, rule, Guard(), shares)
        assert models["c1"] is MODELS["c1"]
        np.testing.assert_allclose(models["c0"]["w"], [2 / 3, 1 / 3], rtol=1e-6)
        assert guard.references == ({} if rule == "mean" else {"c0": 1.0})


def test_an_update_is_looked_at_for_the_models_of_its_device_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where each device has a model of its own, the work must not grow with their number squared."""
    made: list[Update] = []

    def counted(*values: Any) -> Update:
        made.append(Update(*values))
        return made[-1]

    monkeypatch.setattr(averaging, "Update", counted)
    names = [f"d{number}" for number in range(50)]
    models = {name: model(0, 0) for name in names}
    shares = {name: {name: 1.0} for name in names}
    after, _ = next_models(models, [trained(name, 1, 0) for name in names], "mean", Guard(), shares)
    assert len(made) == len(names)
    assert all(each["w"].tolist() == [1.0, 0.0] for each in after.values())


def test_each_model_may_have_updates_of_its_own_from_the_same_device() -> None:
    updates = {
        key: {"b": Update(model(*values), 3.0), "a": Update(model(9, 9), 0.0)}
        for key, values in {"c0": (1, 0), "c1": (5, 8)}.items()
    }
    models, guard = combined_models(MODELS, updates, "clipped", Guard())
    assert [models[key]["w"].tolist() for key in ("c0", "c1")] == [[1.0, 0.0], [5.0, 8.0]]
    assert guard.references == {"c0": 1.0, "c1": 3.0}


def test_the_reference_of_each_model_is_remembered_for_its_next_round() -> None:
    _, guard = next_models({"c0": MODELS["c0"]}, [trained("a", 0, 2)], "clipped", Guard())
    models, guard = next_models({"c0": MODELS["c0"]}, [trained("a", 0, 900)], "clipped", guard)
    np.testing.assert_allclose(models["c0"]["w"], [0, 18], rtol=1e-6)
    assert guard.references == {"c0": 6.0}
    assert guard.remarks == ("model c0: updates too long to count in full: a (150 times the usual length)",)
    _, guard = next_models({"c0": MODELS["c0"]}, [trained("a", 0, 5)], "clipped", guard)
    assert guard.remarks == ()


def test_the_guard_says_which_models_fell_in_a_round() -> None:
    before = Guard(
        histories={"c0": LossHistory(falls=1), "c1": LossHistory(falls=1, fell=True), "c2": LossHistory()}
    )
    fell, still = LossHistory(falls=2, fell=True), LossHistory(falls=1, fell=True)
    again = LossHistory(falls=1, restarted=True)
    after = Guard(histories={"c0": fell, "c1": still, "c2": again, "c3": still})
    assert after.fallen(before) == {"c0", "c3"}


def test_clusters_are_measured_as_the_model_was_from_which_they_split() -> None:
    guard = Guard({"global": 2.0}, {"global": ("old",)}).split("global", ["c0", "c1"])
    assert guard == Guard({"c0": 2.0, "c1": 2.0})


def test_what_was_held_back_is_said_with_a_bounded_number_of_names() -> None:
    honest = [trained(f"d{i:02}", 1, 0) for i in range(24)]
    hostile = [trained(f"x{i}", 0, 50 + i, examples=1000) for i in range(7)]
    _, guard = next_models({"c0": MODELS["c0"]}, [*honest, *hostile], "clipped", Guard())
    cut, heavy = guard.remarks
    assert cut.startswith(
        "model c0: updates too long to count in full: x0 (50 times the usual length), x1 (51 times the"
    )
    assert cut.endswith("and 2 more")
    said = "model c0: not all of the samples of {} count, as most devices have fewer"
    assert heavy == said.format("x0, x1, x2, x3, x4 and 2 more")
    alone = [*honest, trained("x", 1, 0, examples=1000)]
    _, guard = next_models({"c0": MODELS["c0"]}, alone, "clipped", Guard())
    assert guard.remarks == (said.format("x"),)


def test_a_device_that_is_left_out_three_times_in_a_row_is_quarantined_in_that_model() -> None:
    honest = [trained(f"d{i}", 1, i / 10) for i in range(3)]
    away = [*honest, trained("x", -1, 0)]
    models, guard = {"c0": MODELS["c0"]}, Guard()
    for reports in (away, away, [*honest, trained("x", 1, 0)], away, honest, away):
        _, guard = next_models(models, reports, "clipped", guard)
        assert guard.quarantined == {}
    left_out = "the update of x was left out, because it points away from those of most others (cosine -1.00)"
    assert left_out in str(guard.remarks)
    _, guard = next_models(models, away, "clipped", guard)
    why = (
        "its updates to c0 pointed away from those of most others in 3 rounds in a row, so they do not count"
    )
    assert guard.quarantined == {"x": why}
    assert f"x is quarantined: {why}" in guard.remarks
    back = [*honest, trained("x", 9, 9)]  # whatever it sends now, it does not count
    found, after = next_models(models, back, "clipped", guard)
    assert digest(found["c0"]) == digest(next_models(models, honest, "clipped", guard)[0]["c0"])
    assert after.quarantined == {"x": why}
    assert after.facts == {"quarantined": 1}
    assert guard.split("c0", ["c1"]).quarantined == {}
    assert next_models(models, away, "mean", guard)[1].strikes == guard.strikes
    again = guard.readmitted(["x"])
    assert again.quarantined == {}
    close = [*honest, trained("x", 1, 0.2)]
    counted = next_models(models, close, "clipped", again)[0]["c0"]
    assert digest(counted) == digest(next_models(models, close, "clipped", Guard(again.references))[0]["c0"])
    assert digest(counted) != digest(next_models(models, close, "clipped", guard)[0]["c0"])


def test_a_guard_survives_its_checkpoint() -> None:
    guard = Guard({"c0": 0.1 + 0.2, "c1": float("inf")}, {"c0": ("a", "b")}, {"c0": {"a": 2}})
    stored = checkpoint.encode(Guard, guard, lambda tensors: None)  # type: ignore[arg-type, return-value]
    again = json.loads(json.dumps(stored))
    assert checkpoint.decode(Guard, again, lambda weights: {}) == guard


def test_a_round_that_is_combined_twice_gives_the_same_bits() -> None:
    reports = [trained(f"d{i}", i, 1.5 * i, examples=10 + i) for i in range(12)]
    for rule in ("mean", "clipped", "trimmed", "median"):
        first, guard = next_models(MODELS, reports, rule, Guard())
        second, again = next_models(MODELS, list(reversed(reports)), rule, Guard())
        assert {key: digest(one) for key, one in first.items()} == {
            key: digest(one) for key, one in second.items()
        }
        assert guard == again


def test_whose_update_is_far_longer_than_usual_is_held_back_whatever_it_trained_from() -> None:
    bases = {"a": model(0, 0), "b": model(9, 9), "c": model(50, 0)}
    reports = [trained("a", 1, 0), trained("b", 9, 8), trained("c", 54, 0)]
    long, guard = held_back(bases, reports, "clipped", Guard())
    assert long == {"c"}
    assert guard.references == {ALL: 1.0}
    assert guard.remarks == (
        "updates longer than 3 times the usual one were kept out of others' models: c (4 times)",
    )
    assert held_back(bases, reports, "mean", Guard()) == (set(), Guard())


def test_an_update_that_points_away_from_those_of_like_data_is_held_back() -> None:
    bases = dict.fromkeys("abcdxy", model(9, 9))
    like = [trained("a", 10, 9), trained("b", 10, 9.2), trained("c", 10, 8.8), trained("d", 8, 9)]
    other = [trained("x", 9, 10), trained("y", 9, 8)]
    groups = [["a", "b", "c", "d"], ["x", "y"]]
    opposed, guard = held_back(bases, [*like, *other], "clipped", Guard(), groups)
    assert opposed == {"d"}, "of two, neither is the only one"
    assert "away from those of most devices with like data" in guard.remarks[0]
    assert "d (cosine -" in guard.remarks[0]
    assert held_back(bases, [*like, *other], "clipped", Guard())[0] == set(), "no data are known to be like"
    assert held_back(bases, [*like, *other], "mean", Guard(), groups)[0] == set()


def test_the_usual_length_grows_no_faster_than_the_bound_from_round_to_round() -> None:
    bases = {"a": model(0, 0), "b": model(0, 0)}
    _, guard = held_back(bases, [trained("a", 1, 0), trained("b", 0, 1)], "clipped", Guard({"global": 0.5}))
    assert guard.references == {ALL: 1.0}
    long, guard = held_back(bases, [trained("a", 20, 0), trained("b", 0, 20)], "clipped", guard)
    assert guard.references == {ALL: 3.0}
    assert long == {"a", "b"}


def test_models_that_go_on_where_others_were_are_measured_as_those_were() -> None:
    guard = Guard({"c0": 1.0, "c1": 2.0}, {"c0": ("a remark",)})
    assert guard.moved({"c0": "c1", "c5": "c1", "c6": "c9"}, {}, {}) == Guard({"c0": 2.0, "c5": 2.0})


def test_a_model_of_few_devices_goes_a_part_of_the_way_and_others_go_all_of_it() -> None:
    before = {key: {"w": np.zeros(2, np.float32)} for key in ("one", "two", "three", "none")}
    after = {key: {"w": np.full(2, 8.0, np.float32)} for key in (*before, "new")}
    found = steadied(before, after, {"one": 1, "two": 2, "three": 3, "new": 1}, 3)
    assert {key: float(model["w"][0]) for key, model in found.items()} == {
        "one": 4.0,
        "two": 6.0,
        "three": 8.0,
        "none": 8.0,
        "new": 8.0,
    }
    assert found["three"] is after["three"]
    assert steadied(before, after, {"one": 1}, 0) == after
