"""FEROMA's mapping (Li et al. 2026, section 3.2.1) on profiles made by hand."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithms.feroma import ALGORITHM, Parameters, mapping, memory, two_sample
from shoal.core.algorithms.feroma import server as server_half
from shoal.core.algorithms.feroma.state import Row
from shoal.core.errors import ConfigError
from tests.fleet import first_model
from tests.paper.feroma_fleet import profile, row, scaler


def weights(
    parameters: Parameters, now: float, rows: Mapping[str, Row], device: str = "k"
) -> dict[str, float]:
    own = scaler(now, *(each.profile.statistics.means[1, 0] for each in rows.values()))
    return mapping.mapped(replace(parameters, classes=2), {device: profile(now)}, rows, 3, own)[device]


# -- section 3.2.1: mapping -------------------------------------------------------------------------------


def test_equation_3_softmax_inverse_and_likeness_by_hand() -> None:
    apart = np.array([[0.5, 1.0, 4.0]])
    np.testing.assert_allclose(
        mapping.normalized(mapping.closeness("softmax", apart)),
        np.exp(-apart) / np.exp(-apart).sum(),
    )
    np.testing.assert_allclose(mapping.closeness("inverse", apart), [[2.0, 1.0, 0.25]], rtol=1e-6)
    np.testing.assert_allclose(mapping.closeness("likeness", apart), [[1.0, 1.0, 1 / 4]])


def test_equation_4_weights_below_tau_are_left_out_and_where_all_are_all_count_alike() -> None:
    found = np.array([[0.7, 0.2, 0.1], [0.3, 0.3, 0.4]])
    np.testing.assert_allclose(mapping.above(found, 0.15), [[7 / 9, 2 / 9, 0], [0.3, 0.3, 0.4]])
    np.testing.assert_allclose(mapping.above(found, 0.5), [[1, 0, 0], [1 / 3] * 3])
    np.testing.assert_allclose(mapping.above(found, -1.0), [[1, 0, 0], [0, 0, 1]])
    np.testing.assert_array_equal(mapping.above(found, 0.0), found)


def test_equation_5_the_number_of_samples_is_that_of_the_source() -> None:
    rows = {"a": row(0.0, device="x", examples=10), "b": row(0.0, device="y", examples=30)}
    assert weights(Parameters(aggregation="mean"), 0.0, rows) == pytest.approx({"a": 0.25, "b": 0.75})


def test_a_claim_of_too_many_samples_does_not_buy_every_model() -> None:
    rows = {str(i): row(0.0, device=f"d{i}", examples=10 ** (12 if i == 0 else 1)) for i in range(10)}
    assert weights(Parameters(), 0.0, rows)["0"] == pytest.approx(0.1)
    assert weights(Parameters(aggregation="mean"), 0.0, rows)["0"] > 0.99


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (Parameters(), {"near", "like"}),
        (Parameters(weighting="inverse", distance="euclidean", threshold=0.3), {"near", "like"}),
        (Parameters(weighting="softmax", distance="euclidean", threshold=0.3), {"near", "like"}),
    ],
)
def test_data_are_mapped_to_the_models_of_like_data(parameters: Parameters, expected: set[str]) -> None:
    rows = {"near": row(0.0), "like": row(0.05), "far": row(40.0)}
    assert set(weights(parameters, 0.02, rows)) == expected


def test_models_that_are_alike_count_alike_however_near_by_chance() -> None:
    rows = {"same": row(0.0), "like": row(0.1)}
    assert weights(Parameters(), 0.0, rows) == pytest.approx({"same": 0.5, "like": 0.5})
    inverse = weights(Parameters(weighting="inverse", distance="euclidean"), 0.0, rows)
    assert inverse.get("like", 0.0) < 1e-3, "which is why the paper draws masks (R3)"


def test_a_model_fades_with_its_age_and_the_paper_forgets_it_at_once() -> None:
    rows = {"new": row(0.0, round=3), "old": row(0.0, round=1)}
    assert weights(Parameters(), 0.0, rows) == pytest.approx({"new": 0.8, "old": 0.2})
    assert weights(Parameters(fading=0.0), 0.0, rows) == {"new": 1.0}
    assert weights(Parameters(fading=0.0), 0.0, {"old": row(0.0, round=1)}) == {}


def test_a_model_whose_update_was_too_long_is_for_its_own_device_alone() -> None:
    rows = {"a": row(0.0, device="x", long=True), "b": row(0.0, device="y")}
    assert weights(Parameters(), 0.0, rows, "y") == {"b": 1.0}
    assert weights(Parameters(), 0.0, rows, "x") == pytest.approx({"a": 0.5, "b": 0.5})


def test_devices_with_like_data_are_those_that_profiles_connect() -> None:
    profiles = {"a": row(0.0).profile, "b": row(40.0).profile, "c": row(0.05).profile, "d": row(40.1).profile}
    assert mapping.with_like_data(profiles) == [["a", "c"], ["b", "d"]]
    assert mapping.with_like_data({}) == []


def test_devices_have_one_model_at_the_end_that_are_all_alike_and_not_held_back() -> None:
    """b is like a and like c, and these two are not like each other."""
    chain = {"a": profile(0.0), "b": profile(0.3), "c": profile(0.65), "d": profile(9.0)}
    unlike = two_sample.unlikeness([*chain.values()])
    assert unlike[0, 1] < unlike[1, 2] < 1.0 < unlike[0, 2]
    assert mapping.with_like_data(chain) == [["a", "b", "c"], ["d"]]
    assert mapping.grouped(chain, ()) == [["a", "b"], ["c"], ["d"]]
    assert mapping.grouped(chain, {"a", "away"}) == [["b", "c"], ["d"], ["a"]]
    assert mapping.grouped({}, ()) == []


def test_the_mean_of_mixtures_has_the_models_of_each() -> None:
    assert mapping.mean_of([{"y": 1.0}, {"x": 0.5, "y": 0.5}]) == {"x": 0.25, "y": 0.75}


def test_what_is_kept_is_bounded_and_of_the_two_most_alike_the_older_goes() -> None:
    lost = {"a": row(0.0, 1), "b": row(10.0, 2), "c": row(13.0, 3), "d": row(40.0, 1)}
    assert set(memory.remembered(lost, {}, 4)) == set(lost)
    assert set(memory.remembered(lost, {}, 3)) == {"a", "c", "d"}
    assert set(memory.remembered({**lost, "e": row(13.0, 9)}, {}, 9)) == {"a", "b", "d", "e"}
    assert set(memory.remembered(lost, {"own": row(40.0, 5, "x")}, 9)) == {"a", "b", "c"}
    assert memory.remembered(lost, {}, 0) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"weighting": "nearest"}, "weighting"),
        ({"warm_up": 1.0}, "warm_up"),
        ({"fading": 2.0}, "fading"),
        ({"keep": -1}, "keep"),
        ({"aggregation": "median"}, "aggregation"),
        ({"privacy": "balanced", "weighting": "inverse"}, "weighting=likeness"),
        ({"privacy": "paper", "epsilon": 10.0}, "weighting=inverse"),
        ({"classes": -1}, "classes"),
    ],
)
def test_what_cannot_work_is_refused_before_the_run_starts(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        server_half.start(first_model(), ALGORITHM.configure("default", changes))


def test_a_newcomer_gets_the_nearest_model_whoever_has_it_and_however_old_it_is() -> None:
    """It differs from data that no device has any more by little more than chance, from others' by far."""
    rows = {"a": row(4.0, device="a", round=9), "gone": row(0.0, round=1)}
    shown = profile(0.4)
    assert 1.0 < two_sample.between([shown], [rows["gone"].profile])[0, 0] < 3.0
    answer = mapping.place(Parameters(classes=2), shown, rows, 9, scaler(0.0, 4.0))
    assert answer.cluster == "gone"
    assert answer.runner_up == "a"
