"""FLUX with a guarantee, where it hides groups or refuses to describe devices: updates tell what descriptors
cannot."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

import shoal
from shoal.core.algorithm import Report
from shoal.core.algorithms.flux import ALGORITHM
from shoal.core.algorithms.flux import server as server_half
from shoal.core.exchange.messages import Score, Trained
from shoal.core.server_kit.clustering.congruence import MAX_DEVICES
from shoal.core.server_kit.going_on import first_state
from shoal.simulation import images

ROUNDS = 8


def fleet(sizes: list[int], turns: list[int], seed: int) -> dict[str, Any]:
    """Digits of each device, turned by this many quarters."""
    train, _ = images.digits()
    chance = np.random.default_rng(seed)
    assert train.y is not None
    found = {}
    for number, (size, turn) in enumerate(zip(sizes, turns, strict=True)):
        rows = chance.choice(len(train.y), size, replace=False)
        found[f"d{number}"] = (np.rot90(train.x[rows].reshape(-1, 8, 8), turn, (1, 2)), train.y[rows])
    return found


def trained(sizes: list[int], turns: list[int], seed: int = 47) -> Any:
    """Its state at the end."""
    asked = {"privacy": "balanced", "rounds": ROUNDS}
    return shoal.simulate("flux", fleet(sizes, turns, seed), seed=seed, **asked).state


def rand(state: Any, turns: list[int]) -> float:
    return float(adjusted_rand_score(turns, [state.assignments[f"d{n}"] for n in range(len(turns))]))


def test_updates_tell_groups_that_noise_hides_and_small_devices_are_among_them() -> None:
    turns = [0, 1] * 4
    state = trained([120] * 6 + [40] * 2, turns)
    assert state.clustering is not None
    assert state.undescribed == ("d6", "d7")
    assert {*state.clustering.described} == {f"d{n}" for n in range(6)}
    assert state.by_updates
    assert rand(state, turns) == 1.0
    assert {*state.models} == {*state.clustering.names}
    given_up = replace(state, models={"c0": next(iter(state.models.values()))})
    assert [any("updates differ" in each for each in one.remarks) for one in (state, given_up)] == [
        True,
        False,
    ]


def test_of_more_devices_than_updates_can_tell_apart_no_two_are_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Their inner products would take memory and time by the square of their number."""
    model = {"w": np.zeros(2, np.float32)}
    state = server_half.start(model, ALGORITHM.configure("default", {"privacy": "balanced"}))
    reports = [Report(f"d{n}", Trained(model, 10, 1.0)) for n in range(MAX_DEVICES + 1)]
    monkeypatch.delattr(server_half.distances, "of_devices")
    assert server_half._grouped(state, reports) is state
    with pytest.raises(AttributeError):
        server_half._grouped(state, reports[:-1])


def test_feroma_says_which_devices_have_no_model_and_how_they_get_one() -> None:
    """In the words of FLUX; a device that has enough samples by the next run is not among them any more."""
    asked = {"privacy": "balanced", "rounds": 2, "warm_up": 0.0}
    result = shoal.simulate("feroma", fleet([120] * 4 + [40] * 2, [0, 1] * 3, 47), seed=47, **asked)
    assert {*result.state.assignments} == {"d0", "d1", "d2", "d3"}
    (said,) = [each for each in result.remarks if "too few samples" in each]
    assert said.startswith("2 devices (d4, d5) have too few samples to be described with epsilon 5, and no ")
    assert "privacy=off" in said
    assert "privacy=explicit" in said
    more = fleet([120] * 5 + [40], [0, 1] * 3, 47)
    later = shoal.simulate("feroma", more, seed=47, from_=result, **asked)
    assert [each[:13] for each in later.remarks if "too few samples" in each] == ["1 device (d5)"]


def test_where_no_device_can_be_described_there_are_groups_all_the_same() -> None:
    turns = [0, 1] * 4
    state = trained([50] * 8, turns)
    assert state.clustering is None
    assert len(state.undescribed) == 8
    assert rand(state, turns) == 1.0
    assert state.progress == ROUNDS
    assert isinstance(server_half.place(state, None), Score), "a newcomer with labels finds its model"
    again = first_state(server_half, state, state.parameters)  # type: ignore[arg-type]
    assert (again.phase, again.assignments, again.progress) == ("undescribed", state.assignments, 0)


def test_devices_that_are_alike_have_one_model_and_are_told_why() -> None:
    state = trained([50] * 8, [0] * 8)
    assert len(state.models) == 1
    assert {*state.assignments.values()} == {*state.models}
    assert any("8 devices" in remark and "privacy=off" in remark for remark in state.remarks)


@pytest.mark.parametrize(
    ("changes", "may"),
    [
        ({}, True),
        ({"privacy": "off"}, True),
        ({"clusters": 3}, False),
        ({"grouping": "density", "privacy": "off"}, False),
        ({"dp_epsilon": 3.0}, False),
        ({"secure_aggregation": True, "aggregation": "mean"}, False),
        ({"aggregation": "noised", "central_noise": 1.0}, False),
        ({"mixing": "soft"}, False),
    ],
)
def test_no_group_depends_on_updates_where_that_is_not_asked_for_or_they_are_protected(
    changes: dict[str, Any], may: bool
) -> None:
    assert ALGORITHM.configure("default", changes).groups_by_updates is may
    assert not ALGORITHM.configure("paper", {}).groups_by_updates
