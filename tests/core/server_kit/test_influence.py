"""The contract: how far fewer than a quarter of a group's devices move its model, whatever they send.

Fleets are drawn like real ones: devices agree in part, differ in length, and a few may point elsewhere.
Liars know the rule, all of what the honest send, and agree with each other.
"""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit.aggregation.coordinates import settle
from shoal.core.server_kit.aggregation.influence import (
    bearing,
    bearings,
    believed,
    capped,
    opposed,
    pulls,
    settled,
)
from shoal.core.server_kit.aggregation.robust import Update, combine
from shoal.core.server_kit.aggregation.trimmed_mean import half, trimmed_mean

CLAIM = 2.0**40


def shares_of(claims: FloatArray) -> FloatArray:
    found = np.array(list(believed({f"{i:04}": float(claim) for i, claim in enumerate(claims)}).values()))
    return found / found.sum()


def distances(rows: FloatArray) -> FloatArray:
    """(n,): the squared distances of n models from their middle."""
    return bearings(list(rows), np.zeros(rows.shape[1]))[3]


def pulled(rows: FloatArray, apart: FloatArray, shares: FloatArray) -> FloatArray:
    return settled(list(rows), pulls(apart, shares)[0], np.dtype(np.float64))[0]


def combined(rows: FloatArray, shares: FloatArray) -> FloatArray:
    """One tensor of n models."""
    return pulled(rows, distances(rows), shares)


def model_of(rows: FloatArray, claims: FloatArray) -> FloatArray:
    return combined(rows, shares_of(claims))


