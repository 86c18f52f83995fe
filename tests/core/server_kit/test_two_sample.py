"""The two-sample test on descriptors, on data drawn from known distributions, and the cut of its tree."""

import numpy as np
import pytest

from shoal.core.device_kit.describe import moments_of
from shoal.core.exchange.parts import Descriptor, FloatArray, Moments, PrivacySettings
from shoal.core.privacy.release import release, release_sums
from shoal.core.privacy.sums import sums_of
from shoal.core.privacy.terms import terms
from shoal.core.server_kit.descriptors import aligned
from shoal.core.server_kit.two_sample import between, cut, groups, statistics, unlikeness

CLASSES, DIMS = 4, 6
BALANCED, STRICT = PrivacySettings("balanced", 5.0, 1e-6), PrivacySettings("strict", 1.0, 1e-6)


def device(
    seed: int, shift: float = 0.0, samples: int = 200, mix: tuple[float, ...] = (1, 1, 1, 1)
) -> Descriptor:
    """Gaussian latents around a mean for each class, all moved by `shift`."""
    chance = np.random.default_rng(seed)
    labels = chance.choice(CLASSES, samples, p=np.array(mix) / sum(mix))
    latents = labels[:, None] * 2.0 + chance.normal(size=(samples, DIMS)) + shift
    moments = moments_of(latents, labels, CLASSES)
    return release(moments, PrivacySettings(), "0" * 64, chance)


def tree(*heights: float) -> FloatArray:
    """Devices that join one after the other at these heights, as `linkage` has it."""
    count = len(heights)
    first = [0, *range(count + 1, 2 * count)]
    return np.array([[first[k], k + 1, heights[k], k + 2] for k in range(count)], float)


def pairs(matrix: FloatArray) -> FloatArray:
    return matrix[np.triu_indices(len(matrix), 1)]


@pytest.mark.parametrize("samples", [20, 200, 5000])
def test_under_one_distribution_it_is_about_one_whatever_the_number_of_samples(samples: int) -> None:
    described = [device(seed, samples=samples) for seed in range(12)]
    assert 0.8 < pairs(statistics(aligned(described))[0]).mean() < 1.25
    assert pairs(unlikeness(described)).max() <= 1.0
    assert groups(described).tolist() == [0] * 12


def test_under_two_it_grows_with_the_number_of_samples() -> None:
    few, many = (statistics(aligned([device(0, 0.0, n), device(1, 0.5, n)]))[0][0, 1] for n in (100, 1000))
    assert many > 4 * few > 4


def test_two_samples_a_class_are_no_evidence() -> None:
    described = [device(seed, samples=4) for seed in range(6)]
    assert groups(described).tolist() == [0] * 6


def test_it_is_symmetric_and_zero_on_the_diagonal() -> None:
    found = unlikeness([device(0), device(1, 0.3), device(2, samples=50)])
    np.testing.assert_array_equal(found, found.T)
    assert np.diag(found).tolist() == [0.0, 0.0, 0.0]


def test_other_shares_of_the_classes_are_seen_though_the_classes_look_alike() -> None:
    found = groups([device(s, mix=(1, 1, 1, 1) if s < 3 else (5, 5, 1, 1)) for s in range(6)])
    assert found.tolist() == [0, 0, 0, 1, 1, 1]


def test_devices_without_a_common_class_are_unlike() -> None:
    found = groups([device(s, mix=(1, 1, 0, 0) if s % 2 else (0, 0, 1, 1)) for s in range(4)])
    assert found.tolist() == [0, 1, 0, 1]


def test_groups_that_come_in_pairs_are_found_where_the_elbow_merges_them() -> None:
    found = groups([device(s, shift=(s % 4) * (s % 4)) for s in range(8)])
    assert found.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_no_chain_forms_through_devices_half_way() -> None:
    found = groups([device(s, shift=0.8 * s) for s in range(6)])
    assert len(set(found.tolist())) == 6


