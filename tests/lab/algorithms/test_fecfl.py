"""FECFL, as the FMCL paper runs it: one mean embedding for each device, and newcomers without labels."""

import numpy as np
import pytest

from shoal.core.algorithm import Report
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import ConfigError, Refused
from shoal.core.exchange.messages import Represent, Represented
from shoal.core.exchange.parts import ClusterAssignment, Prototypes
from shoal_lab.algorithms.fecfl import ALGORITHM, Parameters
from shoal_lab.algorithms.fecfl import server as server_half
from tests.fleet import data, first_model, fleet, learner
from tests.reports import model, trained


def embedded(device: str, *values: float) -> Report:
    one = Prototypes(np.zeros(1), np.array([values], float), np.array([9.0]))
    return Report(device, Represented(one, 9))


FOUR = [embedded("a", 1, 0), embedded("b", 5, 0.1), embedded("c", 0, 1), embedded("d", 0.1, 3)]


def test_devices_are_grouped_by_the_angle_of_their_mean_embedding() -> None:
    state = server_half.start(model(0, 0), Parameters(inputs="raw", clusters=2))
    plan = server_half.plan(state, ["a"])
    assert plan is not None
    assert isinstance(plan.tasks["a"], Represent)
    assert not plan.tasks["a"].by_class
    assert server_half.reduce(state, FOUR).assignments == {"a": "c0", "b": "c0", "c": "c1", "d": "c1"}
    cut = server_half.reduce(
        server_half.start(model(0, 0), Parameters(inputs="raw", clusters=0, distance=0.1)), FOUR
    )
    assert len(cut.models) == 2


def test_a_newcomer_without_labels_gets_the_model_of_the_group_that_sees_what_it_sees() -> None:
    changes = {"rounds": 2, "epochs": 1, "learning_rate": 0.1, "clusters": 2}
    angles = (0, 45)
    state = server_half.start(first_model(), ALGORITHM.configure("default", changes))
    outcome = simulate(server_half, state, fleet(ALGORITHM, 6, angles), RoundPolicy(minimum=6), 3)
    assert [outcome.state.assignments[f"d{number}"] for number in range(6)] == ["c0", "c1"] * 3
    question = server_half.place(outcome.state, None)
    for number in (6, 7):
        views = Views.of(Dataset(data(number, angles).x))
        answer = standard.perform(
            question, DeviceContext(learner(), views, "cpu", 0, np.random.default_rng(0))
        )
        assert isinstance(answer, Represented)
        placed = server_half.place(outcome.state, answer.prototypes)
        assert isinstance(placed, ClusterAssignment)
        assert placed.cluster == f"c{number % 2}"


def test_a_late_device_represents_and_joins_and_nobody_is_placed_before_there_are_groups() -> None:
    state = server_half.start(model(0, 0), Parameters(inputs="raw", clusters=2))
    with pytest.raises(Refused, match="not formed"):
        server_half.place(state, None)
    state = server_half.reduce(state, FOUR)
    state = server_half.reduce(state, [trained("a", 1, 1), embedded("late", 0.2, 1)])
    assert (state.assignments["late"], state.progress) == ("c1", 1)


def test_one_device_all_the_same_and_one_with_another_encoder() -> None:
    assert server_half.reduce(
        server_half.start(model(0, 0), Parameters(inputs="raw")), FOUR[:1]
    ).assignments == {"a": "c0"}
    same = [embedded(device, 1, 1) for device in "abc"]
    assert len(server_half.reduce(server_half.start(model(0, 0), Parameters(inputs="raw")), same).models) == 1
    odd = [*FOUR, embedded("wide", 1, 2, 3), embedded("zero", 0, 0)]
    assert set(
        server_half.reduce(server_half.start(model(0, 0), Parameters(inputs="raw")), odd).assignments
    ) >= {
        "wide",
        "zero",
    }
    with pytest.raises(ConfigError, match="distance above 0"):
        server_half.start(model(0, 0), Parameters(inputs="raw", clusters=0, distance=0.0))
