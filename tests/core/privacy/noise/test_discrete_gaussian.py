"""Distribution of many draws. A right sampler fails one of these in fewer than one run in a million."""

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy.stats import chi2, kstest, norm

from shoal.core.privacy.noise.chance import Chance
from shoal.core.privacy.noise.discrete_gaussian import draw

FALSE_ALARM = 1e-7


@pytest.mark.parametrize("variance", [Fraction(1, 10), Fraction(1), Fraction(27, 10), Fraction(100)])
def test_small_scales_value_by_value(variance: Fraction) -> None:
    """Chi-square against the exact probabilities; values that are expected fewer than 20 times are pooled."""
    draws = np.array(draw(variance, 20_000, Chance()))
    values = np.arange(-100, 101)
    weight = np.exp(-(values**2) / (2 * float(variance)))
    expected = len(draws) * weight / weight.sum()
    seen = np.array([(draws == value).sum() for value in values])
    common = expected >= 20
    rest = max(expected[~common].sum(), 1e-9)
    statistic = ((seen - expected)[common] ** 2 / expected[common]).sum()
    statistic += (len(draws) - seen[common].sum() - rest) ** 2 / max(rest, 20)
    assert statistic < chi2.isf(FALSE_ALARM, common.sum())


@pytest.mark.parametrize("sigma", [0.57, 4.53])
def test_the_scale_of_a_release(sigma: float) -> None:
    """On a grid of 2^-20 the distribution is the normal one's to a part in a million."""
    draws = np.array(draw(Fraction(sigma) ** 2 * (1 << 40), 20_000, Chance())) / (sigma * (1 << 20))
    assert kstest(draws, norm.cdf).pvalue > FALSE_ALARM
    spread = math.sqrt(2 / len(draws)) * norm.isf(FALSE_ALARM / 2)
    assert draws.var() == pytest.approx(1.0, abs=spread)


def test_draws_do_not_follow_from_each_other() -> None:
    draws = np.array(draw(Fraction(1 << 40), 20_000, Chance()), float)
    for lag in (1, 2, 21):
        correlation = np.corrcoef(draws[:-lag], draws[lag:])[0, 1]
        assert abs(correlation) < norm.isf(FALSE_ALARM / 2) / math.sqrt(len(draws) - lag)


def test_the_same_entropy_gives_the_same_noise_so_that_a_simulation_can_be_repeated() -> None:
    first, second = (draw(Fraction(7), 50, Chance(np.random.default_rng(3).bytes)) for _ in range(2))
    assert first == second
    assert draw(Fraction(7), 50, Chance(np.random.default_rng(4).bytes)) != first


@pytest.mark.parametrize("variance", [Fraction(0), Fraction(-1)])
def test_there_is_no_noise_without_variance(variance: Fraction) -> None:
    with pytest.raises(ValueError, match="no variance"):
        draw(variance, 1, Chance())
