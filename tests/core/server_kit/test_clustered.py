"""What algorithms with a model for each cluster share."""

from dataclasses import dataclass

import numpy as np
import pytest

from shoal.core.algorithm import Report
from shoal.core.algorithms.cornflqs import Parameters
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Evaluate, Score, Scored, Train, Trained
from shoal.core.exchange.parts import ClusterAssignment, Scores
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustering.cluster import matched
from shoal.core.types import ModelKey, Tensors


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    pass


def model(value: float) -> Tensors:
    return {"w": np.full(2, value, np.float32)}


def state(models: dict[ModelKey, float], **assignments: str) -> State:
    parameters = Parameters(rounds=2, aggregation="mean")
    own = {key: model(value) for key, value in models.items()}
    return State(parameters=parameters, models=own, phase="train", assignments=assignments)


def trained(device: str, value: float, examples: int = 10) -> Report:
    return Report(device, Trained(model(value), examples, 0.1))


def scored(device: str, *losses: float) -> Report:
    return Report(device, Scored(Scores(np.array(losses), 9)))


def test_a_late_device_chooses_among_several_models_and_takes_the_only_one() -> None:
    tasks = clustered.ask_train(state({"c0": 1.0, "c1": 2.0}, a="c1"), ["a", "late"]).tasks
    assert isinstance(tasks["a"], Train)
    assert tasks["a"].cluster == "c1"
    assert isinstance(tasks["late"], Score)
    assert [float(one["w"][0]) for one in tasks["late"].models] == [1.0, 2.0]
    alone = clustered.ask_train(state({GLOBAL: 1.0}), ["late"]).tasks["late"]
    assert isinstance(alone, Train)


def test_a_round_in_which_only_late_devices_answered_is_still_to_come() -> None:
    before = state({"c0": 1.0, "c1": 2.0}, a="c1")
    after = clustered.take_train(before, [scored("late", 0.9, 0.2)])
    assert after.assignments == {"a": "c1", "late": "c1"}
    assert after.progress == 0
    after = clustered.take_train(before, [trained("a", 5.0), scored("late", 0.1, 0.2)])
    assert after.progress == 1
    assert after.assignments["late"] == "c0"
    assert float(after.models["c1"]["w"][0]) == 5.0
    assert float(after.models["c0"]["w"][0]) == 1.0, "without updates a model stays"


def test_equal_losses_go_to_the_first_model() -> None:
    after = clustered.choose(state({"c0": 1.0, "c1": 2.0}), [scored("a", 0.5, 0.5), scored("b", 0.6, 0.5)])
    assert after.assignments == {"a": "c0", "b": "c1"}


def test_the_run_ends_with_a_measurement_by_those_that_have_a_cluster() -> None:
    before = state({"c0": 1.0, "c1": 2.0}, a="c1")
    first = clustered.take_train(before, [trained("a", 3.0)])
    assert first.phase == "train"
    last = clustered.take_train(first, [trained("a", 3.0)])
    assert last.phase == "evaluate"
    tasks = clustered.ask_evaluate(last, ["a", "late"]).tasks
    assert list(tasks) == ["a"]
    assert isinstance(tasks["a"], Evaluate)
    assert tasks["a"].part == "test"


@pytest.mark.parametrize(("aggregation", "phase"), [("mean", "evaluate"), ("clipped", "last_choice")])
def test_devices_whose_word_decides_the_groups_choose_once_more_at_the_end(
    aggregation: str, phase: str
) -> None:
    class Chosen(State):
        CHOOSES_AT_LAST = True

    begun = state({"c0": 1.0, "c1": 2.0}, a="c0", b="c1")
    parameters = Parameters(rounds=1, aggregation=aggregation)
    before = Chosen(**{**vars(begun), "parameters": parameters, "phase": "clustered", "scale": {}})
    plan, reduce = clustered.phased({"clustered": (clustered.ask_train, clustered.take_train)})
    last = reduce(before, [trained("a", 3.0), trained("b", 3.0)])
    assert last.phase == phase
    if phase == "last_choice":
        planned = plan(last, ["a", "b"])
        assert planned is not None
        assert all(isinstance(task, Score) for task in planned.tasks.values())
        after = reduce(last, [scored("a", 0.9, 0.1)])
        assert (after.phase, after.assignments) == ("evaluate", {"a": "c1", "b": "c1"})


def test_updates_may_count_elsewhere_than_where_their_devices_started() -> None:
    before = state({"c0": 1.0, "c1": 2.0}, a="c0", b="c1")
    after = clustered.regrouped(before, [trained("a", 5.0), trained("b", 7.0, 30)], {"a": "c1", "b": "c1"})
    assert float(after.models["c1"]["w"][0]) == pytest.approx(6.5)
    assert float(after.models["c0"]["w"][0]) == 1.0
    assert after.assignments == {"a": "c1", "b": "c1"}
    split = clustered.regrouped(
        state({GLOBAL: 1.0}), [trained("a", 5.0), trained("b", 7.0)], {"a": "c0", "b": "c1"}
    )
    assert {key: float(one["w"][0]) for key, one in split.models.items()} == {"c0": 5.0, "c1": 7.0}


def test_an_update_is_measured_from_where_its_device_started() -> None:
    """Two that moved by 1, from models that lie 100 apart, and one that moved by 40, which is too long. No
    model pulls the new one farther from the middle than the second nearest is."""
    before = state({"c0": 0.0, "c1": 100.0}, a="c0", b="c1", c="c1")
    before = State(
        parameters=Parameters(aggregation="clipped"),
        models=before.models,
        phase="train",
        assignments=before.assignments,
    )
    reports = [trained("a", 1.0), trained("b", 101.0), trained("c", 140.0)]
    after = clustered.regrouped(before, reports, dict.fromkeys("abc", "c0"))
    assert after.guard.references["c0"] == pytest.approx(np.sqrt(2))
    assert "c (40 times" in after.remarks[0]
    assert float(after.models["c0"]["w"][0]) == pytest.approx(101.0, rel=1e-5)


def test_groups_keep_the_names_that_most_of_their_devices_had() -> None:
    names = ("c0", "c1", "c2")
    before = {"a": "c1", "b": "c1", "c": "c0", "d": "c0"}
    labels = np.array([0, 0, 1, 1])
    assert matched(list("abcd"), labels, before, names) == before
    assert matched(list("abcd"), labels, {}, names) == {
        "a": "c0",
        "b": "c0",
        "c": "c1",
        "d": "c1",
    }
    lonely = matched(["a"], np.array([0]), before, names)
    assert lonely == {"a": "c1"}


def test_a_newcomer_is_placed_by_its_losses() -> None:
    several = state({"c0": 1.0, "c1": 2.0, "c2": 3.0})
    assert isinstance(clustered.place_by_loss(several, None), Score)
    answer = clustered.place_by_loss(several, Scores(np.array([2.0, 0.5, 1.0]), 9))
    assert isinstance(answer, ClusterAssignment)
    assert (answer.cluster, answer.runner_up, answer.confidence) == ("c1", "c2", 0.5)
    with pytest.raises(BadPayload, match="3 models"):
        clustered.place_by_loss(several, Scores(np.ones(2), 9))
    only = clustered.place_by_loss(state({GLOBAL: 1.0}), None)
    assert isinstance(only, ClusterAssignment)
