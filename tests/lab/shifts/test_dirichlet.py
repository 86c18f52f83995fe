"""Class shares from a Dirichlet distribution."""

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal_lab.shifts import make
from shoal_lab.shifts.dirichlet import ALPHAS, deal
from tests.lab.shifts.test_quantity import plenty, rows


def shares(data: Dataset) -> np.ndarray:
    assert data.y is not None
    return np.bincount(data.y, minlength=10) / len(data)


def test_every_device_gets_its_equal_share_and_no_image_goes_to_two() -> None:
    devices = make("dirichlet", 7, 8, 42, plenty(), plenty(800))
    assert [len(device.train) for device in devices] == [500] * 8
    parts = [rows(device.train) for device in devices]
    assert len(set.union(*parts)) == 4000
    assert sum(len(device.test) for device in devices) == 800
    assert [device.concept for device in devices] == list(range(8))


def test_small_alphas_make_devices_of_few_classes_and_large_ones_even_devices() -> None:
    largest = [
        np.mean(
            [shares(device.train).max() for device in make("dirichlet", level, 8, 42, plenty(), plenty(800))]
        )
        for level in (1, 4, 7)
    ]
    assert largest[0] < 0.16 < largest[1] < largest[2]
    assert largest[2] > 0.6


def test_a_device_is_tested_on_what_it_has_seen() -> None:
    for device in make("dirichlet", 7, 8, 42, plenty(), plenty(800)):
        assert np.abs(shares(device.train) - shares(device.test)).max() < 0.03


def test_what_a_mixture_wants_and_is_used_up_is_made_up_from_what_is_left() -> None:
    counts = deal(1e-3, 10, 4, [10, 10, 20], np.random.RandomState(0))
    assert counts.sum(axis=0).tolist() == [10, 10, 20]
    assert counts.sum(axis=1).tolist() == [10] * 4


def test_level_7_is_the_alpha_that_fmcl_reports() -> None:
    assert ALPHAS[7 - 1] == 0.1


def test_a_device_without_test_images_is_refused() -> None:
    with pytest.raises(ValueError, match="without test images"):
        make("dirichlet", 8, 30, 1, plenty(300), plenty(30))
