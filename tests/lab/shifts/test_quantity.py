"""Quantity skew: who has how many samples of what, and how each concept looks."""

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal_lab.shifts import make
from shoal_lab.shifts.quantity import SIZES, concept, extended, sizes

Pair = tuple[Dataset, Dataset]


def plenty(count: int = 4000) -> Dataset:
    """`count` images (4, 4) uint8 whose first bytes are their row number; row i is of class i mod 10."""
    x = np.zeros((count, 4, 4), np.uint8)
    rows = np.arange(count)
    x[:, 0, 0], x[:, 0, 1] = rows // 256, rows % 256
    return Dataset(x, rows % 10)


def rows(data: Dataset) -> set[int]:
    x = np.rint(data.x * 255).astype(int)
    return set((x[:, 0, 0, 0] * 256 + x[:, 0, 0, 1]).tolist())


def test_the_three_scenarios() -> None:
    assert sizes(0, 8) == [50] * 8
    assert sizes(1, 8) == [5, 20, 100, 200, 5, 20, 100, 200]
    assert sizes(2, 8) == [5, 5, 20, 20, 100, 100, 200, 200]
    assert [concept(number, 8) for number in range(8)] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [concept(number, 6) for number in range(6)] == [0, 0, 1, 2, 2, 3]


@pytest.mark.parametrize("level", [0, 1, 2])
def test_every_device_has_as_many_of_each_label_as_its_size_says(level: int) -> None:
    devices = make("qs-labels", level, 4, 42, plenty(), plenty(400))
    for device, size in zip(devices, sizes(level, 4), strict=True):
        assert np.bincount(device.train.y).tolist() == [size] * 10
        assert np.bincount(device.test.y).tolist() == [10] * 10


def test_devices_of_one_size_never_share_an_image_and_fewer_are_dealt_where_there_are_too_few() -> None:
    devices = make("qs-labels", 0, 10, 42, plenty(1000), plenty(400))
    parts = [rows(device.train) for device in devices]
    assert all(len(part) == 100 for part in parts)
    assert len(set.union(*parts)) == 1000
    tested = [rows(device.test) for device in devices]
    assert len(set.union(*tested)) == sum(map(len, tested)) == 400


def test_labels_are_exchanged_two_by_two_in_train_and_test() -> None:
    devices = make("qs-labels", 0, 4, 42, plenty(), plenty(400))
    for device, (one, other) in zip(devices, [(1, 7), (2, 7), (4, 7), (3, 8)], strict=True):
        for part in (device.train, device.test):
            assert part.y is not None
            x = np.rint(part.x * 255).astype(int)
            truth = (x[:, 0, 0, 0] * 256 + x[:, 0, 0, 1]) % 10
            exchanged = np.where(truth == one, other, np.where(truth == other, one, truth))
            assert part.y.tolist() == exchanged.tolist()


def test_images_are_turned_by_quarters() -> None:
    turned = make("qs-features", 0, 4, 42, plenty(), plenty(400))
    plain = make("qs-labels", 0, 4, 42, plenty(), plenty(400))
    for quarter, (one, other) in enumerate(zip(turned, plain, strict=True)):
        np.testing.assert_array_equal(one.train.x, np.rot90(other.train.x, quarter, (2, 3)))
        assert one.concept == quarter


def test_strokes_become_thinner_and_thicker() -> None:
    dot = np.zeros((1, 9, 9), np.float32)
    dot[0, 4, 4] = 1
    three = extended(dot, 3)[0]
    assert np.argwhere(three).tolist() == [[y, x] for y in (3, 4, 5) for x in (3, 4, 5)]
    eight = np.argwhere(extended(dot, 8)[0])
    # A pixel looks 4 back and 3 ahead, so the dot at 4 shows from 1 to 8.
    assert (eight.min(0).tolist(), eight.max(0).tolist()) == ([1, 1], [8, 8])
    np.testing.assert_array_equal(-extended(-three, 3), dot[0])


def test_the_kind_skew_erodes_dilates_leaves_and_dilates_more() -> None:
    ink = [device.train.x.mean() for device in make("qs-skew", 0, 4, 42, plenty(), plenty(400))]
    assert ink[0] < ink[2] < ink[1] < ink[3]


def test_what_cannot_be_shared_out_is_refused() -> None:
    with pytest.raises(ValueError, match="level 3 is unknown: this shift has the levels 0 to 2"):
        make("qs-labels", 3, 4, 42, plenty(), plenty())
    with pytest.raises(ValueError, match="cannot share"):
        make("qs-labels", 0, 100, 42, plenty(), plenty(100).subset(slice(0, 99)))
    with pytest.raises(ValueError, match="needs 9 classes"):
        make("qs-labels", 0, 2, 42, *(Dataset(part.x, part.y % 3) for part in (plenty(), plenty(400))))  # type: ignore[operator]
    assert SIZES == (5, 20, 100, 200)
