"""The statistical model of a fleet, on data drawn from known distributions."""

import numpy as np
import pytest

from shoal.core.exchange.parts import Descriptor, Moments, PrivacySettings
from shoal.core.server_kit.fleet import groups, joined
from shoal.core.server_kit.fleet.evidence import MEAN, SPREAD, evidence
from shoal.core.server_kit.fleet.model import fitted, usual_ranks
from tests.core.server_kit.described import BALANCED, CLASSES, DIMS, STRICT, device, private


@pytest.mark.parametrize("devices", [10, 100])
@pytest.mark.parametrize("samples", [8, 20, 200, 5000])
def test_a_fleet_whose_devices_are_all_alike_is_one_group(devices: int, samples: int) -> None:
    assert not groups([device(seed, samples=samples) for seed in range(devices)]).any()


def test_devices_that_differ_by_degrees_only_slightly_are_one_group() -> None:
    shifts = np.random.default_rng(1).normal(size=30) * 0.05
    assert not groups([device(seed, float(shift)) for seed, shift in enumerate(shifts)]).any()


def test_sizes_that_differ_by_two_orders_do_not_make_groups_and_do_not_hide_any() -> None:
    sizes = [16, 64, 640, 1600]
    described = [device(s, 0.7 * (s % 2), samples=sizes[s // 2 % 4]) for s in range(40)]
    assert groups(described).tolist() == [0, 1] * 20


def test_a_difference_in_spread_alone_is_found() -> None:
    described = [device(s, samples=400, spread=1.0 + s % 2) for s in range(10)]
    assert groups(described).tolist() == [0, 1] * 5


@pytest.mark.parametrize("seed", [0, 100, 200])
def test_latents_that_are_independent_count_for_nearly_all_of_their_number_in_groups_of_two_as_well(
    seed: int,
) -> None:
    found = evidence([device(seed + number) for number in range(40)])
    looks = np.isin(found.kinds, (MEAN, SPREAD))
    for labels in (np.zeros(40, np.int64), np.arange(40) // 2):
        ranks = fitted(found, labels).ranks / usual_ranks(found)
        assert (ranks[looks] > 1.8).all()  # all of them: 2, as half of them is usual


def test_the_order_of_the_devices_does_not_matter() -> None:
    described = [device(s, 0.4 * (s % 3), samples=60) for s in range(30)]
    order = np.random.default_rng(0).permutation(30)
    found, again = groups(described), groups([described[index] for index in order])
    np.testing.assert_array_equal(found[order][:, None] == found[order], again[:, None] == again)


@pytest.mark.parametrize("clusters", [1, 2, 3, 5, 12])
def test_a_number_of_groups_that_is_given_is_kept_to(clusters: int) -> None:
    found = groups([device(s, 0.6 * (s % 3)) for s in range(12)], clusters)
    assert len(set(found.tolist())) == clusters
    if clusters == 3:
        assert found.tolist() == [0, 1, 2] * 4


@pytest.mark.parametrize("mean", [-1e8, 1e40, 30.0])
@pytest.mark.parametrize("spread", [1.0, 0.0, 1e8])
@pytest.mark.parametrize("samples", [4.0, 2.0**40])
def test_one_device_with_any_numbers_leaves_the_others_groups_as_they_are(
    mean: float, spread: float, samples: float
) -> None:
    honest = [device(s, 0.6 * (s % 3)) for s in range(9)]
    shape = (1 + CLASSES, DIMS)
    counts = np.full(1 + CLASSES, samples / CLASSES)
    counts[0] = samples
    liar = Descriptor(Moments(np.full(shape, mean), np.full(shape, spread), counts), "0" * 64)
    assert groups([*honest, liar])[:9].tolist() == [0, 1, 2] * 3


def test_descriptors_without_any_spread_are_one_group() -> None:
    one = Descriptor(Moments(np.ones((3, 2)), np.zeros((3, 2)), np.array([4.0, 2.0, 2.0])), "0" * 64)
    assert groups([one] * 3).tolist() == [0, 0, 0]


def test_late_joiners_join_their_group_and_one_that_fits_none_begins_its_own() -> None:
    described = [device(s, 0.6 * (s % 2)) for s in range(8)]
    late = [device(20, 0.6), device(21, 0.0), device(22, 5.0), device(23, 5.0)]
    found = joined(described, np.array([0, 1] * 4), late)
    assert found.tolist() == [1, 0, 2, 2]


@pytest.mark.parametrize("shares", [True, False])
def test_devices_with_a_single_sample_each_are_one_group(shares: bool) -> None:
    described = [device(seed, 3.0 * seed, samples=1) for seed in range(4)]
    assert not groups(described, shares=shares).any()
    assert not joined(described[:3], np.zeros(3, np.int64), described[3:], shares).any()


def test_two_samples_a_class_are_no_evidence() -> None:
    described = [device(seed, samples=4) for seed in range(6)]
    assert groups(described).tolist() == [0] * 6


def test_other_shares_of_the_classes_are_seen_though_the_classes_look_alike() -> None:
    found = groups([device(s, mix=(1, 1, 1, 1) if s < 3 else (5, 5, 1, 1)) for s in range(6)])
    assert found.tolist() == [0, 0, 0, 1, 1, 1]


def test_shares_of_the_classes_may_be_left_out() -> None:
    def mixed(number: int, shift: float = 0.0) -> Descriptor:
        return device(number, shift, mix=(1, 1, 1, 1) if number < 3 else (5, 5, 1, 1))

    assert not groups([mixed(number) for number in range(6)], shares=False).any()
    looks = [mixed(number, 2.0 * (number % 2)) for number in range(6)]
    assert groups(looks, shares=False).tolist() == [0, 1, 0, 1, 0, 1]
    described, labels = [mixed(number) for number in range(3)], np.zeros(3, np.int64)
    assert joined(described, labels, [mixed(3)], shares=False).tolist() == [0]
    assert joined(described, labels, [mixed(3)]).tolist() == [1]


def test_devices_without_a_common_class_are_unlike() -> None:
    found = groups([device(s, mix=(1, 1, 0, 0) if s % 2 else (0, 0, 1, 1)) for s in range(4)])
    assert found.tolist() == [0, 1, 0, 1]


def test_groups_that_come_in_pairs_are_found_where_the_elbow_merges_them() -> None:
    found = groups([device(s, shift=(s % 4) * (s % 4)) for s in range(8)])
    assert found.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]


def test_no_chain_forms_through_devices_half_way() -> None:
    found = groups([device(s, shift=0.8 * s) for s in range(6)])
    assert len(set(found.tolist())) == 6


def test_many_devices_together_show_what_no_pair_of_them_shows() -> None:
    described = [device(s, 0.2 * (s % 2), samples=200) for s in range(40)]
    assert len(set(groups(described[:2]).tolist())) == 1
    assert groups(described).tolist() == [0, 1] * 20


def test_few_devices_may_differ_by_what_their_own_updates_did_to_the_network() -> None:
    described = [device(200 + s, 0.6 * (s % 2), samples=80) for s in range(40)]
    assert not groups(described[:4]).any()
    assert groups(described).tolist() == [0, 1] * 20


@pytest.mark.parametrize("count", [0, 1])
def test_no_device_and_one_device(count: int) -> None:
    assert groups([device(0)] * count).tolist() == [0] * count


@pytest.mark.parametrize("settings", [BALANCED, STRICT])
@pytest.mark.parametrize("samples", [300, 600, 6000])
def test_noise_makes_no_groups_where_there_are_none(settings: PrivacySettings, samples: int) -> None:
    described = [private(seed, samples=samples, settings=settings) for seed in range(12)]
    assert not groups(described).any()


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
