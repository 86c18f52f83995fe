"""SRFCA (Vardhan et al. 2024): Algorithms 1 to 4, by hand."""

import pytest

from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import Score, Train
from shoal_lab.algorithms.srfca import ALGORITHM, Parameters
from shoal_lab.algorithms.srfca import server as server_half
from tests.reports import model, scored, trained, values

PLAIN = Parameters(inputs="raw", rounds=8, quantile=0.1, every=2, aggregation="mean")
FIVE = [
    trained("a", 0, 0),
    trained("b", 1, 0),
    trained("c", 9, 9),
    trained("d", 9, 8),
    trained("single", -50, 50),
]


def test_one_shot_what_hangs_together_is_a_cluster_and_who_is_alone_chooses() -> None:
    state = server_half.reduce(server_half.start(model(0, 0), PLAIN), FIVE)
    assert state.assignments == {"a": "c0", "b": "c0", "c": "c1", "d": "c1"}
    assert values(state) == {"c0": [0.5, 0.0], "c1": [9.0, 8.5]}
    assert (state.phase, state.progress) == ("train", 1)
    plan = server_half.plan(state, ["a", "single"])
    assert plan is not None
    assert isinstance(plan.tasks["a"], Train)
    assert isinstance(plan.tasks["single"], Score)


def test_chains_hang_together() -> None:
    chain = [trained(device, 2 * place, 0) for place, device in enumerate("abc")]
    state = server_half.start(model(0, 0), Parameters(inputs="raw", quantile=0.5))
    assert set(server_half.reduce(state, chain).assignments.values()) == {"c0"}


def test_refine_devices_go_where_their_loss_is_lowest() -> None:
    state = server_half.reduce(server_half.start(model(0, 0), PLAIN), FIVE)
    state = server_half.reduce(state, [trained("a", 0, 0), trained("c", 9, 9)])
    assert state.phase == "choose"
    state = server_half.reduce(state, [scored("a", 2, 1), scored("single", 1, 2)])
    assert (state.assignments["a"], state.assignments["single"]) == ("c1", "c0")
    assert state.phase == "train"


def test_merge_models_that_have_come_near_become_their_mean_by_devices() -> None:
    state = server_half.reduce(server_half.start(model(0, 0), PLAIN), FIVE)
    near = state.near
    state = server_half.reduce(state, [trained("a", 3, 3), trained("c", 3 + near / 2, 3)])
    state = server_half.reduce(state, [scored("a", 1, 2), scored("b", 1, 2), scored("d", 1, 2)])
    assert set(state.assignments.values()) == {"c0"}
    assert values(state) == {"c0": pytest.approx([3 + near / 2 / 4, 3])}


def test_one_device_all_the_same_and_nobody_near_anybody() -> None:
    assert server_half.reduce(server_half.start(model(0, 0), PLAIN), FIVE[:1]).assignments == {"a": "c0"}
    same = [trained(device, 1, 1) for device in "abc"]
    assert set(server_half.reduce(server_half.start(model(0, 0), PLAIN), same).assignments.values()) == {"c0"}
    far = [trained("a", 0, 0), trained("b", 100, 0), trained("c", 0, 300)]
    state = server_half.reduce(
        server_half.start(model(0, 0), Parameters(inputs="raw", quantile=0.0, smallest=3)), far
    )
    assert set(state.assignments.values()) == {"c0"}


def test_the_papers_mean_is_trimmed_and_parameters_that_cannot_work_are_refused() -> None:
    assert ALGORITHM.configure("paper").aggregation == "trimmed"
    for change in ({"quantile": 1.5}, {"smallest": 0}, {"every": 0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            server_half.start(model(0, 0), ALGORITHM.configure("default", change))
