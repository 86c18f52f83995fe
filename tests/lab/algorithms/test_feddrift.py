"""FedDrift (Jothimurugesan et al. 2023): merging, drift, and coming back, by hand."""

import numpy as np
import pytest

from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import Train
from shoal_lab.algorithms.feddrift import ALGORITHM, Parameters
from shoal_lab.algorithms.feddrift import server as server_half
from tests.reports import model, scored, trained, values

PLAIN = Parameters(inputs="raw", rounds=20, drift=0.5, every=1, aggregation="mean")


def apart() -> server_half.State:
    """Three devices, each with a model of its own, which have trained once."""
    state = server_half.start(model(0, 0), PLAIN)
    plan = server_half.plan(state, ["a", "b", "c"])
    assert plan is not None
    assert all(isinstance(task, Train) for task in plan.tasks.values())
    return server_half.reduce(
        state, [trained("a", 1, 0), trained("b", 3, 0, examples=30), trained("c", 0, 9)]
    )


MERGE = [scored("a", 0.2, 0.4, 5.0), scored("b", 0.5, 0.3, 5.0), scored("c", 4.0, 4.0, 0.1)]
"""a and b do as well with each other's model as with their own, c does not."""


def test_algorithm_2_the_distance_is_how_much_worse_a_model_is_on_the_others_devices() -> None:
    losses = {"a": np.array([0.2, 0.4]), "b": np.array([0.9, 0.3])}
    found = server_half.distances(["c0", "c1"], {"a": "c0", "b": "c1"}, losses)
    assert found[0, 1] == found[1, 0] == pytest.approx(0.6), "max(0.4 - 0.2, 0.9 - 0.3)"
    printed = server_half.distances(["c0", "c1"], {"a": "c0", "b": "c1"}, losses, "itself")
    assert printed[0, 1] == printed[1, 0] == pytest.approx(0.7), "max(0.9 - 0.2, 0.4 - 0.3)"
    empty = server_half.distances(["c0", "c1"], {"a": "c0"}, {"a": losses["a"]})
    assert empty[0, 1] > 1e300, "nothing is known of a cluster without devices"


def test_clusters_whose_models_suit_each_others_data_become_one() -> None:
    state = apart()
    assert values(state) == {"c0": [1, 0], "c1": [3, 0], "c2": [0, 9]}
    state = server_half.reduce(state, MERGE)
    assert state.assignments == {"a": "c0", "b": "c0", "c": "c2"}
    assert values(state) == {"c0": [2, 0], "c2": [0, 9]}
    assert state.losses == {"a": 0.2, "b": 0.3, "c": 0.1}


def test_complete_linkage_does_not_chain() -> None:
    """b is near a and near c, but a and c are far from each other."""
    chain = [scored("a", 0.1, 0.5, 2.0), scored("b", 0.5, 0.1, 0.55), scored("c", 2.0, 0.55, 0.1)]
    state = server_half.reduce(apart(), chain)
    assert state.assignments == {"a": "c0", "b": "c0", "c": "c2"}


def test_a_device_whose_data_have_drifted_gets_a_new_model_and_finds_an_old_one_again() -> None:
    state = server_half.reduce(apart(), MERGE)
    state = server_half.reduce(state, [trained("a", 2, 0), trained("c", 0, 9)])
    drifted = server_half.reduce(state, [scored("a", 3.0, 4.0), scored("b", 0.3, 5.0), scored("c", 5.0, 0.1)])
    assert drifted.assignments == {"a": "c3", "b": "c0", "c": "c2"}
    assert values(drifted)["c3"] == [0, 0], "from the initial weights"
    assert "a" not in drifted.losses
    known = server_half.reduce(state, [scored("a", 3.0, 0.2), scored("b", 0.3, 5.0), scored("c", 5.0, 0.1)])
    assert known.assignments["a"] == "c2", "its new data are of a concept that has a model"


def test_a_model_that_nobody_chooses_stays_for_when_its_concept_comes_back() -> None:
    state = server_half.reduce(apart(), MERGE)
    state = server_half.reduce(state, [trained("a", 2, 0)])
    state = server_half.reduce(state, [scored("c", 0.1, 4.0)])
    assert state.assignments["c"] == "c0"
    assert values(state)["c2"] == [0, 9]


def test_together_there_is_one_model_until_something_drifts() -> None:
    state = server_half.start(model(0, 0), Parameters(inputs="raw", rounds=9, every=1, first="together"))
    state = server_half.reduce(state, [trained("a", 1, 0), trained("b", 1, 0)])
    state = server_half.reduce(state, [scored("a", 1.0), scored("b", 1.0)])
    assert list(state.models) == ["global"]
    state = server_half.reduce(state, [trained("a", 1, 0), trained("b", 1, 0)])
    state = server_half.reduce(state, [scored("a", 1.0), scored("b", 2.0)])
    assert len(set(state.assignments.values())) == 2


def test_one_device_all_the_same_and_parameters_that_cannot_work() -> None:
    state = server_half.reduce(server_half.start(model(0, 0), PLAIN), [trained("a", 1, 0)])
    assert server_half.reduce(state, [scored("a", 0.5)]).assignments == {"a": "c0"}
    state = server_half.reduce(
        server_half.start(model(0, 0), PLAIN), [trained(device, 1, 0) for device in "abc"]
    )
    same = server_half.reduce(state, [scored(device, 1, 1, 1) for device in "abc"])
    assert set(same.assignments.values()) == {"c0"}
    for change in ({"drift": 0.0}, {"every": 0}, {"first": "separate"}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            server_half.start(model(0, 0), ALGORITHM.configure("default", change))