def test_all_alike_is_one_group_and_all_different_are_as_many_as_there_are() -> None:
    assert cut(tree(0.9, 0.9, 0.9, 0.9)).tolist() == [0] * 5
    assert cut(tree(50, 50, 50)).tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("heights", "found"),
    [
        ((0.4, 0.6, 0.7, 1.6, 30.0), 3),  # a small step above chance, before a large one
        ((0.6, 1.0, 1.3, 1.6, 12.0), 2),  # samples drawn several times over: by degrees, and then not
        ((1.2, 1.6, 2.2, 3.0, 4.0), 6),  # by degrees from the beginning: no two are alike
        ((0.1, 0.1, 0.7, 0.7, 0.7), 1),  # clear steps, and all of them within chance
    ],
)
def test_the_tree_is_cut_at_the_first_clear_step_above_chance(heights: tuple[float, ...], found: int) -> None:
    assert len(set(cut(tree(*heights)).tolist())) == found
    assert len(set(cut(tree(*heights), clusters=4).tolist())) == 4


def test_many_devices_together_show_what_no_pair_of_them_shows() -> None:
    described = [device(s, 0.13 * (s % 2), samples=400) for s in range(24)]
    between = unlikeness(described)[::2, 1::2]
    assert np.quantile(between, 0.9) < 1.0
    assert groups(described).tolist() == [0, 1] * 12


@pytest.mark.parametrize("count", [0, 1])
def test_nobody_and_one_alone(count: int) -> None:
    assert groups([device(0)] * count).tolist() == [0] * count


def test_identical_descriptors_without_any_spread_are_alike() -> None:
    one = Descriptor(Moments(np.ones((3, 2)), np.zeros((3, 2)), np.array([4.0, 2.0, 2.0])), "0" * 64)
    assert unlikeness([one, one]).tolist() == [[0.0, 0.0], [0.0, 0.0]]


# -- with noise of a known size -------------------------------------------------------------------------


def private(
    seed: int, shift: float = 0.0, samples: int = 600, settings: PrivacySettings = BALANCED, turn: int = 0
) -> Descriptor:
    """As `device`, in a ball of radius 1; `turn` calls every class by the name of one further on."""
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, CLASSES, samples)
    centres = np.random.default_rng(0).normal(size=(CLASSES, DIMS)) * 0.2
    latents = centres[labels] + 0.1 * chance.normal(size=(samples, DIMS)) + shift
    agreed = terms(settings, samples, CLASSES)
    exact = sums_of([(latents, (labels + turn) % CLASSES)], 1.0, DIMS, agreed.classes)
    return release_sums(exact, settings, agreed, "0" * 64, chance.bytes)


@pytest.mark.parametrize("settings", [BALANCED, STRICT])
@pytest.mark.parametrize("samples", [300, 600, 6000])
def test_noise_makes_no_groups_where_there_are_none(settings: PrivacySettings, samples: int) -> None:
    described = [private(seed, samples=samples, settings=settings) for seed in range(12)]
    assert 0.6 < pairs(statistics(aligned(described))[0]).mean() < 1.4
    assert groups(described).tolist() == [0] * 12


@pytest.mark.parametrize("settings", [BALANCED, STRICT])
def test_a_shift_of_all_samples_is_seen_through_the_noise(settings: PrivacySettings) -> None:
    described = [private(seed, 0.1 * (seed % 2), settings=settings) for seed in range(8)]
    assert groups(described).tolist() == [0, 1] * 4


def test_classes_of_other_names_are_seen_though_all_samples_are_alike() -> None:
    described = [private(seed, turn=seed % 2) for seed in range(8)]
    assert groups(described).tolist() == [0, 1] * 4


def test_devices_that_release_no_classes_are_compared_by_all_samples() -> None:
    mixed = [private(seed, 0.2 * (seed % 2), samples=600 if seed < 4 else 80) for seed in range(8)]
    assert {one.classes for one in mixed} == {0, CLASSES}
    assert groups(mixed).tolist() == [0, 1] * 4


def test_between_is_the_block_of_the_square_that_compares_two_lists() -> None:
    described = [device(seed) for seed in range(5)]
    np.testing.assert_array_equal(between(described[:2], described[2:]), unlikeness(described)[:2, 2:])
    assert between(described[:1], described[:1])[0, 0] == 0.0, "identical data say the same"
