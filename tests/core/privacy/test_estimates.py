"""Estimates from noisy sums: right on average, and as noisy as they say. All noise here is seeded."""

import numpy as np
import pytest

from shoal.core.exchange.parts import Descriptor, NoisySums, PrivacySettings, Vector
from shoal.core.privacy.estimates import descriptor_of, noise_of
from shoal.core.privacy.sums import GRID, ExactSums, sums_of

SETTINGS, PROJECTOR, RADIUS = PrivacySettings("balanced", 5.0, 1e-6), "ab" * 32, 2.0
CLASSES, DIMS = 3, 2
REPEATS = 4000


def data() -> tuple[Vector, np.ndarray]:
    """Three classes of 60, 40 and 20 samples, well inside the ball."""
    chance = np.random.default_rng(0)
    labels = np.repeat(np.arange(CLASSES), [60, 40, 20])
    return 0.3 * chance.normal(size=(120, DIMS)) + 0.2 * labels[:, None] - 0.1, labels


def exact() -> ExactSums:
    return sums_of([data()], RADIUS, DIMS, CLASSES)


def noisy(sigma: float, seed: int) -> Descriptor:
    noise = np.random.default_rng(seed).normal(size=exact().values.shape) * sigma * GRID
    return descriptor_of(
        NoisySums(exact().values + np.rint(noise).astype(np.int64), sigma, RADIUS), PROJECTOR, SETTINGS
    )


def test_without_noise_to_speak_of_the_estimates_are_the_moments() -> None:
    latents, labels = data()
    found = descriptor_of(NoisySums(exact().values, 1e-6, RADIUS), PROJECTOR, SETTINGS)
    parts = [latents, *(latents[labels == k] for k in range(CLASSES))]
    np.testing.assert_allclose(found.counts, [len(part) for part in parts], rtol=1e-5)
    np.testing.assert_allclose(found.means, [part.mean(axis=0) for part in parts], atol=1e-5)
    np.testing.assert_allclose(found.deviations, [part.std(axis=0) for part in parts], atol=1e-4)
    assert noise_of(found).known.all()


def test_estimates_are_right_on_average_and_as_noisy_as_they_say() -> None:
    sigma = 0.4
    found = [noisy(sigma, seed) for seed in range(REPEATS)]
    said = [noise_of(one) for one in found]
    truth = descriptor_of(NoisySums(exact().values, 1e-6, RADIUS), PROJECTOR, SETTINGS)
    means = np.stack([one.means for one in found])
    counts = np.stack([one.counts for one in found])
    assert all(noise.known.all() for noise in said)

    spread = np.sqrt(np.stack([noise.means for noise in said]).mean(axis=0))
    np.testing.assert_allclose(means.std(axis=0), spread, rtol=0.1)
    np.testing.assert_array_less(np.abs(means.mean(axis=0) - truth.means), 5 * spread / REPEATS**0.5)
    np.testing.assert_allclose(counts.std(axis=0) ** 2, said[0].counts, rtol=0.15)
    off = np.abs(counts.mean(axis=0) - truth.counts)
    np.testing.assert_array_less(off, 5 * np.sqrt(said[0].counts / REPEATS))

    # Deviations of all samples are clear of the noise here; those of the classes are not, and are cut at 0.
    deviations = np.stack([one.deviations[0] for one in found])
    spread = np.sqrt(np.stack([noise.deviations[0] for noise in said]).mean(axis=0))
    np.testing.assert_allclose(deviations.std(axis=0), spread, rtol=0.1)
    np.testing.assert_allclose(deviations.mean(axis=0), truth.deviations[0], atol=0.2 * spread.max())


def test_the_row_of_all_samples_gains_from_the_rows_of_classes() -> None:
    alone = NoisySums(exact().values[:1], 0.4, RADIUS)
    twice = noise_of(noisy(0.4, 0))
    # With w_m = w_c = sqrt(1/2): 1 / (1/2 + 1/2 / 3) against 1 / (1/2).
    assert twice.counts[0] / twice.counts[1] == pytest.approx(3 / 4)
    assert noise_of(descriptor_of(alone, PROJECTOR, SETTINGS)).counts[0] == pytest.approx(twice.counts[1] / 2)


def test_a_class_within_noise_is_unknown_and_is_not_told_from_an_absent_one() -> None:
    found = noisy(0.95, 3)  # 5 sigma / (w c) is 20.7 samples; the third class has 20
    noise = noise_of(found)
    assert noise.known[:3].all()
    assert not noise.known[3]
    assert not found.means[3].any()
    assert not found.deviations[3].any()
    assert np.isinf(noise.means[3]).all()
    assert np.isfinite(noise.counts).all()


def test_a_descriptor_without_noise_says_so() -> None:
    plain = Descriptor(np.ones((3, 2)), np.ones((3, 2)), np.array([0.0, 1.0, 5.0]), PROJECTOR)
    noise = noise_of(plain)
    assert not noise.means.any()
    assert not noise.counts.any()
    assert noise.known.tolist() == [True, False, True]


def test_hostile_sums_give_finite_estimates() -> None:
    for value in (1 << 61, -(1 << 61), 0):
        for scale in (1e-9, 1e9):
            sums = NoisySums(np.full((2, 5), value, np.int64), scale, 1e9)
            found = descriptor_of(sums, PROJECTOR, SETTINGS)
            assert np.isfinite(found.means).all()
            assert np.isfinite(noise_of(found).counts).all()
