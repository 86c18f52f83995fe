"""The chance in DP-SGD: which samples a step takes, and its noise."""

import numpy as np
import pytest
from scipy import stats

from shoal.core.privacy.dpsgd import FINE, gaussian, noisy, taken


def entropy(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_each_sample_is_taken_with_its_probability_and_independently() -> None:
    source = entropy(0).bytes
    steps = np.zeros((4000, 8))
    for row in steps:
        row[taken(8, 0.3, source)] = 1.0
    assert steps.mean(axis=0) == pytest.approx(0.3, abs=0.035)
    correlations = np.corrcoef(steps.T)[~np.eye(8, dtype=bool)]
    assert np.abs(correlations).max() < 0.07
    assert set(steps.sum(axis=1)) >= {0.0, 1.0, 2.0, 3.0, 4.0, 5.0}  # a step may take none


def test_a_rate_of_one_takes_all_and_a_tiny_one_none() -> None:
    assert taken(5, 1.0, lambda count: b"\xff" * count).tolist() == [0, 1, 2, 3, 4]
    assert taken(5, 2.0**-64, lambda count: b"\x01" + bytes(count - 1)).tolist() == [1, 2, 3, 4]
    assert taken(5, 0.5, lambda count: b"\xff" * count).tolist() == []


def test_noise_is_gaussian() -> None:
    draws = gaussian(100_001, entropy(1).bytes)
    assert draws.shape == (100_001,)
    assert stats.kstest(draws, "norm").pvalue > 1e-3
    pairs = draws[:100_000].reshape(2, -1)
    assert abs(np.corrcoef(pairs)[0, 1]) < 0.02
    assert abs(np.corrcoef(np.abs(pairs))[0, 1]) < 0.02


@pytest.mark.parametrize("word", [0x00, 0xFF])
def test_the_rarest_entropy_gives_finite_noise(word: int) -> None:
    assert np.abs(gaussian(4, lambda count: bytes([word]) * count)).max() < 8.7


def test_noisy_sums_lie_on_a_grid_that_knows_nothing_of_their_last_bits() -> None:
    sums = entropy(2).normal(size=(50, 3)) * 100.0
    found = noisy(sums, 3.0, entropy(3).bytes)
    steps = found / 2.0 ** (1 - FINE)
    assert (steps == np.rint(steps)).all()
    assert found - sums == pytest.approx(3.0 * gaussian(150, entropy(3).bytes).reshape(50, 3), abs=2.0**-FINE)
    nearly = np.nextafter(sums, np.inf)
    assert (noisy(nearly, 3.0, entropy(3).bytes) == found).all()
