import itertools

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import rotate
from shoal_lab.datasets.pixels import color
from shoal_lab.shifts import make
from shoal_lab.shifts.base import split_basic
from shoal_lab.shifts.feature import patterns

Pair = tuple[Dataset, Dataset]


def test_published_ids_at_seed_42_level_5(mnist_sized: Pair) -> None:
    devices = make("px", 5, 10, 42, *mnist_sized)
    assert [device.concept for device in devices] == [3, 4, 2, 4, 4, 1, 2, 2, 2, 4]
    assert [(len(device.train), len(device.test)) for device in devices] == [(6_000, 1_000)] * 10


def test_patterns_of_level_5_in_order() -> None:
    assert patterns(5) == [
        (0, "red"),
        (0, "blue"),
        (0, "green"),
        (180, "red"),
        (180, "blue"),
        (180, "green"),
    ]


@pytest.mark.parametrize("level", range(1, 9))
def test_patterns_are_those_of_table_9(level: int) -> None:
    angles = {
        1: [0, 180],
        2: [0, 120, 240],
        3: [0, 90, 180, 270],
        4: [0, 72, 144, 216, 288],
    }[level if level <= 4 else level - 4]
    colors = ["gray"] if level <= 4 else ["red", "blue", "green"]
    assert patterns(level) == list(itertools.product(angles, colors))


@pytest.mark.parametrize("level", [4, 8])
def test_every_image_is_rotated_then_colored_by_its_devices_pattern(level: int, pictures: Pair) -> None:
    devices = make("px", level, 6, 42, *pictures)
    assert len({device.concept for device in devices}) > 1
    for device, raw in zip(devices, split_basic(*pictures, 6, 42), strict=True):
        for part, raw_part in zip((device.train, device.test), raw, strict=True):
            degrees, name = patterns(level)[device.concept]
            assert (part.x == color(rotate(raw_part.x, degrees), name)).all()
            assert part.y is not None
            assert raw_part.y is not None
            assert part.y.tolist() == raw_part.y.tolist()


def test_the_color_fills_the_corners_that_rotation_empties(pictures: Pair) -> None:
    for device in make("px", 8, 6, 42, *pictures):
        channel = {"red": 0, "green": 1, "blue": 2}[patterns(8)[device.concept][1]]
        assert np.all(device.train.x[:, channel] == 1)


def test_unlabelled_images_can_be_shifted_too(pictures: Pair) -> None:
    train, test = (Dataset(part.x) for part in pictures)
    assert all(device.train.y is None for device in make("px", 5, 3, 42, train, test))
