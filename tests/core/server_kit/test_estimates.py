"""Estimates from noisy sums: right on average, and as noisy as they say. All noise here is seeded."""

import numpy as np
import pytest

from shoal.core.exchange.admit import MAX_VALUE
from shoal.core.exchange.parts import Descriptor, FloatArray, Moments, NoisySums, PrivacySettings
from shoal.core.privacy.sums import GRID, ExactSums, sums_of
from shoal.core.server_kit.estimates import Estimates, estimate

SETTINGS, PROJECTOR, RADIUS = PrivacySettings("balanced", 5.0, 1e-6), "ab" * 32, 2.0
CLASSES, DIMS = 3, 2
REPEATS = 4000


def data() -> tuple[FloatArray, np.ndarray]:
    """Three classes of 60, 40 and 20 samples, well inside the ball."""
    chance = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), [60, 40, 20])
    return 0.3 * chance.normal(size=(120, DIMS)) + 0.2 * labels[:, None] - 0.1, labels


def exact() -> ExactSums:
    return sums_of([data()], RADIUS, DIMS, CLASSES)


def descriptor_of(sums: NoisySums) -> Descriptor:
    return Descriptor(sums, PROJECTOR, SETTINGS)


def noisy(sigma: float, seed: int) -> Estimates:
    noise = np.random.default_rng(seed).normal(size=exact().values.shape) * sigma * GRID
    sums = NoisySums(exact().values + np.rint(noise).astype(np.int64), sigma, RADIUS)
    return estimate(descriptor_of(sums))


def test_without_noise_to_speak_of_the_estimates_are_the_moments() -> None:
    latents, labels = data()
    found = estimate(descriptor_of(NoisySums(exact().values, 1e-6, RADIUS)))
    parts = [latents, *(latents[labels == k] for k in range(CLASSES))]
    np.testing.assert_allclose(found.counts, [len(part) for part in parts], rtol=1e-5)
    np.testing.assert_allclose(found.means, [part.mean(axis=0) for part in parts], atol=1e-5)
    np.testing.assert_allclose(found.deviations, [part.std(axis=0) for part in parts], atol=1e-4)
    assert found.known.all()


def test_estimates_are_right_on_average_and_as_noisy_as_they_say() -> None:
    sigma = 0.4
    found = [noisy(sigma, seed) for seed in range(REPEATS)]
    truth = estimate(descriptor_of(NoisySums(exact().values, 1e-6, RADIUS)))
    means = np.stack([one.means for one in found])
    counts = np.stack([one.counts for one in found])
    assert all(one.known.all() for one in found)

    spread = np.sqrt(np.stack([one.mean_noise for one in found]).mean(axis=0))
    np.testing.assert_allclose(means.std(axis=0), spread, rtol=0.1)
    np.testing.assert_array_less(np.abs(means.mean(axis=0) - truth.means), 5 * spread / REPEATS**0.5)
    np.testing.assert_allclose(counts.std(axis=0) ** 2, found[0].count_noise, rtol=0.15)
    off = np.abs(counts.mean(axis=0) - truth.counts)
    np.testing.assert_array_less(off, 5 * np.sqrt(found[0].count_noise / REPEATS))

    # Deviations of all samples are clear of the noise here; those of the classes are not, and are cut at 0.
    deviations = np.stack([one.deviations[0] for one in found])
    spread = np.sqrt(np.stack([one.deviation_noise[0] for one in found]).mean(axis=0))
    np.testing.assert_allclose(deviations.std(axis=0), spread, rtol=0.1)
    np.testing.assert_allclose(deviations.mean(axis=0), truth.deviations[0], atol=0.2 * spread.max())


def test_the_row_of_all_samples_gains_from_the_rows_of_classes() -> None:
    label_free = NoisySums(exact().values[:1], 0.4, RADIUS)
    twice = noisy(0.4, 0).count_noise
    # With w_m = w_c = sqrt(1/2): 1 / (1/2 + 1/2 / 3) against 1 / (1/2).
    assert twice[0] / twice[1] == pytest.approx(3 / 4)
    assert estimate(descriptor_of(label_free)).count_noise[0] == pytest.approx(twice[1] / 2)


def test_a_class_within_noise_is_unknown_and_looks_like_an_absent_one() -> None:
    found = noisy(0.95, 3)  # 5 sigma / (w c) is 20.7 samples; the third class has 20
    assert found.known[:3].all()
    assert not found.known[3]
    assert not found.means[3].any()
    assert not found.deviations[3].any()
    assert np.isinf(found.mean_noise[3]).all()
    assert np.isfinite(found.count_noise).all()


def test_a_descriptor_without_noise_says_so() -> None:
    moments = Moments(np.ones((3, 2)), np.ones((3, 2)), np.array([0.0, 1.0, 5.0]))
    found = estimate(Descriptor(moments, PROJECTOR))
    assert not found.mean_noise.any()
    assert not found.count_noise.any()
    assert found.known.tolist() == [True, False, True]


def test_hostile_sums_give_finite_estimates_in_the_range_that_moments_are_held_to() -> None:
    for value in (1 << 61, -(1 << 61), 1 << 30, 0):
        for scale in (1e-9, 1e9):
            for radius in (1e-9, 1e9):
                found = estimate(descriptor_of(NoisySums(np.full((2, 5), value, np.int64), scale, radius)))
                assert (np.abs(found.means) <= MAX_VALUE).all()
                assert (np.abs(found.deviations) <= MAX_VALUE).all()
                assert np.isfinite(found.count_noise).all()
