"""Many exact draws at once: the distribution is right, and rounding decides nothing."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chisquare

from shoal.core.privacy.noise import bulk


@pytest.mark.parametrize("variance", [Fraction(1, 9), Fraction(1), Fraction(7, 2), Fraction(50)])
def test_the_frequencies_are_those_of_the_discrete_gaussian(variance: Fraction) -> None:
    found = bulk.draw_many(variance, 60_000, np.random.default_rng(4).bytes)
    assert found.shape == (60_000,)
    reach = math.ceil(3.5 * math.sqrt(variance)) + 1
    weights = np.exp(-(np.arange(-40, 41) ** 2) / (2 * float(variance)))
    weights /= weights.sum()
    inner = slice(40 - reach, 41 + reach)
    seen = np.array([(found == value).sum() for value in range(-reach, reach + 1)])
    expected = weights[inner] * len(found)
    common = expected >= 5
    seen, expected = seen[common], expected[common]
    assert chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-4


def test_deciding_everything_in_rational_arithmetic_gives_the_same_draws(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for variance in (Fraction(3, 7), Fraction(12345), Fraction(1 << 50)):
        usual = bulk.draw_many(variance, 150, np.random.default_rng(8).bytes)
        with monkeypatch.context() as patch:
            patch.setattr(bulk, "UNSURE", 2.0)
            exact = bulk.draw_many(variance, 150, np.random.default_rng(8).bytes)
        np.testing.assert_array_equal(usual, exact)


def test_a_number_that_begins_as_the_threshold_does_is_decided_by_further_bits() -> None:
    x = Fraction(3, 2)
    low, high = bulk._bounds(x, 64)
    first = int(low * 2**64)
    assert first == int(high * 2**64)
    assert high - low < Fraction(1, 2**64)
    decided = {bulk._is_below(first, x, np.random.default_rng(seed).bytes) for seed in range(20)}
    assert decided == {True, False}
    assert bulk._is_below(first - 1, x, np.random.default_rng(0).bytes)
    assert not bulk._is_below(first + 1, x, np.random.default_rng(0).bytes)


def test_the_variance_of_long_vectors_is_right_and_what_is_none_is_refused() -> None:
    found = bulk.draw_many(Fraction(1 << 40), 50_000, np.random.default_rng(1).bytes)
    assert found.std() == pytest.approx(2.0**20, rel=0.02)
    assert abs(found.mean()) < 5 * 2.0**20 / math.sqrt(50_000)
    for variance in (Fraction(0), Fraction(-1), Fraction(1 << 61)):
        with pytest.raises(ValueError, match="no variance"):
            bulk.draw_many(variance, 1, np.random.default_rng(1).bytes)
