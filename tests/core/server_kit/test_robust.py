"""The rules by which updates become a model: numbers that can be checked by hand, and what always holds."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.aggregation import coordinates, influence, update_geometry
from shoal.core.server_kit.aggregation.parallel import pieces_of
from shoal.core.server_kit.aggregation.robust import (
    RULES,
    Clipped,
    Combined,
    Update,
    combine,
)
from shoal.core.server_kit.aggregation.update_geometry import norm
from shoal.core.types import Tensors
from tests.reports import model

ZERO: Tensors = {"w": np.zeros(2, np.float32)}


def updates(*models: Tensors, weights: tuple[float, ...] = ()) -> dict[str, Update]:
    given = weights or (1.0,) * len(models)
    return {
        f"d{i:02}": Update(one, weight) for i, (one, weight) in enumerate(zip(models, given, strict=True))
    }


# -- by hand ------------------------------------------------------------------------------------------------


def test_no_update_pulls_farther_from_the_middle_than_the_middle_one() -> None:
    found = combine("clipped", ZERO, updates(model(1, 0), model(0, 1), model(0, 40)))
    # The middle is (0, 1), from which they are sqrt(2), 0 and 39 away.
    assert (found.reference, found.long) == (1.0, {"d02": 40.0})
    np.testing.assert_allclose(found.model["w"], [1 / 3, 1 + (np.sqrt(2) - 1) / 3], rtol=1e-6)
    many = combine("clipped", ZERO, updates(*[model(1, 0)] * 9, model(0, 40)))
    assert many.model["w"].tolist() == [1.0, 0.0]


@pytest.mark.parametrize("length", [0.01, 1.0, 100.0])
@pytest.mark.parametrize("devices", [*range(3, 11), 20, 60])
def test_updates_that_move_back_are_left_out(devices: int, length: float) -> None:
    """Whatever their lengths and claims are: the model is what the others make by themselves."""
    liars = max(1, (devices - 1) // 4)
    honest = [model(1, i / devices) for i in range(devices - liars)]
    claims = (*(5.0,) * (devices - liars), *(1e12,) * liars)
    found = combine("clipped", ZERO, updates(*honest, *[model(-length, 0)] * liars, weights=claims))
    assert list(found.left_out) == [f"d{i:02}" for i in range(devices - liars, devices)]
    assert all(cosine < -0.7 for cosine in found.left_out.values())
    alone = combine("clipped", ZERO, updates(*honest, weights=claims[: len(honest)]))
    assert digest(found.model) == digest(alone.model)


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([(1, 0), (-1, 0)], "two cannot tell which of them is wrong"),
        ([(1, 0), (1, 0), (0, 1)], "to the side is not away"),
        ([(1, 0), (1, 0), (1, 0), (-1, 0.1), (-1, -0.1)], "two of five are no small minority"),
        ([(1, 0), (0, 1), (-1, -1)], "the others do not agree"),
        ([(1, 0), (0, 0), (-1, 0)], "a device that did not move is no witness"),
    ],
)
def test_nothing_is_left_out_where_no_small_minority_moves_back(
    rows: list[tuple[float, float]], why: str
) -> None:
    assert not combine("clipped", ZERO, updates(*(model(*row) for row in rows))).left_out, why


def test_the_reference_grows_by_no_more_than_three_from_round_to_round() -> None:
    """A cluster of one: nothing to compare it with but itself, before."""
    found = combine("clipped", ZERO, updates(model(0, 100)), before=2.0)
    assert (found.reference, found.long) == (6.0, {"d00": pytest.approx(100 / 6)})
    np.testing.assert_allclose(found.model["w"], [0, 18], rtol=1e-6)
    shrinking = combine("clipped", ZERO, updates(model(0, 0.5)), before=2.0)
    assert (shrinking.reference, shrinking.long) == (0.5, {})


def test_devices_that_did_not_move_say_nothing_of_how_far_training_goes() -> None:
    found = combine("clipped", ZERO, updates(ZERO, ZERO, ZERO, model(0, 4)))
    assert (found.reference, found.long) == (4.0, {})
    still = combine("clipped", ZERO, updates(ZERO, ZERO), before=2.0)
    assert still.reference == 0.0
    assert digest(still.model) == digest(ZERO)


def test_the_mean_is_weighted_by_what_counts_and_says_whose_claims_do_not() -> None:
    found = combine("clipped", ZERO, updates(model(2, 0), model(0, 2), weights=(90, 10)))
    np.testing.assert_allclose(found.model["w"], [1.8, 0.2], rtol=1e-6)
    many = combine("clipped", ZERO, updates(*[model(2, 0)] * 3, weights=(90, 5, 5)))
    assert (found.capped, many.capped) == ((), ("d00",))


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
        assert found.long["d02"] > 1e100


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
        return digest(found.model), found.reference, dict(found.long), found.capped

    given = list(cohort(rows).items())
    straight = combine(rule, {"w": np.zeros(3, np.float32)}, dict(given))
    chance.shuffle(given)  # type: ignore[attr-defined]
    assert bits(combine(rule, {"w": np.zeros(3, np.float32)}, dict(given))) == bits(straight)


@settings(deadline=None)
@given(COHORTS, HARDENED, arrays(np.float32, 3, elements=VALUES))
def test_every_coordinate_lies_within_what_came_in(
    rows: list[np.ndarray], rule: str, base: np.ndarray
) -> None:
    """What came in: the updates, and the base that one or two are pulled towards."""
    found = combine(rule, {"w": base}, cohort(rows))
    inputs = np.stack([*rows, base] if len(rows) < 3 else rows)
    slack = 1e-6 * np.abs(inputs).max()
    assert (found.model["w"] >= inputs.min(axis=0) - slack).all()
    assert (found.model["w"] <= inputs.max(axis=0) + slack).all()
    if rule in ("trimmed", "median") and len(rows) > 2:
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


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 1000])
def test_blocks_of_any_size_give_the_same_middle(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = np.random.default_rng(size)
    rows = [{"w": chance.normal(size=size), "n": chance.integers(0, 9, (2, 2))} for _ in range(6)]
    rows[2] = {"w": rows[2]["w"] * 100.0, "n": rows[2]["n"]}
    base = {"w": np.zeros(size), "n": np.zeros((2, 2), np.int64)}
    whole = {rule: combine(rule, base, updates(*rows)).model for rule in RULES}
    for module in (coordinates, update_geometry):
        monkeypatch.setattr(
            module, "pieces_of", lambda like, parts, together=0: pieces_of(like, parts, 8 * 6 * 8)
        )
        monkeypatch.setattr(influence, "width_of", lambda rows: 3)
    for rule in RULES:
        found = combine(rule, base, updates(*rows)).model
        if rule == "clipped":  # of which lengths are a part, and so the last bits of sums
            np.testing.assert_allclose(found["w"], whole[rule]["w"], rtol=1e-12)
        else:
            assert digest(found) == digest(whole[rule])
