"""The rules by which updates become a model: numbers that can be checked by hand, and what always holds."""

import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.core.exchange.tensors import digest, weighted_mean
from shoal.core.server_kit.aggregation import coordinates, robust
from shoal.core.server_kit.aggregation.robust import (
    RULES,
    Clipped,
    Combined,
    Update,
    capped,
    chosen,
    combine,
    reference,
)
from shoal.core.server_kit.aggregation.survey import norm
from shoal.core.server_kit.clustering import distances
from shoal.core.types import Tensors

ZERO: Tensors = {"w": np.zeros(2, np.float32)}


def model(*values: float) -> Tensors:
    return {"w": np.array(values, np.float32)}


def updates(*models: Tensors, weights: tuple[float, ...] = ()) -> dict[str, Update]:
    given = weights or (1.0,) * len(models)
    return {
        f"d{i:02}": Update(one, weight) for i, (one, weight) in enumerate(zip(models, given, strict=True))
    }


# -- by hand ------------------------------------------------------------------------------------------------


def test_an_update_is_cut_to_half_more_than_the_median_norm_or_to_three_times_among_ten() -> None:
    found = combine("clipped", ZERO, updates(model(1, 0), model(0, 1), model(0, 40)))
    assert found.reference == 1.0
    assert found.clipped == {"d02": 40.0}
    np.testing.assert_allclose(found.model["w"], [1 / 3, (1 + 1.5) / 3], rtol=1e-6)
    many = combine("clipped", ZERO, updates(*[model(1, 0)] * 9, model(0, 40)))
    assert (many.reference, many.clipped) == (1.0, {"d09": 40.0})
    np.testing.assert_allclose(many.model["w"], [0.9, 0.3], rtol=1e-6)


@pytest.mark.parametrize("length", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("devices", [*range(3, 11), 20, 50])
def test_the_one_update_that_points_away_from_all_others_is_left_out(devices: int, length: float) -> None:
    """Whatever its length and its claims are: the model is what the others make by themselves."""
    honest = [model(1, i / devices) for i in range(devices - 1)]
    claims = (*(5.0,) * (devices - 1), 1e12)
    found = combine("clipped", ZERO, updates(*honest, model(-length, 0), weights=claims))
    liar = f"d{devices - 1:02}"
    assert list(found.left_out) == [liar]
    assert found.left_out[liar] == pytest.approx(-1.0, abs=0.2)
    assert digest(found.model) == digest(combine("clipped", ZERO, updates(*honest)).model)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([(1, 0), (-1, 0)], "two cannot tell which of them is wrong"),
        ([(1, 0), (1, 0), (0, 1)], "to the side is not away"),
        ([(1, 0), (1, 0), (-1, 0.1), (-1, -0.1)], "two of a mind are a group"),
        ([(1, 0), (0, 1), (-1, -1)], "the others do not agree"),
        ([(1, 0), (0, 0), (-1, 0)], "a device that did not move is no witness"),
        ([(1, 0)] * 50 + [(-1, 0)], "among more than fifty, no pairs are compared"),
    ],
)
def test_nothing_is_left_out_where_nobody_is_alone(rows: list[tuple[float, float]], why: str) -> None:
    assert not combine("clipped", ZERO, updates(*(model(*row) for row in rows))).left_out, why


@pytest.mark.parametrize(("count", "share"), [(1, 1), (2, 1), (3, 0.4), (5, 0.3), (8, 0.2), (20, 0.2)])
def test_the_largest_share_of_one_device(count: int, share: float) -> None:
    assert robust.largest_share(count) == pytest.approx(share)


def test_the_reference_grows_by_no_more_than_three_from_round_to_round() -> None:
    """A cluster of one: nothing to compare it with but itself, before."""
    found = combine("clipped", ZERO, updates(model(0, 100)), before=2.0)
    assert (found.reference, found.clipped) == (6.0, {"d00": pytest.approx(100 / 6)})
    np.testing.assert_allclose(found.model["w"], [0, 18], rtol=1e-6)
    shrinking = combine("clipped", ZERO, updates(model(0, 0.5)), before=2.0)
    assert (shrinking.reference, shrinking.clipped) == (0.5, {})


def test_in_the_reference_tiny_devices_do_not_outvote_those_with_the_data() -> None:
    norms = {"a": 9.0, "b": 8.0, "c": 1.0, "d": 1.0, "e": 1.0, "f": 1.0, "g": 1.0}
    even = dict.fromkeys(norms, 1.0)
    assert reference(norms, even, 0.0) == 1.0
    assert reference(norms, {**even, "a": 100.0, "b": 100.0}, 0.0) == 8.0


@pytest.mark.parametrize("devices", range(3, 40))
def test_less_than_a_quarter_cannot_set_the_reference_whatever_they_claim(devices: int) -> None:
    hostile = max(1, math.ceil(devices / 4) - 1)
    norms = {f"d{i:02}": 1.0 + i / 100 if i >= hostile else 1e6 for i in range(devices)}
    claims = {device: 1e12 if size == 1e6 else 50.0 for device, size in norms.items()}
    assert 1.0 <= reference(norms, claims, 0.0) <= 1.4
    silent = {device: 1e-6 if size == 1e6 else size for device, size in norms.items()}
    assert 1.0 <= reference(silent, claims, 0.0) <= 1.4


