"""Algorithms are found, named, and configured; devices are asked for initial weights."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.core.algorithm import Report, discover, find
from shoal.core.engine.bootstrap import Bootstrap, Unstarted, agreed, agreed_encoder
from shoal.core.errors import ConfigError, Refused
from shoal.core.exchange.messages import Build, Built, Train
from shoal.core.exchange.tensors import digest
from shoal.core.types import Tensors
from tests.core import counting


def test_every_folder_is_found_and_a_variant_leads_to_its_algorithm() -> None:
    found = discover()
    assert {"fedavg", "flux"} <= set(found)
    card, changes = find("flux-soft")
    assert card is find("flux")[0]
    assert changes == {"mixing": "soft"}


def test_an_unknown_name_suggests_the_near_one() -> None:
    with pytest.raises(ConfigError, match='did you mean "flux-soft"'):
        find("flux-sof")


def test_a_whole_number_is_taken_where_a_number_is_due_and_nothing_else_is_guessed() -> None:
    card, _ = find("flux")
    assert card.configure("default", {"learning_rate": 1}).learning_rate == 1.0
    for name, value in (("rounds", 2.5), ("rounds", True), ("evaluate", 1), ("bounds", 3)):
        with pytest.raises(ConfigError, match=name):
            card.configure("default", {name: value})


def test_without_initial_weights_a_device_is_asked_and_then_the_algorithm_starts() -> None:
    server_half = Bootstrap(counting, 2)  # type: ignore[arg-type]
    plan = server_half.plan(Unstarted(), ["d3"])
    assert plan is not None
    assert list(plan.tasks) == ["d3"]
    assert isinstance(plan.tasks["d3"], Build)
    model = counting.model(1.5)
    state = server_half.reduce(Unstarted(), [Report("d3", Built(model))])
    assert digest(state.models["global"]) == digest(model)
    assert state.models["global"]["w"] is not model["w"], "what a report holds goes away with the round"
    following = server_half.plan(state, ["d3"])
    assert following is not None
    assert isinstance(following.tasks["d3"], Train)


def test_where_several_initial_models_are_wanted_the_device_is_asked_for_as_many() -> None:
    started: list[float] = []

    class Several:
        plan, place = staticmethod(counting.plan), staticmethod(counting.place)

        @staticmethod
        def start(model: Tensors, parameters: int, *others: Tensors) -> counting.State:
            started.extend(float(each["w"][0]) for each in (model, *others))
            return counting.start(model, parameters)

    server_half = Bootstrap(Several(), 2, models=3)  # type: ignore[arg-type]
    plan = server_half.plan(Unstarted(), ["d3"])
    assert plan is not None
    task = plan.tasks["d3"]
    assert isinstance(task, Build)
    assert task.models == 3
    built = Built(counting.model(1.0), (counting.model(2.0), counting.model(3.0)))
    task.admit(built)
    server_half.reduce(Unstarted(), [Report("d3", built)])
    assert started == [1.0, 2.0, 3.0]


def test_three_devices_are_asked_for_the_initial_weights_with_one_seed() -> None:
    plan = Bootstrap(counting, 2).plan(Unstarted(), [f"d{number}" for number in range(9)])  # type: ignore[arg-type]
    assert plan is not None
    assert len(plan.tasks) == 3
    assert all(isinstance(task, Build) and task.one_seed for task in plan.tasks.values())


@given(st.integers(0, 2), st.integers(0, 2**32), st.sampled_from([0.0, 1e-4, 0.3, 1.0, 3.0, 1e6]))
def test_one_that_lies_about_the_initial_weights_is_outvoted(place: int, seed: int, scale: float) -> None:
    chance = np.random.default_rng(seed)
    honest = {"w": chance.normal(size=(8, 4)).astype(np.float32), "n": np.array(0)}
    rounded = {"w": honest["w"] * np.float32(1 + 1e-6), "n": np.array(0)}  # by another processor
    lie = {"w": (scale * chance.normal(size=(8, 4))).astype(np.float32), "n": np.array(0)}
    built = [Built(honest), Built(rounded)]
    built.insert(place, Built(lie))
    assert agreed(built).model is not lie


@given(st.integers(0, 2), st.sampled_from([0.0, 1e-3, 1e3]))
def test_where_no_two_agree_weights_that_are_too_small_or_too_large_do_not_count(
    place: int, scale: float
) -> None:
    chance = np.random.default_rng(0)
    built = [Built({"w": chance.normal(size=50)}) for _ in range(2)]
    lie = Built({"w": scale * chance.normal(size=50)})
    built.insert(place, lie)
    assert agreed(built) is not lie


def test_an_initial_weight_as_large_as_any_does_not_end_the_run() -> None:
    honest = {"w": np.ones(2, np.float32), "b": np.zeros(2, np.float32)}
    lie = {"w": np.ones(2, np.float32), "b": np.full(2, 3e38, np.float32)}
    built = [Built(honest), Built(lie)]
    assert agreed(built) in built  # of two, either may be right


def test_a_shape_that_only_one_device_has_does_not_count() -> None:
    odd, usual = Built({"w": np.ones(3)}), Built({"w": np.ones(4)})
    assert agreed([odd, usual, usual]) is usual
    assert agreed([odd]) is odd
    assert agreed([usual, odd]) is usual
    assert agreed([odd, Built({"w": np.ones(5)}), usual]) is odd


def test_a_frozen_encoder_counts_if_two_devices_give_the_same_one() -> None:
    one, other = ({"graph": np.full(3, value, np.uint8)} for value in (1, 2))
    assert agreed_encoder([Built({}, encoder=other), Built({}), Built({}, encoder=one)]) == {}
    found = agreed_encoder([Built({}, encoder=other), *[Built({}, encoder=one)] * 2])
    assert digest(found) == digest(one)


def test_a_run_without_a_model_places_nobody() -> None:
    with pytest.raises(Refused, match="no model yet"):
        Bootstrap(counting, 2).place(Unstarted(), None)  # type: ignore[arg-type]
