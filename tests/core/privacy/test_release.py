from typing import Any

import numpy as np
import pytest

from shoal.core.errors import BadPayload
from shoal.core.exchange.parts import Descriptor, Integers, Moments, NoisySums, PrivacySettings
from shoal.core.privacy.release import ExactMoments, release, release_sums
from shoal.core.privacy.sums import GRID, ExactSums, counts, sums_of
from shoal.core.privacy.terms import terms

PROJECTOR = "ab" * 32
OFF, PAPER = PrivacySettings(), PrivacySettings("paper", 2.0)


def moments(samples: float = 100.0, classes: int = 2, dims: int = 3) -> ExactMoments:
    means = np.arange(float((1 + classes) * dims)).reshape(1 + classes, dims)
    counts = np.array([samples, samples - 1, 1.0][: 1 + classes])
    return ExactMoments(means, means / 10, counts, low=-1.0, high=3.0)


def test_off_gives_the_moments_in_arrays_of_its_own() -> None:
    exact = moments()
    descriptor = release(exact, OFF, PROJECTOR, np.random.default_rng(1))
    released = descriptor.statistics
    assert isinstance(released, Moments)
    assert np.array_equal(released.means, exact.means)
    assert np.array_equal(released.deviations, exact.deviations)
    assert np.array_equal(released.counts, exact.counts)
    assert (descriptor.projector, descriptor.privacy) == (PROJECTOR, OFF)
    for mine, theirs in zip(
        (released.means, released.deviations, released.counts),
        (exact.means, exact.deviations, exact.counts),
        strict=True,
    ):
        assert not np.shares_memory(mine, theirs)


def test_paper_adds_laplace_noise_of_range_over_n_epsilon() -> None:
    """FLUX C.1.1, S4: b = Range / (n epsilon) = 4 / (100 x 2)."""
    exact, same = moments(), np.random.default_rng(7)
    descriptor = release(exact, PAPER, PROJECTOR, np.random.default_rng(7))
    released = descriptor.statistics
    assert isinstance(released, Moments)
    assert np.allclose(released.means - exact.means, same.laplace(0, 0.02, (3, 3)), atol=1e-15)
    assert np.allclose(released.deviations - exact.deviations, same.laplace(0, 0.02, (3, 3)), atol=1e-15)
    assert np.array_equal(released.counts, exact.counts)
    assert descriptor.privacy == PAPER


def test_the_noise_has_the_spread_that_its_scale_says() -> None:
    many = ExactMoments(np.zeros((1, 1000)), np.zeros((1, 1000)), np.array([50.0]), 0.0, 10.0)
    released = release(many, PAPER, PROJECTOR, np.random.default_rng(3)).statistics
    assert isinstance(released, Moments)
    for block in (released.means, released.deviations):
        assert np.abs(block).mean() == pytest.approx(10 / (50 * 2), rel=0.15)  # E|Laplace(b)| = b


def test_noise_is_what_the_given_generator_makes_of_it() -> None:
    noise = np.random.default_rng(5)
    first, second = (release(moments(), PAPER, PROJECTOR, noise).statistics for _ in range(2))
    assert isinstance(first, Moments)
    assert isinstance(second, Moments)
    assert not np.isclose(first.means, second.means, rtol=0, atol=1e-9).any()


def test_off_does_not_touch_the_generator() -> None:
    noise = np.random.default_rng(5)
    release(moments(), OFF, PROJECTOR, noise)
    assert noise.random() == np.random.default_rng(5).random()


def test_samples_that_are_all_alike_get_no_noise() -> None:
    alike = ExactMoments(np.ones((1, 2)), np.zeros((1, 2)), np.array([4.0]), 1.0, 1.0)
    released = release(alike, PAPER, PROJECTOR, np.random.default_rng(1)).statistics
    assert isinstance(released, Moments)
    assert np.array_equal(released.means, alike.means)


# -- the calibrated modes -------------------------------------------------------------------------------

BALANCED = PrivacySettings("balanced", 5.0, 1e-6)


def sums(released: Descriptor) -> NoisySums:
    assert isinstance(released.statistics, NoisySums)
    return released.statistics


def exact_sums(samples: int = 400, classes: int = 3) -> ExactSums:
    chance = np.random.default_rng(0)
    return sums_of([(chance.normal(size=(samples, 4)), chance.integers(0, 3, samples))], 2.0, 4, classes)


def test_a_release_is_the_sums_with_noise_of_the_agreed_size() -> None:
    agreed = terms(BALANCED, 400, 3)
    noise = [
        (sums(release_sums(exact_sums(), BALANCED, agreed, PROJECTOR)).values - exact_sums().values) / GRID
        for _ in range(60)
    ]
    assert np.std(noise) == pytest.approx(agreed.sigma, rel=0.1)  # 2160 numbers: 7 standard errors
    released = release_sums(exact_sums(), BALANCED, agreed, PROJECTOR)
    assert (released.privacy, released.projector, released.classes) == (BALANCED, PROJECTOR, 3)
    assert (sums(released).sigma, sums(released).radius) == (agreed.sigma, 2.0)
    assert counts(sums(released))[0] == pytest.approx(400, abs=30)


def test_two_releases_have_noise_of_their_own_unless_a_simulation_gives_them_the_same_entropy() -> None:
    agreed = terms(BALANCED, 400, 3)

    def values(**source: Any) -> Integers:
        return sums(release_sums(exact_sums(), BALANCED, agreed, PROJECTOR, **source)).values

    assert not np.array_equal(values(), values())
    first, second = (values(entropy=np.random.default_rng(1).bytes) for _ in range(2))
    assert np.array_equal(first, second)


def test_classes_that_the_terms_leave_out_cannot_be_released() -> None:
    agreed = terms(BALANCED, 100, 10)
    assert agreed.classes == 0
    with pytest.raises(ValueError, match="sums of 3 classes, 0 are to be released"):
        release_sums(exact_sums(100), BALANCED, agreed, PROJECTOR)


def test_moments_cannot_be_released_in_a_calibrated_mode() -> None:
    with pytest.raises(BadPayload, match="releases sums, not moments"):
        release(moments(), BALANCED, PROJECTOR, np.random.default_rng(0))