def test_devices_that_did_not_move_say_nothing_of_how_far_training_goes() -> None:
    found = combine("clipped", ZERO, updates(ZERO, ZERO, ZERO, model(0, 4)))
    assert (found.reference, found.clipped) == (4.0, {})
    still = combine("clipped", ZERO, updates(ZERO, ZERO), before=2.0)
    assert still.reference == 0.0
    assert digest(still.model) == digest(ZERO)


@pytest.mark.parametrize(
    ("weights", "share", "expected"),
    [
        ((90, 5, 5), 2 / 3, (20, 5, 5)),
        ((1000, 1000, 1, 1, 1, 1, 1, 1, 1, 1), 0.2, (8 / 3, 8 / 3, 1, 1, 1, 1, 1, 1, 1, 1)),
        ((3, 2, 1, 1), 0.5, (3, 2, 1, 1)),
        ((7, 1), 1.0, (7, 1)),
        ((7, 1), 0.5, (1, 1)),
        ((7,), 1.0, (7,)),
    ],
)
def test_nobody_weighs_more_than_its_share(
    weights: tuple[float, ...], share: float, expected: tuple[float, ...]
) -> None:
    found = capped({str(i): float(weight) for i, weight in enumerate(weights)}, share)
    np.testing.assert_allclose(list(found.values()), expected)


def test_the_mean_is_weighted_by_the_capped_weights_and_says_whose() -> None:
    found = combine("clipped", ZERO, updates(model(2, 0), model(0, 2), model(0, 2), weights=(90, 5, 5)))
    np.testing.assert_allclose(found.model["w"], [2 * 0.4, 2 * 0.6], rtol=1e-6)
    assert found.capped == ("d00",)


def test_trimmed_leaves_out_a_tenth_at_each_end_and_at_least_one() -> None:
    def trimmed(*values: float) -> float:
        ones = [model(1.0, value / 1000.0) for value in values]  # of one length, nearly: nothing is cut
        return float(combine("trimmed", ZERO, updates(*ones)).model["w"][1]) * 1000.0

    assert trimmed(0, 1, 50) == pytest.approx(1)
    assert trimmed(*range(9), 50) == pytest.approx(4.5)
    assert trimmed(*range(18), 50, 50) == pytest.approx((sum(range(2, 18))) / 16)
    assert trimmed(3, 5) == pytest.approx(4)
    assert trimmed(3) == pytest.approx(3)


def test_median_of_odd_and_even() -> None:
    assert combine("median", ZERO, updates(model(1, 2), model(2, 1), model(2, 2))).model["w"].tolist() == [
        2,
        2,
    ]
    four = updates(model(1, 2), model(2, 1), model(2, 2), model(1, 1))
    assert combine("median", ZERO, four).model["w"].tolist() == [1.5, 1.5]


def test_auto_goes_by_the_number_of_updates() -> None:
    assert [chosen("auto", n) for n in (1, 4, 5, 9, 10, 500)] == [
        "clipped",
        "clipped",
        "median",
        "median",
        "trimmed",
        "trimmed",
    ]
    assert chosen("trimmed", 2) == "trimmed"


def test_whole_numbers_take_the_median_and_are_never_cut() -> None:
    base: Tensors = {"steps": np.array(5, np.int64), "on": np.array([True]), "w": np.zeros(2, np.float32)}
    ones = [
        {"steps": np.array(steps, np.int64), "on": np.array([on]), "w": np.array([1, w], np.float32)}
        for steps, on, w in ((10, True, 0), (12, True, 0), (1 << 50, False, 90))
    ]
    for rule in ("clipped", "trimmed", "median"):
        found = combine(rule, base, updates(*ones)).model
        assert (found["steps"].dtype, found["steps"].shape, int(found["steps"])) == (np.int64, (), 12)
        assert found["on"].tolist() == [True]
        assert list(found) == list(base)
    assert combine("mean", base, updates(*ones)).model["steps"] == round(((1 << 50) + 22) / 3)


@pytest.mark.parametrize("rule", ["clipped", "trimmed", "median"])
def test_values_beyond_reason_move_nothing_and_overflow_nowhere(rule: str) -> None:
    base: Tensors = {"w": np.zeros(2)}
    huge = {"w": np.array([1e308, -1e308])}
    for hostile in (huge, {"w": np.array([-1.7e308, 1.7e308])}):
        ones = [{"w": np.array([1.0, 0.5])}, {"w": np.array([0.5, 1.0])}, hostile]
        found = combine(rule, {"w": base["w"] - 1e-3}, updates(*ones))
        assert np.isfinite(found.model["w"]).all()
        assert np.abs(found.model["w"]).max() <= 1.0
        assert found.clipped == {"d02": math.inf}


