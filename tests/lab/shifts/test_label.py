import os
from collections import Counter

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal_lab.datasets.images import load
from shoal_lab.shifts import make
from shoal_lab.shifts.base import first_seen, split_basic

Pair = tuple[Dataset, Dataset]


def rows(x: np.ndarray) -> list[int]:
    """Row numbers spelled by images, see conftest."""
    return np.rint(x * 255).astype(np.uint8).reshape(-1, 4).view(np.uint32).ravel().tolist()


@pytest.mark.parametrize("level", range(1, 9))
def test_a_device_keeps_11_minus_level_classes_and_its_size(level: int, mnist_sized: Pair) -> None:
    for device in make("py", level, 10, 42, *mnist_sized):
        assert device.train.y is not None
        assert device.test.y is not None
        assert len(set(device.train.y)) == 11 - level
        assert set(device.train.y) == set(device.test.y)
        assert 5_500 < len(device.train) < 6_500
        assert 850 < len(device.test) < 1_150


def test_concepts_are_the_same_when_and_only_when_the_classes_are(mnist_sized: Pair) -> None:
    held: dict[int, set[int]] = {}
    for device in make("py", 8, 20, 42, *mnist_sized):
        assert 1 <= device.concept <= 5
        assert device.train.y is not None
        assert held.setdefault(device.concept, set(device.train.y)) == set(device.train.y)
    assert len({frozenset(classes) for classes in held.values()}) == len(held) > 1


def test_level_1_is_one_distribution(mnist_sized: Pair) -> None:
    assert {device.concept for device in make("py", 1, 10, 42, *mnist_sized)} == {1}


def test_first_come_the_images_left_then_repeats_of_them(small: Pair) -> None:
    for device, raw in zip(make("py", 7, 5, 42, *small), split_basic(*small, 5, 42), strict=True):
        for part, raw_part in zip((device.train, device.test), raw, strict=True):
            assert part.y is not None
            assert raw_part.y is not None
            left = rows(raw_part.x[np.isin(raw_part.y, part.y)] / 255)
            assert rows(part.x)[: len(left)] == left
            assert set(rows(part.x)[len(left) :]) <= set(left)
            assert len(part) == len(left) + int(len(left) * (10 / 4 - 1))
            assert part.y.tolist() == [row * 7 % 10 for row in rows(part.x)]


def test_the_draws_come_in_the_documented_order(small: Pair) -> None:
    stream = np.random.RandomState(42)
    sets = [sorted(stream.permutation(10)[:3]) for _ in range(5)]
    for device, raw in zip(make("py", 8, 5, 42, *small), split_basic(*small, 5, 42), strict=True):
        wanted = sets[stream.randint(0, 5)]
        for part, raw_part in zip((device.train, device.test), raw, strict=True):
            left = raw_part.x[np.isin(raw_part.y, wanted)]
            repeats = stream.randint(0, len(left), size=int(len(left) * (10 / 3 - 1)))
            assert rows(part.x) == rows(np.concatenate([left, left[repeats]]) / 255)


def test_repeats_are_drawn_evenly(mnist_sized: Pair) -> None:
    device = make("py", 8, 10, 42, *mnist_sized)[0]
    counts = Counter(rows(device.train.x)).values()
    assert min(counts) == 1
    assert 3.2 < len(device.train) / len(counts) < 3.4
    assert max(counts) < 15


def test_a_device_left_with_nothing_says_so() -> None:
    tiny = Dataset(np.zeros((10, 2, 2), np.uint8), np.arange(10))
    with pytest.raises(ValueError, match="fewer clients"):
        make("py", 8, 10, 42, tiny, tiny)


@pytest.mark.skipif("SHOAL_DATA_DIR" not in os.environ, reason="needs MNIST: set SHOAL_DATA_DIR")
def test_published_groups_at_seed_42_level_8() -> None:
    devices = make("py", 8, 10, 42, *load("mnist", os.environ["SHOAL_DATA_DIR"]))
    # The groups that FLUX found, all of them right: a b a c a d b c a e.
    assert first_seen([device.concept for device in devices]) == [0, 1, 0, 2, 0, 3, 1, 2, 0, 4]
