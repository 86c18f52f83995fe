"""FedGroup (Duan et al. 2021): Algorithms 1 to 3, by hand."""

import numpy as np
import pytest

from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import Train
from shoal_lab.algorithms.fedgroup import Parameters
from shoal_lab.algorithms.fedgroup import server as server_half
from tests.reports import model, trained, values

PLAIN = Parameters(inputs="raw", rounds=4, clusters=2, aggregation="mean")
COLD = [trained("a", 2, 1), trained("b", 4, 1), trained("c", 1, 3), trained("d", 1, 9)]
"""From (1, 1): a and b go along the first axis, c and d along the second, at different speeds."""


def test_algorithm_2_updates_are_told_by_their_cosines_with_the_leading_singular_vectors() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 20))
    _, _, right = np.linalg.svd(rows, full_matrices=False)
    expected = rows @ right[:3].T / np.linalg.norm(rows, axis=1, keepdims=True)
    found = server_half.decomposed(rows @ rows.T, 3)
    np.testing.assert_allclose(np.abs(found), np.abs(expected), atol=1e-7)
    assert server_half.decomposed(np.zeros((2, 2)), 3).tolist() == [[0.0], [0.0]], "no device moved"


def test_algorithm_1_the_cold_start_groups_by_direction_and_not_by_length() -> None:
    state = server_half.reduce(server_half.start(model(1, 1), PLAIN), COLD)
    first, second = state.assignments["a"], state.assignments["c"]
    assert state.assignments == {"a": first, "b": first, "c": second, "d": second}
    assert values(state) == {first: [3.0, 1.0], second: [1.0, 6.0]}
    assert state.progress == 1


def test_algorithm_3_a_late_device_trains_the_initial_model_and_joins_by_angle() -> None:
    state = server_half.reduce(server_half.start(model(1, 1), PLAIN), COLD)
    plan = server_half.plan(state, ["a", "late"])
    assert plan is not None
    task = plan.tasks["late"]
    assert isinstance(task, Train)
    assert task.model["w"].tolist() == [1.0, 1.0]
    before = values(state)
    state = server_half.reduce(state, [trained("late", 1.1, 1.5)])
    assert state.assignments["late"] == state.assignments["c"]
    assert (values(state), state.progress) == (before, 1), "its update counts in no model"


def test_inter_group_aggregation_adds_a_little_of_the_others_at_length_1() -> None:
    parameters = Parameters(inputs="raw", rounds=4, clusters=2, aggregation="mean", between=0.1)
    state = server_half.reduce(server_half.start(model(1, 1), parameters), COLD)
    other = np.array([1.0, 6.0]) / np.linalg.norm([1.0, 6.0])
    np.testing.assert_allclose(
        values(state)[state.assignments["a"]], [3 + 0.1 * other[0], 1 + 0.1 * other[1]]
    )


def test_fewer_devices_than_clusters_and_all_the_same() -> None:
    assert len(server_half.reduce(server_half.start(model(1, 1), PLAIN), [trained("a", 2, 1)]).models) == 1
    same = [trained(device, 2, 1) for device in "abc"]
    assert len(server_half.reduce(server_half.start(model(1, 1), PLAIN), same).models) == 1
    still = [trained(device, 1, 1) for device in "abc"]
    assert len(server_half.reduce(server_half.start(model(1, 1), PLAIN), still).models) == 1
    with pytest.raises(ConfigError, match="between"):
        server_half.start(model(1, 1), Parameters(inputs="raw", between=1.0))
