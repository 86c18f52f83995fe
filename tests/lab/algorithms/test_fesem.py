"""FeSEM (Xie et al. 2020): Algorithm 1, by hand."""

from shoal.core.exchange.messages import Score
from shoal_lab.algorithms.fesem import Parameters
from shoal_lab.algorithms.fesem import server as server_half
from tests.reports import model, scored, trained, values

PLAIN = Parameters(inputs="raw", rounds=4, clusters=2, aggregation="mean")


def test_algorithm_1_the_e_step_goes_by_distance_and_the_m_step_takes_means() -> None:
    state = server_half.start(model(0, 0), PLAIN)
    first = [trained("a", 1, 0), trained("b", 2, 0), trained("c", 0, 9), trained("d", 0, 8)]
    state = server_half.reduce(state, first)
    near, far = state.assignments["a"], state.assignments["c"]
    assert state.assignments == {"a": near, "b": near, "c": far, "d": far}
    assert values(state) == {near: [1.5, 0.0], far: [0.0, 8.5]}
    # b's weights are now nearer to the other center, wherever it started from.
    state = server_half.reduce(state, [trained("a", 2, 0), trained("b", 0, 7), trained("d", 0, 9)])
    assert state.assignments == {"a": near, "b": far, "c": far, "d": far}
    assert values(state) == {near: [2.0, 0.0], far: [0.0, 8.0]}


def test_a_center_without_devices_stays() -> None:
    state = server_half.start(model(0, 0), PLAIN)
    state = server_half.reduce(state, [trained("a", 1, 0), trained("b", 0, 9)])
    left = state.assignments["a"]
    state = server_half.reduce(state, [trained("a", 0, 8), trained("b", 0, 9)])
    assert values(state)[left] == [1.0, 0.0]
    assert left not in state.assignments.values()


def test_fewer_devices_than_clusters_all_the_same_and_a_late_one() -> None:
    state = server_half.reduce(server_half.start(model(0, 0), PLAIN), [trained("a", 1, 0)])
    assert len(state.models) == 1
    state = server_half.reduce(
        server_half.start(model(0, 0), PLAIN), [trained("a", 1, 1), trained("b", 1, 1)]
    )
    assert len(state.models) == 1
    state = server_half.reduce(
        server_half.start(model(0, 0), PLAIN), [trained("a", 0, 0), trained("b", 0, 0)]
    )
    assert len(state.models) == 1, "no device moved"
    state = server_half.reduce(
        server_half.start(model(0, 0), PLAIN), [trained("a", 1, 0), trained("b", 0, 9)]
    )
    plan = server_half.plan(state, ["late"])
    assert plan is not None
    assert isinstance(plan.tasks["late"], Score)
    state = server_half.reduce(state, [scored("late", 2, 1)])
    assert (state.assignments["late"], state.progress) == (list(state.models)[1], 1)
