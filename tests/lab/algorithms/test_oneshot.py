"""One-shot clustering (Ghosh et al. 2019; CFL in CORNFLQS): one K-means, then a model for each."""

from shoal.core.exchange.messages import Score
from shoal_lab.algorithms.oneshot import ALGORITHM, Parameters
from shoal_lab.algorithms.oneshot import server as server_half
from tests.reports import model, trained, values

GROUPS = [trained("a", 1, 0), trained("b", 0, 9), trained("c", 2, 0), trained("d", 0, 8)]


def begun(**changes: object) -> server_half.State:
    parameters = Parameters(
        inputs="raw", **{"rounds": 4, "warm_up": 1, "clusters": 2, "aggregation": "mean", **changes}
    )  # type: ignore[arg-type]
    state = server_half.start(model(0, 0), parameters)
    return server_half.reduce(state, [trained("a", 0, 0)]) if parameters.warm_up else state


def test_models_are_clustered_once_and_each_cluster_then_trains_its_own() -> None:
    state = begun()
    assert (state.phase, state.progress) == ("group", 1)
    state = server_half.reduce(state, GROUPS)
    assert state.assignments == {"a": "c0", "b": "c1", "c": "c0", "d": "c1"}
    assert values(state) == {"c0": [1.5, 0.0], "c1": [0.0, 8.5]}
    state = server_half.reduce(state, [trained("a", 0, 9)])
    assert state.assignments["a"] == "c0", "it clusters once"
    assert (state.phase, state.progress) == ("clustered", 3)


def test_the_preset_clusters_after_half_of_the_rounds_of_cornflqs() -> None:
    parameters = ALGORITHM.configure("paper")
    assert ALGORITHM.clustered_rounds is not None
    assert (parameters.rounds, ALGORITHM.clustered_rounds(parameters)) == (20, (11, 11))
    state = server_half.start(model(0, 0), parameters)
    for _ in range(9):
        assert state.phase == "warm_up"
        state = server_half.reduce(state, GROUPS)
    assert (state.phase, len(state.models)) == ("group", 1)
    assert server_half.reduce(state, GROUPS).progress == 10


def test_a_device_that_looks_like_no_other_takes_no_cluster_of_its_own() -> None:
    liar = [*GROUPS, trained("e", 0, 8.5), trained("z", -8, -8)]
    state = server_half.reduce(begun(aggregation="clipped"), liar)
    assert state.assignments["a"] == state.assignments["c"] != state.assignments["b"]
    assert state.assignments["b"] == state.assignments["d"] == state.assignments["e"]
    state = server_half.reduce(begun(), liar)
    assert len({state.assignments[device] for device in "abcde"}) == 1, "the mean bounds no device"


def test_there_are_no_more_clusters_than_different_models() -> None:
    assert len(server_half.reduce(begun(clusters=9), GROUPS).models) == 4
    assert len(server_half.reduce(begun(), [trained(device, 0, 0) for device in "abc"]).models) == 1
    assert len(server_half.reduce(begun(), [trained("a", 1, 1)]).models) == 1


def test_a_device_that_is_away_when_clusters_are_formed_chooses_by_loss() -> None:
    state = server_half.reduce(begun(), [report for report in GROUPS if report.device != "a"])
    plan = server_half.plan(state, ["a", "b"])
    assert plan is not None
    assert isinstance(plan.tasks["a"], Score)
