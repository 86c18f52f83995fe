"""IFCA (Ghosh et al. 2020): Algorithm 1 with model averaging, by hand."""

import pytest

from fedcore.algorithms.ifca import Parameters, central
from fedcore.errors import ConfigError
from fedcore.messages import Score, Train
from tests.reports import model, scored, trained, values


def test_algorithm_1_choose_train_average() -> None:
    state = central.start(model(1, 2, 3), Parameters(rounds=2, clusters=2, aggregation="mean"))
    assert sorted(values(state)["c1"]) == [1, 2, 3]
    assert values(state)["c0"] != values(state)["c1"], "the models differ from the start"
    plan = central.plan(state, ["a", "b", "c"])
    assert plan is not None
    task = plan.tasks["a"]
    assert isinstance(task, Score)
    assert len(task.models) == 2
    state = central.reduce(state, [scored("a", 1, 2), scored("b", 2, 1), scored("c", 1, 3)])
    assert state.assignments == {"a": "c0", "b": "c1", "c": "c0"}
    plan = central.plan(state, ["a", "b"])
    assert plan is not None
    task = plan.tasks["b"]
    assert isinstance(task, Train)
    assert task.model["w"].tolist() == values(state)["c1"]
    state = central.reduce(state, [trained("a", 4, 4, 4), trained("c", 8, 8, 8, examples=30)])
    assert values(state)["c0"] == [7, 7, 7]
    assert sorted(values(state)["c1"]) == [1, 2, 3], "nobody chose it this time"
    assert (state.phase, state.progress) == ("choose", 1)
    state = central.reduce(state, [scored("a", 3, 2)])
    assert state.assignments["a"] == "c1", "devices choose anew in every round"


def test_a_single_cluster_and_more_clusters_than_devices() -> None:
    alone = central.start(model(1, 2), Parameters(rounds=1, clusters=1))
    alone = central.reduce(alone, [scored("a", 1)])
    assert central.reduce(alone, [trained("a", 5, 5)]).assignments == {"a": "c0"}
    many = central.start(model(1, 2), Parameters(clusters=5))
    assert len(central.reduce(many, [scored("a", 5, 4, 3, 2, 1)]).models) == 5
    with pytest.raises(ConfigError, match="clusters"):
        central.start(model(1, 2), Parameters(clusters=0))
