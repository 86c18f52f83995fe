import numpy as np
import pytest

from fedcore.parts import PrivacySettings
from fedcore.privacy.moments import Moments
from fedcore.privacy.release import release

PROJECTOR = "ab" * 32
OFF, PAPER = PrivacySettings(), PrivacySettings("paper", 2.0)


def moments(samples: float = 100.0, classes: int = 2, dims: int = 3) -> Moments:
    means = np.arange(float((1 + classes) * dims)).reshape(1 + classes, dims)
    counts = np.array([samples, samples - 1, 1.0][: 1 + classes])
    return Moments(means, means / 10, counts, low=-1.0, high=3.0)


def test_off_gives_the_moments_in_arrays_of_its_own() -> None:
    exact = moments()
    released = release(exact, OFF, PROJECTOR, np.random.default_rng(1))
    assert np.array_equal(released.means, exact.means)
    assert np.array_equal(released.deviations, exact.deviations)
    assert np.array_equal(released.counts, exact.counts)
    assert (released.projector, released.privacy) == (PROJECTOR, OFF)
    for mine, theirs in zip(
        (released.means, released.deviations, released.counts),
        (exact.means, exact.deviations, exact.counts),
        strict=True,
    ):
        assert not np.shares_memory(mine, theirs)


def test_paper_adds_laplace_noise_of_range_over_n_epsilon() -> None:
    """FLUX C.1.1, S4: b = Range / (n epsilon) = 4 / (100 x 2)."""
    exact, same = moments(), np.random.default_rng(7)
    released = release(exact, PAPER, PROJECTOR, np.random.default_rng(7))
    assert np.allclose(released.means - exact.means, same.laplace(0, 0.02, (3, 3)), atol=1e-15)
    assert np.allclose(released.deviations - exact.deviations, same.laplace(0, 0.02, (3, 3)), atol=1e-15)
    assert np.array_equal(released.counts, exact.counts)
    assert released.privacy == PAPER


def test_the_noise_has_the_spread_that_its_scale_says() -> None:
    many = Moments(np.zeros((1, 1000)), np.zeros((1, 1000)), np.array([50.0]), 0.0, 10.0)
    released = release(many, PAPER, PROJECTOR, np.random.default_rng(3))
    for block in (released.means, released.deviations):
        assert np.abs(block).mean() == pytest.approx(10 / (50 * 2), rel=0.15)  # E|Laplace(b)| = b


def test_noise_is_what_the_given_generator_makes_of_it() -> None:
    noise = np.random.default_rng(5)
    first, second = (release(moments(), PAPER, PROJECTOR, noise) for _ in range(2))
    assert not np.isclose(first.means, second.means, rtol=0, atol=1e-9).any()


def test_off_does_not_touch_the_generator() -> None:
    noise = np.random.default_rng(5)
    release(moments(), OFF, PROJECTOR, noise)
    assert noise.random() == np.random.default_rng(5).random()


def test_samples_that_are_all_alike_get_no_noise() -> None:
    alike = Moments(np.ones((1, 2)), np.zeros((1, 2)), np.array([4.0]), 1.0, 1.0)
    released = release(alike, PAPER, PROJECTOR, np.random.default_rng(1))
    assert np.array_equal(released.means, alike.means)
