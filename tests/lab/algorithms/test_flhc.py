"""FL+HC (Briggs et al. 2020): Algorithm 1, by hand."""

import pytest

from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import Score
from shoal_lab.algorithms.flhc import Parameters
from shoal_lab.algorithms.flhc import server as server_half
from tests.reports import model, trained, values

GROUPS = [trained("a", 1, 0), trained("b", 2, 0), trained("c", 0, 9), trained("d", 0, 8)]


def begun(**changes: object) -> server_half.State:
    parameters = Parameters(
        inputs="raw", **{"rounds": 4, "warm_up": 1, "clusters": 2, "aggregation": "mean", **changes}
    )  # type: ignore[arg-type]
    state = server_half.start(model(0, 0), parameters)
    return server_half.reduce(state, [trained("a", 0, 0)]) if parameters.warm_up else state


def test_algorithm_1_warm_up_one_clustering_then_each_cluster_alone() -> None:
    state = begun()
    assert (state.phase, state.progress) == ("group", 1)
    state = server_half.reduce(state, GROUPS)
    assert state.assignments == {"a": "c0", "b": "c0", "c": "c1", "d": "c1"}
    assert values(state) == {"c0": [1.5, 0.0], "c1": [0.0, 8.5]}
    state = server_half.reduce(state, [trained("a", 0, 9)])
    assert state.assignments["a"] == "c0", "it clusters once"
    assert (state.phase, state.progress) == ("clustered", 3)


def test_the_tree_may_be_cut_at_a_distance_and_angles_may_be_compared() -> None:
    assert len(server_half.reduce(begun(clusters=0, distance=1.5, linkage="complete"), GROUPS).models) == 2
    assert len(server_half.reduce(begun(clusters=0, distance=0.5, linkage="complete"), GROUPS).models) == 4
    assert len(server_half.reduce(begun(clusters=0, distance=99.0, linkage="average"), GROUPS).models) == 1
    angles = begun(clusters=0, metric="cosine", linkage="average", distance=0.5)
    assert len(server_half.reduce(angles, GROUPS).models) == 2


def test_who_is_away_when_clusters_are_formed_chooses_by_loss() -> None:
    state = begun()
    state = server_half.reduce(state, [report for report in GROUPS if report.device != "a"])
    plan = server_half.plan(state, ["a", "b"])
    assert plan is not None
    assert isinstance(plan.tasks["a"], Score)


def test_one_device_and_all_the_same_and_a_run_of_one_round() -> None:
    assert len(server_half.reduce(begun(clusters=9), [trained("a", 1, 1)]).models) == 1
    assert len(server_half.reduce(begun(), [trained(device, 1, 1) for device in "abc"]).models) == 1
    last = server_half.reduce(begun(rounds=1, warm_up=0), GROUPS)
    assert (last.phase, len(last.models)) == ("evaluate", 2)


def test_parameters_that_cannot_work_are_refused() -> None:
    for change, named in (
        ({"metric": "cosine"}, "linkage=ward needs metric=euclidean"),
        ({"clusters": 0, "distance": 0.0}, "distance above 0"),
        ({"linkage": "median"}, "linkage cannot be"),
    ):
        with pytest.raises(ConfigError, match=named):
            begun(**change)
