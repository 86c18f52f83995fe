"""CFL (Sattler et al. 2019): Algorithms 1 and 2, by hand, and a real fleet that is split."""

import numpy as np
import pytest

from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal_lab.algorithms.cfl import ALGORITHM, Parameters
from shoal_lab.algorithms.cfl import server as server_half
from tests.fleet import first_model, fleet
from tests.reports import model, trained, values


def test_algorithm_1_the_largest_cosine_across_the_halves_is_as_small_as_can_be() -> None:
    angles = np.radians([0, 10, 20, 100, 110])
    cosines = np.cos(angles[:, None] - angles[None])
    halves, across = server_half.bipartition(cosines)
    assert halves.tolist() == [0, 0, 0, 1, 1]
    assert across == pytest.approx(np.cos(np.radians(80)))
    same, across = server_half.bipartition(np.ones((3, 3)))
    assert (same.tolist(), across) == ([0, 0, 0], 1.0)


def test_algorithm_2_a_cluster_is_split_when_the_mean_is_short_and_an_update_long() -> None:
    opposed = np.array([[1.0, 0.0], [-1.0, 0.1]])
    alike = np.array([[1.0, 0.0], [1.0, 0.1]])
    absolute = Parameters(inputs="raw", eps1=0.4, eps2=0.9)
    for parameters in (Parameters(inputs="raw"), absolute):
        assert server_half.incongruent(parameters, opposed @ opposed.T, np.ones(2))
        assert not server_half.incongruent(parameters, alike @ alike.T, np.ones(2))
    small = opposed / 10
    assert not server_half.incongruent(absolute, small @ small.T, np.ones(2)), "stationary for all"
    assert server_half.incongruent(Parameters(inputs="raw"), small @ small.T, np.ones(2)), (
        "in units of the round's own"
    )
    uneven = np.array([[1.0, 0.0], [-1.0, 0.0]])
    assert not server_half.incongruent(absolute, uneven @ uneven.T, np.array([9.0, 1.0])), (
        "the mean is of samples"
    )


def test_algorithm_3_both_halves_go_on_alone_and_may_be_split_again() -> None:
    state = server_half.start(model(0, 0), Parameters(inputs="raw", rounds=5, earliest=2, aggregation="mean"))
    reports = [trained("a", 1, 0), trained("b", 1, 0), trained("c", -1, 0)]
    state = server_half.reduce(state, reports)
    assert set(state.models) == {"c0"}, "not before the earliest round"
    at = values(state)["c0"][0]
    state = server_half.reduce(
        state, [trained("a", at + 1, 0), trained("b", at + 0.1, 1), trained("c", at - 1, 0)]
    )
    assert state.assignments == {"a": "c0", "b": "c0", "c": "c1"}
    assert values(state)["c1"] == pytest.approx([at - 1, 0])
    (x, y), (u, v) = values(state)["c0"], values(state)["c1"]
    state = server_half.reduce(
        state, [trained("a", x + 1, y), trained("b", x - 1, y), trained("c", u, v + 1)]
    )
    assert state.assignments == {"a": "c0", "b": "c2", "c": "c1"}
    assert state.progress == 3


def test_an_absent_device_stays_where_it_was_and_the_last_of_a_cluster_is_not_split_from_itself() -> None:
    state = server_half.start(model(0, 0), Parameters(inputs="raw", rounds=5, earliest=1, aggregation="mean"))
    state = server_half.reduce(state, [trained("a", 1, 0), trained("b", -1, 0)])
    state = server_half.reduce(state, [trained("b", -2, 0)])
    assert state.assignments == {"a": "c0", "b": "c1"}
    assert values(state) == {"c0": [1.0, 0.0], "c1": [-2.0, 0.0]}


def test_gamma_keeps_together_what_does_not_pull_apart_enough() -> None:
    state = server_half.start(model(0, 0), Parameters(inputs="raw", earliest=1, gamma=0.99))
    state = server_half.reduce(state, [trained("a", 1, 0), trained("b", -0.5, 1)])
    assert len(state.models) == 1


def test_the_number_of_clusters_can_be_limited_as_fedrc_compares_with_it() -> None:
    """Four devices that part in two pairs, and then each pair in two."""
    first = {"a": (3, 1), "b": (3, -1), "c": (-3, 1), "d": (-3, -1)}
    then = {name: (0, up) for name, (_, up) in first.items()}
    for most, clusters in ((0, 4), (3, 3), (2, 2), (1, 1)):
        parameters = Parameters(inputs="raw", rounds=9, earliest=1, most=most, aggregation="mean")
        state = server_half.start(model(0, 0), parameters)
        for move in (first, then):
            bases = {name: values(state)[state.assignments.get(name, "c0")] for name in move}
            reports = [trained(name, bases[name][0] + x, bases[name][1] + y) for name, (x, y) in move.items()]
            state = server_half.reduce(state, reports)
        assert len(state.models) == clusters


def test_identical_devices_are_never_split() -> None:
    state = server_half.start(model(0, 0), Parameters(inputs="raw", earliest=1))
    for _ in range(3):
        state = server_half.reduce(state, [trained(device, 1, 1) for device in "abc"])
    assert len(state.models) == 1


def test_devices_that_see_turned_images_are_parted_in_time() -> None:
    parameters = ALGORITHM.configure(
        "default", {"rounds": 8, "epochs": 3, "learning_rate": 0.1, "batch_size": 16}
    )
    state = server_half.start(first_model(), parameters)
    outcome = simulate(server_half, state, fleet(ALGORITHM, 6), RoundPolicy(minimum=6), 3)
    for key in outcome.state.models:
        members = [int(d[1:]) % 2 for d, own in outcome.state.assignments.items() if own == key]
        assert len(set(members)) == 1, "no cluster holds both kinds"