def fleet(chance: np.random.Generator, devices: int, width: int) -> FloatArray:
    """(devices, width): updates of a common direction and directions of their own, of lengths around 1."""
    agreement = chance.choice([0.1, 0.3, 0.6, 0.9])
    common = chance.normal(size=(2, width)) / math.sqrt(width)
    second = np.arange(devices) < chance.choice([0, devices // 4])  # an honest minority, or none
    own = chance.normal(size=(devices, width)) / math.sqrt(width)
    lengths = np.exp(chance.choice([0.0, 0.3]) * chance.normal(size=devices))
    found: FloatArray = lengths[:, None] * (
        agreement * common[second.astype(int)] + math.sqrt(1.0 - agreement**2) * own
    )
    return found


def lies(chance: np.random.Generator, honest: FloatArray) -> list[FloatArray]:
    """What liars may send who know the rule: far out in the direction that hurts, or where medians shift."""
    mean, scatter = honest.mean(axis=0), honest.std(axis=0) + 1e-12
    away = np.where(mean > 0.0, -1.0, 1.0)
    return [
        -1e3 * mean,
        1e3 * chance.normal(size=mean.size),
        1e3 * away,
        1e6 * scatter * away,
        mean + 1.5 * scatter * away,
        -mean,
        np.eye(1, mean.size)[0] * 1e9,
    ]


class Fleet:
    """Honest devices with what they claim, and what liars beside them do to the model of all."""

    def __init__(self, honest: FloatArray, sizes: FloatArray, liars: int) -> None:
        self.honest, self._sizes, self._liars = honest, sizes, liars
        self._alone = model_of(honest, sizes)
        share = liars / (len(honest) + liars)
        self._unit = share * float(np.median(np.linalg.norm(honest, axis=1)))

    def moved(self, lie: FloatArray, claims: Sequence[float] = (CLAIM,)) -> list[float]:
        """For each claim of the liars, how far the model is from where it would be without them, in units of
        k / n of the middle honest length."""
        rows = np.vstack([self.honest, np.tile(lie, (self._liars, 1))])
        apart, found = distances(rows), []
        for claim in claims:
            with_them = pulled(rows, apart, shares_of(np.append(self._sizes, [claim] * self._liars)))
            found.append(float(np.linalg.norm(with_them - self._alone)) / self._unit)
        return found

    def tuned(self, chance: np.random.Generator, lie: FloatArray, best: float) -> float:
        """What liars reach who climb from a lie: random changes, kept where they move the model more."""
        for _ in range(20):
            other = lie * (1.0 + 0.5 * chance.normal(size=lie.size))
            (reached,) = self.moved(other)
            if reached > best:
                best, lie = reached, other
        return best


def drawn(chance: np.random.Generator) -> tuple[FloatArray, int]:
    devices = int(np.exp(chance.uniform(math.log(5), math.log(300))))
    liars = int(chance.integers(1, (devices - 1) // 4 + 1))
    return fleet(chance, devices - liars, int(chance.choice([50, 200]))), liars


@pytest.mark.parametrize(
    ("sizes", "usually", "most"),
    [
        pytest.param((100, 100), 1.5, 2.0, id="as many samples"),
        pytest.param((50, 2000), 2.75, 4.0, id="50 to 2000 samples"),
    ],
)
def test_liars_move_a_model_in_proportion_to_their_share(
    sizes: tuple[int, int], usually: float, most: float
) -> None:
    """A liar may pass for one of the largest devices, so the bound is wider where these have most samples."""
    chance, found = np.random.default_rng(43), []
    for _ in range(24):
        honest, liars = drawn(chance)
        own = np.exp(chance.uniform(*np.log(sizes), len(honest)))
        devices, tried = Fleet(honest, own, liars), list[tuple[float, FloatArray]]()
        for lie in lies(chance, honest):
            found += devices.moved(lie, (1.0, 100.0, CLAIM))
            tried.append((found[-1], lie))
        best, lie = max(tried, key=lambda each: each[0])
        found.append(devices.tuned(chance, lie, best))
    assert np.quantile(found, 0.95) <= usually
    assert max(found) <= most


def test_liars_gain_little_by_whom_directions_leave_out() -> None:
    """They can have honest devices left out that point aside, or keep in those that point back."""

    def whole(rows: FloatArray) -> FloatArray:
        updates = {f"{index:03}": Update({"w": row}, 1.0) for index, row in enumerate(rows)}
        return np.asarray(combine("clipped", {"w": np.zeros(rows.shape[1])}, updates).model["w"])

    chance, found = np.random.default_rng(43), []
    for _ in range(24):
        honest, liars = drawn(chance)
        aside = honest[: max(1, len(honest) // 4)].mean(axis=0)
        usual = float(np.median(np.linalg.norm(honest, axis=1))) * liars / (len(honest) + liars)
        alone = whole(honest)
        for lie in [*lies(chance, honest), -3.0 * aside, -1e3 * aside, -5.0 * honest[0]]:
            apart = whole(np.vstack([honest, np.tile(lie, (liars, 1))])) - alone
            found.append(float(np.linalg.norm(apart)) / usual)
    assert np.quantile(found, 0.95) <= 2.5
    assert max(found) <= 4.0


@settings(deadline=None)
@given(
    st.integers(5, 40).flatmap(
        lambda n: st.tuples(
            arrays(np.float64, (n, 4), elements=st.floats(-1e3, 1e3)),
            arrays(np.float64, n, elements=st.floats(1.0, CLAIM)),
            st.integers(1, (n - 1) // 4),
        )
    )
)
def test_whatever_the_honest_send_neither_middle_nor_reach_leaves_their_range(
    case: tuple[FloatArray, FloatArray, int],
) -> None:
    """And the pulls of k liars are at most their share of the weight times the reach, which is an honest
    distance. The first k rows are theirs."""
    rows, claims, liars = case
    honest, shares = rows[liars:], shares_of(claims)
    center = trimmed_mean(list(rows), half(len(rows)))
    assert (center >= honest.min(axis=0)).all()
    assert (center <= honest.max(axis=0)).all()
    distances = np.linalg.norm(rows - center, axis=1)
    reach = float(np.median(distances))
    assert reach <= distances[liars:].max() * (1 + 1e-12)
    pulls = (rows - center) * np.minimum(1.0, reach / np.maximum(distances, 1e-300))[:, None]
    others = center + shares[liars:] @ pulls[liars:]
    found = combined(rows, shares)
    allowed = float(shares[:liars].sum()) * reach
    assert np.linalg.norm(found - others) <= allowed * (1 + 1e-9) + 1e-9


def test_an_update_pulls_no_farther_than_the_middle_one_and_says_how_they_scatter() -> None:
    rows = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0], [900.0, 0.0]])
    found, scatter = settle(
        [{"w": row} for row in rows],
        [0.2] * 5,
        {"w": bearings(list(rows), rows[0])[3]},
        {"w": np.zeros(2, np.float32)},
    )
    np.testing.assert_allclose(found["w"], [0.2, 0.0], rtol=1e-6)
    assert found["w"].dtype == np.float32
    assert scatter == pytest.approx(1.0 - 0.2**2)


def test_where_most_agree_to_the_bit_nobody_else_moves_the_model() -> None:
    rows = np.array([[1.0], [1.0], [1.0], [7.0]])
    assert combined(rows, np.full(4, 0.25)).tolist() == [1.0]


# -- numbers of samples -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ((9, 1), (9, 1)),
        ((90, 5, 5), (5, 5, 5)),
        ((30, 20, 10), (20, 20, 10)),
        ((1 << 40, 1 << 40, 100, 100, 100, 100, 100, 100, 100), (100,) * 9),
        ((300, 300, 300, *[20] * 9), (60, 60, 60, *[20] * 9)),
        ((50, 200, 1000, 2000), (50, 200, 500, 500)),
    ],
)
def test_a_claim_counts_up_to_what_enough_others_have(
    claims: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    found = believed({str(i): float(claim) for i, claim in enumerate(claims)})
    np.testing.assert_allclose(list(found.values()), expected)


@pytest.mark.parametrize("devices", [5, 9, 13, 60, 300])
def test_liars_who_claim_everything_weigh_no_more_than_as_many_honest_devices(devices: int) -> None:
    liars = (devices - 1) // 4
    found = shares_of(np.array([CLAIM] * liars + [70.0] * (devices - liars)))
    assert found[:liars].sum() == pytest.approx(liars / devices)


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


@settings(deadline=None)
@given(st.lists(st.floats(1e-3, 1e12), min_size=1, max_size=30), st.floats(0.0, 1.0))
def test_capped_weights_keep_their_order_and_their_share(weights: list[float], wanted: float) -> None:
    share = max(wanted, 1.0 / len(weights))
    found = list(capped({str(i): weight for i, weight in enumerate(weights)}, share).values())
    assert max(found) <= share * sum(found) * (1 + 1e-9)
    assert all(0.0 < after <= before for after, before in zip(found, weights, strict=True))
    assert sorted(found) == [after for _, after in sorted(zip(weights, found, strict=True))]


# -- directions ---------------------------------------------------------------------------------------------


def test_who_moves_back_is_left_out_and_who_moves_aside_is_not() -> None:
    agreed = {"a": 0.7, "b": 0.6, "c": 0.65, "d": 0.6, "e": 0.7, "f": 0.8, "g": 0.7}
    assert opposed({**agreed, "x": -0.6, "y": -0.7}) == {"x": -0.6, "y": -0.7}
    assert opposed({**agreed, "x": -0.3, "y": 0.0}) == {}, "other labels, for example"
    three = {"x": -0.6, "y": -0.7, "z": -0.7}
    assert opposed({**agreed, **three}) == three
    assert opposed({**agreed, **three, "w": -0.7}) == {}, "four of eleven are no small minority"
    assert opposed({"a": 0.1, "b": 0.05, "c": 0.15, "d": -0.9}) == {}, "the others agree as by chance"
    many = {f"d{number}": 0.06 for number in range(24)}
    assert opposed({**many, "x": -0.04}) == {"x": -0.04}, "of more devices, less is no chance"
    assert opposed({"a": 0.9, "x": -0.9}) == {}, "two cannot tell which of them is wrong"


@pytest.mark.parametrize("devices", [5, 10, 30, 60])
def test_liars_are_found_where_honest_updates_have_little_in_common_and_nobody_where_nothing(
    devices: int,
) -> None:
    """As on devices with few samples: an update's own part in the middle hides what it has with others."""
    chance, width, liars = np.random.default_rng(41), 4000, (devices - 1) // 4
    own = chance.normal(size=(devices, width)) / math.sqrt(width)
    common = chance.normal(size=width) / math.sqrt(width)
    agreed = own + 0.5 * common
    agreed[:liars] *= -1.0

    def found(rows: FloatArray) -> list[int]:
        cosines = bearing(*bearings(list(rows), np.zeros(width))[:3])
        return [int(name) for name in opposed({f"{i}": float(each) for i, each in enumerate(cosines)})]

    assert found(agreed) == list(range(liars))
    assert found(agreed * np.where(np.arange(devices) < liars, 1e3, 1.0)[:, None]) == list(range(liars))
    assert found(own) == []


def test_bearings_are_lengths_and_products_with_the_middle_that_add_up_over_blocks() -> None:
    chance = np.random.default_rng(3)
    models, origin = chance.normal(size=(5, 8)), chance.normal(size=8)
    steps = models - origin
    center = np.median(steps, axis=0)
    expected = [
        np.square(steps).sum(axis=1),
        steps @ center,
        np.full(5, center @ center),
        np.square(steps - center).sum(axis=1),
    ]
    np.testing.assert_allclose(bearings(list(models), origin), expected)
    parts = bearings(list(models[:, :3]), origin[:3]) + bearings(list(models[:, 3:]), origin[3:])
    np.testing.assert_allclose(parts, expected)


@pytest.mark.parametrize("huge", [1e308, -1e308, 3e200])
def test_hostile_values_leave_every_sum_finite(huge: float) -> None:
    models = np.array([[1.0, 2.0], [1.5, 2.5], [huge, huge], [huge, 2.0]])
    found = bearings(list(models), np.array([-huge, 0.0]))
    assert np.isfinite(found).all()
    assert np.isfinite(combined(models, np.full(4, 0.25))).all()
