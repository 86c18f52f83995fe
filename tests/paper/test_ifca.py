"""IFCA (Ghosh et al. 2020): Algorithm 1 with model averaging, by hand."""

import pytest

from shoal.core.algorithms.ifca import Parameters
from shoal.core.algorithms.ifca import server as server_half
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import Score, Train
from tests.reports import model, scored, trained, values


def test_algorithm_1_choose_train_average() -> None:
    state = server_half.start(
        model(1, 2, 3), Parameters(inputs="raw", rounds=2, clusters=2, aggregation="mean")
    )
    assert sorted(values(state)["c1"]) == [1, 2, 3]
    assert values(state)["c0"] != values(state)["c1"], "the models differ from the start"
    plan = server_half.plan(state, ["a", "b", "c"])
    assert plan is not None
    task = plan.tasks["a"]
    assert isinstance(task, Score)
    assert len(task.models) == 2
    state = server_half.reduce(state, [scored("a", 1, 2), scored("b", 2, 1), scored("c", 1, 3)])
    assert state.assignments == {"a": "c0", "b": "c1", "c": "c0"}
    plan = server_half.plan(state, ["a", "b"])
    assert plan is not None
    task = plan.tasks["b"]
    assert isinstance(task, Train)
    assert task.model["w"].tolist() == values(state)["c1"]
    state = server_half.reduce(state, [trained("a", 4, 4, 4), trained("c", 8, 8, 8, examples=30)])
    assert values(state)["c0"] == [7, 7, 7]
    assert sorted(values(state)["c1"]) == [1, 2, 3], "no device chose it this time"
    assert (state.phase, state.progress) == ("choose", 1)
    state = server_half.reduce(state, [scored("a", 3, 2)])
    assert state.assignments["a"] == "c1", "devices choose again in every round"


def test_a_single_cluster_and_more_clusters_than_devices() -> None:
    alone = server_half.start(model(1, 2), Parameters(inputs="raw", rounds=1, clusters=1))
    alone = server_half.reduce(alone, [scored("a", 1)])
    assert server_half.reduce(alone, [trained("a", 5, 5)]).assignments == {"a": "c0"}
    many = server_half.start(model(1, 2), Parameters(inputs="raw", clusters=5))
    assert len(server_half.reduce(many, [scored("a", 5, 4, 3, 2, 1)]).models) == 5
    with pytest.raises(ConfigError, match="clusters"):
        server_half.start(model(1, 2), Parameters(clusters=0))
