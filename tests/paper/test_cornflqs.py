"""CORNFLQS (Ben Ali et al. 2025), algorithm by algorithm, and on devices that hold 5 to 70 of a label."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from shoal.core.algorithms.cornflqs import ALGORITHM, Parameters
from shoal.core.algorithms.cornflqs import server as server_half
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import ConfigError, DeviceFault
from shoal.core.exchange.messages import Score, Train
from shoal.core.exchange.parts import ClusterAssignment
from shoal.simulation import images
from shoal_lab.shifts import make
from tests.fleet import contexts, first_model, learner
from tests.reports import model, scored, trained, values


def begun(**changes: Any) -> server_half.State:
    """After Algorithm 2, from the model (0, 0), at (0.5, 0.5)."""
    plain = {"inputs": "raw", "rounds": 6, "clusters": 2, "compare": "weights", "aggregation": "mean"}
    parameters = Parameters(**{**plain, **changes})
    state = server_half.start(model(0, 0), parameters)
    return server_half.reduce(state, [trained("a", 1, 0), trained("b", 0, 1, examples=70)])


CORN = [
    trained("a", 1, 0, examples=30),
    trained("b", 9, 9),
    trained("c", 0, 0),
    trained("d", 9, 8, examples=30),
]
"""Two pairs, far from each other."""


# -- Algorithm 2 --------------------------------------------------------------------------------------------


def test_algorithm_2_the_start_is_the_mean_of_devices_and_not_of_samples() -> None:
    state = begun()
    assert values(state) == {"global": [0.5, 0.5]}
    assert (state.phase, state.progress) == ("corn", 0), "it is no round of the N"
    plan = server_half.plan(state, ["a", "b"])
    assert plan is not None
    assert isinstance(plan.tasks["a"], Train), "line 10: all train from there once more"


# -- Algorithm 3 --------------------------------------------------------------------------------------------


def test_algorithm_3_lines_4_to_7_the_server_groups_weights_and_averages_by_samples() -> None:
    state = server_half.reduce(begun(), CORN)
    assert state.assignments == {"a": "c0", "c": "c0", "b": "c1", "d": "c1"}
    assert values(state) == {"c0": [0.75, 0.0], "c1": [9.0, 8.25]}
    assert (state.phase, state.progress) == ("agree", 1)


def test_algorithm_3_line_13_every_device_chooses_by_loss_and_the_choice_holds() -> None:
    state = server_half.reduce(begun(), CORN)
    plan = server_half.plan(state, list("abcd"))
    assert plan is not None
    task = plan.tasks["a"]
    assert isinstance(task, Score)
    assert [one["w"].tolist() for one in task.models] == list(values(state).values())
    choices = [scored("a", 0.1, 0.9), scored("b", 0.2, 0.9), scored("c", 0.1, 0.9), scored("d", 0.9, 0.1)]
    state = server_half.reduce(state, choices)
    assert state.assignments == {"a": "c0", "b": "c0", "c": "c0", "d": "c1"}
    assert state.phase == "corn", "line 18: b does not agree, so weights are grouped again"


def test_algorithm_3_line_18_where_all_agree_grouping_is_over() -> None:
    state = server_half.reduce(begun(), CORN)
    state = server_half.reduce(
        state, [scored("a", 0, 1), scored("b", 1, 0), scored("c", 0, 1), scored("d", 1, 0)]
    )
    assert state.phase == "settle"


def test_algorithm_3_line_18_without_agreement_it_ends_after_half_of_the_rounds() -> None:
    state = begun()
    for number in (1, 2, 3):
        state = server_half.reduce(state, CORN)
        assert state.progress == number
        state = server_half.reduce(state, [scored("a", 1, 0)])
        assert state.assignments["a"] == "c1", "the server says c0, every time"
    assert state.phase == "settle", "and the choice of the device holds: it has seen the models at work"


def test_an_absent_device_keeps_its_cluster_and_a_group_its_name() -> None:
    state = server_half.reduce(begun(), CORN)
    state = server_half.reduce(state, [scored("a", 1, 0)])
    state = server_half.reduce(state, [trained("b", 9, 9), trained("d", 9, 8)])
    assert state.assignments["c"] == "c0"
    assert {state.assignments["b"], state.assignments["d"]} == {"c0", "c1"}, "two groups of one, by old names"


def test_by_default_it_counts_where_devices_moved_and_not_how_far() -> None:
    """Two go along the first axis, two along the second; one of each has few samples and hardly moves."""
    far = [trained("a", 0.6, 0.5), trained("b", 9.5, 0.5), trained("c", 0.5, 0.6), trained("d", 0.5, 9.5)]
    state = server_half.reduce(begun(compare="directions"), far)
    assert state.assignments == {"a": "c0", "b": "c0", "c": "c1", "d": "c1"}
    state = server_half.reduce(begun(compare="weights"), far)
    assert state.assignments["a"] == state.assignments["c"], "what the paper's clustering makes of it"


def test_a_device_that_points_away_from_all_others_takes_no_cluster_of_its_own() -> None:
    """Ward would give it one of the two, and both groups of honest devices would share the other."""
    honest = [trained("a", 1.5, 0.5), trained("b", 1.5, 0.6), trained("c", 0.5, 1.5), trained("d", 0.6, 1.5)]
    liar = trained("z", -0.5, -0.5)
    state = server_half.reduce(begun(compare="directions", aggregation="clipped"), [*honest, liar])
    assert state.assignments["a"] == state.assignments["b"]
    assert state.assignments["c"] == state.assignments["d"] != state.assignments["a"]
    state = server_half.reduce(begun(compare="directions"), [*honest, liar])
    assert len({state.assignments[device] for device in "abcd"}) == 1, "the mean bounds no device"


# -- Algorithms 4 and 5 -------------------------------------------------------------------------------------


def test_algorithm_4_goes_on_until_nobody_moves_and_algorithm_5_asks_no_more() -> None:
    state = server_half.reduce(begun(), CORN)
    state = server_half.reduce(
        state, [scored("a", 0, 1), scored("b", 1, 0), scored("c", 0, 1), scored("d", 1, 0)]
    )
    state = server_half.reduce(state, CORN)
    assert (state.phase, state.progress) == ("stable", 2)
    state = server_half.reduce(state, [scored("a", 1, 0), scored("b", 1, 0)])
    assert (state.phase, state.assignments["a"]) == ("settle", "c1")
    state = server_half.reduce(state, CORN)
    state = server_half.reduce(state, [scored("a", 1, 0), scored("b", 1, 0)])
    assert state.phase == "clustered"
    before = values(state)
    state = server_half.reduce(state, [trained("a", 5, 5)])
    assert values(state) == {**before, "c1": [5.0, 5.0]}, "a cluster without updates keeps its model"
    assert (state.phase, state.progress) == ("clustered", 4)


def test_n_rounds_of_training_after_the_first_and_then_the_end() -> None:
    state = begun(rounds=1, evaluate=False)
    state = server_half.reduce(state, CORN)
    assert state.progress == 1
    assert server_half.plan(state, ["a"]) is None


# -- sections 2.2 and 3, on real data -----------------------------------------------------------------------


@pytest.mark.parametrize("level", [0, 1, 2])
def test_section_3_devices_of_a_concept_find_each_other_however_many_samples_they_hold(level: int) -> None:
    devices = make("qs-features", level, 8, 42, *images.digits())
    changes = {"inputs": "raw", "rounds": 3, "epochs": 5, "learning_rate": 0.1, "batch_size": 16}
    state = server_half.start(first_model(), ALGORITHM.configure("default", changes))
    fleet = contexts(ALGORITHM, [Views.of(device.train, device.test) for device in devices])
    outcome = simulate(server_half, state, fleet, RoundPolicy(minimum=8), 3)
    assert not outcome.failed
    found = [outcome.state.assignments[f"d{number}"] for number in range(8)]
    assert adjusted_rand_score([device.concept for device in devices], found) == 1.0
    newcomer = DeviceContext(learner(), Views.of(devices[7].test), "cpu", 0, np.random.default_rng(0))
    question = server_half.place(outcome.state, None)
    answer = standard.perform(question, newcomer)
    placed = server_half.place(outcome.state, answer.scores)
    assert isinstance(placed, ClusterAssignment)
    assert placed.cluster == found[7]
    blind = DeviceContext(learner(), Views.of(Dataset(devices[7].test.x)), "cpu", 0, np.random.default_rng(0))
    with pytest.raises(DeviceFault, match=r"the data have none \(label some samples, or ask a run that"):
        standard.perform(question, blind)


# -- what is not as it should be ----------------------------------------------------------------------------


def test_more_clusters_than_devices_and_a_single_device() -> None:
    state = server_half.reduce(begun(clusters=9), CORN)
    assert len(set(state.assignments.values())) == 4
    state = server_half.reduce(begun(), [trained("a", 3, 3)])
    assert values(state) == {"c0": [3.0, 3.0]}
    state = server_half.reduce(state, [scored("a", 0.5)])
    assert (state.phase, state.assignments) == ("settle", {"a": "c0"})


def test_identical_devices_stay_one_group_and_different_ones_are_parted() -> None:
    state = server_half.reduce(begun(), [trained(device, 2, 2) for device in "abc"])
    assert list(state.models) == ["c0"]
    state = server_half.reduce(
        begun(clusters=3), [trained(device, 10 * i, 0) for i, device in enumerate("abc")]
    )
    assert len(set(state.assignments.values())) == 3


def test_a_group_that_comes_later_gets_a_name_of_its_own() -> None:
    state = server_half.reduce(begun(), [trained(device, 2, 2) for device in "abcd"])
    assert list(state.models) == ["c0"]
    state = server_half.reduce(replace(state, phase="corn"), CORN)
    assert sorted(state.models) == ["c0", "c1"]
    assert values(state)[state.assignments["a"]] == [0.75, 0.0]


def test_parameters_that_cannot_work_are_refused() -> None:
    for change in ({"clusters": 0}, {"rounds": 0}, {"learning_rate": 0.0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            server_half.start(model(0, 0), ALGORITHM.configure("default", change))
