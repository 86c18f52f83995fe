"""The private quantile: near the true one where the budget allows, and never by more than it says."""

import numpy as np
import pytest

from fedcore.privacy.accounting import rho_of
from fedcore.privacy.quantile import STEPS, private_quantile

VALUES = np.random.default_rng(0).uniform(0, 4, 1000)


def seeded(seed: int, rho: float, share: float = 0.95) -> float:
    return private_quantile(VALUES, share, 8.0, rho, np.random.default_rng(seed).bytes)


def test_with_a_budget_beyond_reason_it_is_the_quantile_to_one_step() -> None:
    for share in (0.05, 0.5, 0.95):
        assert seeded(0, 1e6, share) == pytest.approx(np.quantile(VALUES, share), abs=8 / 2**STEPS + 1e-2)


def test_with_a_small_budget_it_is_near_in_rank() -> None:
    """rho 0.02 is a noise of 16 of 1000 samples in each of ten steps."""
    ranks = [(seeded(seed, 0.02) >= VALUES).mean() for seed in range(200)]
    assert np.median(ranks) == pytest.approx(0.95, abs=0.02)
    assert np.quantile(ranks, 0.05) > 0.88


def test_the_noise_of_all_steps_is_what_was_paid_for() -> None:
    """No values: the first step errs upwards with the probability of noise of the agreed size."""
    rho = STEPS * rho_of(20.0)
    empty = np.full(100, np.nan)  # none counts as below anything, and 50 are due
    wrong = np.mean(
        [private_quantile(empty, 0.5, 1.0, rho, np.random.default_rng(n).bytes) <= 0.5 for n in range(2000)]
    )
    # P(noise >= 50) = P(Z >= 2.475) = 0.0067; standard error 0.0018
    assert wrong == pytest.approx(0.0067, abs=0.009)
    assert wrong > 0.0


@pytest.mark.parametrize("rho", [1e-9, 1e9])
def test_it_stays_within_the_public_bounds(rho: float) -> None:
    for values in (np.zeros(50), np.full(50, np.inf), np.zeros(0)):
        found = private_quantile(values, 0.9, 3.0, rho)
        assert 3.0 / 2**STEPS <= found <= 3.0


def test_a_share_is_between_none_and_all() -> None:
    with pytest.raises(ValueError, match="no share"):
        private_quantile(VALUES, 1.0, 1.0, 0.1)
