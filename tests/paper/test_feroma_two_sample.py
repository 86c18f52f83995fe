"""The two-sample test on descriptors, on data drawn from known distributions."""

import numpy as np
import pytest

from shoal.core.algorithms.feroma.two_sample import between, statistics, unlikeness
from shoal.core.exchange.parts import Descriptor, FloatArray, Moments, PrivacySettings
from shoal.core.server_kit.descriptors import aligned
from tests.core.server_kit.described import BALANCED, STRICT, device, private


def pairs(matrix: FloatArray) -> FloatArray:
    return matrix[np.triu_indices(len(matrix), 1)]


@pytest.mark.parametrize("samples", [20, 200, 5000])
def test_under_one_distribution_it_is_about_one_whatever_the_number_of_samples(samples: int) -> None:
    described = [device(seed, samples=samples) for seed in range(12)]
    assert 0.8 < pairs(statistics(aligned(described))[0]).mean() < 1.25
    assert pairs(unlikeness(described)).max() <= 1.0


def test_under_two_it_grows_with_the_number_of_samples() -> None:
    few, many = (statistics(aligned([device(0, 0.0, n), device(1, 0.5, n)]))[0][0, 1] for n in (100, 1000))
    assert many > 4 * few > 4


def test_it_is_symmetric_and_zero_on_the_diagonal() -> None:
    found = unlikeness([device(0), device(1, 0.3), device(2, samples=50)])
    np.testing.assert_array_equal(found, found.T)
    assert np.diag(found).tolist() == [0.0, 0.0, 0.0]


def test_identical_descriptors_without_any_spread_are_alike() -> None:
    one = Descriptor(Moments(np.ones((3, 2)), np.zeros((3, 2)), np.array([4.0, 2.0, 2.0])), "0" * 64)
    assert unlikeness([one, one]).tolist() == [[0.0, 0.0], [0.0, 0.0]]


# -- with noise of a known size -------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [BALANCED, STRICT])
@pytest.mark.parametrize("samples", [300, 600, 6000])
def test_noise_makes_no_groups_where_there_are_none(settings: PrivacySettings, samples: int) -> None:
    described = [private(seed, samples=samples, settings=settings) for seed in range(12)]
    assert 0.6 < pairs(statistics(aligned(described))[0]).mean() < 1.4


def test_between_is_the_block_of_the_square_that_compares_two_lists() -> None:
    described = [device(seed) for seed in range(5)]
    np.testing.assert_array_equal(between(described[:2], described[2:]), unlikeness(described)[:2, 2:])
    assert between(described[:1], described[:1])[0, 0] == 0.0, "identical data say the same"