def test_what_was_not_cut_is_the_plain_mean_to_the_bit() -> None:
    chance = np.random.default_rng(3)
    ones = [{"w": chance.normal(size=1000).astype(np.float32)} for _ in range(7)]
    base = {"w": chance.normal(size=1000).astype(np.float32)}
    given = updates(*ones, weights=(10, 11, 12, 13, 10, 11, 12))
    clipped, mean = combine("clipped", base, given), combine("mean", base, given)
    assert digest(clipped.model) == digest(mean.model)
    assert digest(mean.model) == digest(weighted_mean((each.model, each.weight) for each in given.values()))


# -- always -------------------------------------------------------------------------------------------------

VALUES = st.floats(-1e6, 1e6, width=32)
COHORTS = st.integers(1, 12).flatmap(
    lambda n: st.lists(arrays(np.float32, 3, elements=VALUES), min_size=n, max_size=n)
)
HARDENED = st.sampled_from([rule for rule in RULES if rule != "mean"])


def cohort(rows: list[np.ndarray]) -> dict[str, Update]:
    return updates(*({"w": row} for row in rows), weights=tuple(1.0 + i % 3 for i in range(len(rows))))


@settings(deadline=None)
@given(COHORTS, st.sampled_from(RULES), st.randoms(use_true_random=False))
def test_the_order_of_the_updates_changes_no_bit(rows: list[np.ndarray], rule: str, chance: object) -> None:
    def bits(found: Combined) -> tuple[str, float, Mapping[str, float], tuple[str, ...]]:
        return digest(found.model), found.reference, dict(found.clipped), found.capped

    given = list(cohort(rows).items())
    straight = combine(rule, {"w": np.zeros(3, np.float32)}, dict(given))
    chance.shuffle(given)  # type: ignore[attr-defined]
    assert bits(combine(rule, {"w": np.zeros(3, np.float32)}, dict(given))) == bits(straight)


@settings(deadline=None)
@given(COHORTS, HARDENED, arrays(np.float32, 3, elements=VALUES))
def test_every_coordinate_lies_within_what_came_in(
    rows: list[np.ndarray], rule: str, base: np.ndarray
) -> None:
    """What came in: the updates, and the base that they are pulled towards."""
    found = combine(rule, {"w": base}, cohort(rows))
    inputs = np.stack([*rows, base] if found.clipped else rows)
    slack = 1e-6 * np.abs(inputs).max()
    assert (found.model["w"] >= inputs.min(axis=0) - slack).all()
    assert (found.model["w"] <= inputs.max(axis=0) + slack).all()
    if rule in ("trimmed", "median") and not found.clipped:
        assert (found.model["w"] >= inputs.min(axis=0)).all()
        assert (found.model["w"] <= inputs.max(axis=0)).all()


@settings(deadline=None)
@given(st.integers(1, 12), arrays(np.float32, 3, elements=VALUES), HARDENED)
def test_equal_updates_give_what_they_are(count: int, row: np.ndarray, rule: str) -> None:
    found = combine(rule, {"w": np.zeros(3, np.float32)}, cohort([row] * count))
    np.testing.assert_array_equal(found.model["w"], row)


@settings(deadline=None)
@given(arrays(np.float64, 5, elements=VALUES), arrays(np.float64, 5, elements=VALUES), st.floats(0.0, 1.0))
def test_a_cut_never_makes_an_update_longer(row: np.ndarray, base: np.ndarray, scale: float) -> None:
    before = norm({"w": row}, {"w": base})
    after = norm(Clipped({"w": row}, {"w": base}, scale), {"w": base})
    squares = 1e-160  # the square of a shorter step is below the normal numbers of float64
    assert after <= before * scale * (1 + 1e-9) + 1e-9 * np.abs(base).max() + squares


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=30), st.floats(0.0, 1.0))
def test_capped_weights_keep_their_order_and_their_share(weights: list[float], wanted: float) -> None:
    share = max(wanted, 1.0 / len(weights))
    found = list(capped({str(i): weight for i, weight in enumerate(weights)}, share).values())
    assert max(found) <= share * sum(found) * (1 + 1e-9)
    assert all(0.0 < after <= before for after, before in zip(found, weights, strict=True))
    assert sorted(found) == [after for _, after in sorted(zip(weights, found, strict=True))]


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_blocks_of_any_size_give_the_same_model(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(size)
    rows = [{"w": chance.normal(size=size), "n": chance.integers(0, 9, (2, 2))} for _ in range(6)]
    rows[2] = {"w": rows[2]["w"] * 100.0, "n": rows[2]["n"]}
    base = {"w": np.zeros(size), "n": np.zeros((2, 2), np.int64)}
    whole = {rule: digest(combine(rule, base, updates(*rows)).model) for rule in RULES}
    for module in (coordinates, distances):
        monkeypatch.setattr(module, "MATRIX", 8 * 6 * 8)
    assert {rule: digest(combine(rule, base, updates(*rows)).model) for rule in RULES} == whole
