"""Permute-and-flip: its probabilities, its guarantee against all neighbors, and its place in the account."""

import itertools
import math
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from shoal.core.privacy.cost import ORDERS
from shoal.core.privacy.noise.vote import BOUND, STEPS, cost, drawn, scores

STEP = STEPS / BOUND


def probabilities(found: list[float], epsilon: float) -> list[float]:
    """Of permute-and-flip, over all orders of the candidates. found: scores in nats."""
    chances = [math.exp(-epsilon * (max(found) - each) / BOUND) for each in found]
    result = [0.0] * len(found)
    orders = list(itertools.permutations(range(len(found))))
    for order in orders:
        left = 1.0
        for index in order:
            result[index] += left * chances[index] / len(orders)
            left *= 1.0 - chances[index]
    return result


def test_each_cluster_is_named_as_often_as_the_definition_says() -> None:
    wanted = [-3.0, -7.0, 0.0, -20.0]
    whole = np.array([round(each * STEP) for each in wanted])
    entropy = np.random.default_rng(5).bytes
    found = Counter(drawn(whole, 0.8, entropy) for _ in range(6000))
    for index, chance in enumerate(probabilities(wanted, 0.8)):
        error = 4.0 * math.sqrt(chance * (1 - chance) / 6000) + 1e-9
        assert found[index] / 6000 == pytest.approx(chance, abs=error)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_no_sample_changes_a_probability_by_more_than_the_guarantee(epsilon: float) -> None:
    """All samples that matter are at corners: each cluster is as likely as the best, or BOUND behind."""
    chance = np.random.default_rng(2)
    worst = twice = 0.0
    for _ in range(60):
        before = chance.normal(scale=6.0, size=4)
        moved = {}
        for corner in itertools.product((0.0, -BOUND), repeat=4):
            if max(corner) == 0.0:
                moved[corner] = np.log(probabilities(list(before + corner), epsilon))
        plain = np.log(probabilities(list(before), epsilon))
        worst = max(worst, max(np.abs(each - plain).max() for each in moved.values()))
        some = list(moved.values())
        twice = max(twice, max(np.abs(one - other).max() for one in some for other in some))
    assert 0.8 * epsilon < worst <= epsilon + 1e-9
    assert epsilon < twice <= 2.0 * epsilon + 1e-9, "where a sample is replaced, it is twice that"


def test_scores_are_sums_in_which_no_sample_counts_for_more_than_the_bound() -> None:
    one = np.array([[0.0, -1.0, -700.0]])
    assert scores(one).tolist() == [0, -round(STEP), -STEPS]
    assert scores(np.concatenate([one, one, one + 3.0])).tolist() == (3 * scores(one)).tolist()
    for value in (np.nan, np.inf, -np.inf):
        assert scores(np.array([[0.0, value, -1.0]])).tolist() == [0, 0, 0], "it says nothing"


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 30.0])
def test_the_cost_is_the_most_that_epsilon_allows_at_each_order(epsilon: float) -> None:
    flip = 1.0 / (1.0 + math.exp(epsilon))
    for order, divergence in zip(ORDERS, cost(epsilon).curve, strict=True):
        if order * epsilon < 600.0:  # beyond, the direct formula overflows
            total = (1 - flip) ** order * flip ** (1 - order) + flip**order * (1 - flip) ** (1 - order)
            assert divergence == pytest.approx(math.log(total) / (order - 1.0), rel=1e-6, abs=1e-12)
    assert max(cost(epsilon).curve) <= epsilon
    assert epsilon <= cost(epsilon).epsilon(1e-6) + 1e-9 or epsilon < 0.1
    assert cost(1.0).epsilon(1e-6) == pytest.approx(1.0, abs=0.02)
    assert cost(1.0).epsilon_if_replaced(1.0, 1e-6) == pytest.approx(2.0, abs=0.1)


@pytest.mark.parametrize("epsilon", [5e-324, 1e-300, 1e-17, 1e-12, 1e-9, 1e-7, 1e-5])
def test_the_cost_of_a_very_small_epsilon_is_not_rounded_to_nothing(epsilon: float) -> None:
    """To the second order, the divergence of randomized response of order a is a epsilon^2 / 8."""
    curve = cost(epsilon).curve
    assert cost(epsilon)
    assert all(low <= high for low, high in pairwise(curve))
    for order, divergence in zip(ORDERS, curve, strict=True):
        assert order * epsilon**2 / 8.0 * (1.0 - 1e-3) <= divergence
        assert 0.0 < divergence <= epsilon


def test_a_very_large_lead_decides_and_ends() -> None:
    assert drawn(np.array([0, -(10**6) * STEPS]), 1.0, np.random.default_rng(1).bytes) == 0
    assert drawn(np.array([0, 0]), 1e-9, np.random.default_rng(1).bytes) in (0, 1)
