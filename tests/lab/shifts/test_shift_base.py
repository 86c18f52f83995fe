import zlib

import numpy as np
import pytest
import torch

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import rotate, unit
from shoal_lab.datasets.pixels import color
from shoal_lab.shifts.base import first_seen, split_basic

Pair = tuple[Dataset, Dataset]


def rows(data: Dataset) -> list[int]:
    return np.ascontiguousarray(data.x).reshape(-1, 4).view(np.uint32).ravel().tolist()


def test_split_is_disjoint_equal_and_gives_the_remainder_to_the_last(small: Pair) -> None:
    parts = list(split_basic(*small, clients=10, seed=3))
    assert [len(train) for train, _ in parts] == [100] * 9 + [103]
    assert [len(test) for _, test in parts] == [20] * 9 + [27]
    assert sorted(row for train, _ in parts for row in rows(train)) == list(range(1_003))
    assert sorted(row for _, test in parts for row in rows(test)) == list(range(207))


def test_split_draws_what_the_seeded_global_generator_draws(mnist_sized: Pair) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(42)
        train_order, test_order = torch.randperm(60_000).tolist(), torch.randperm(10_000).tolist()
    parts = list(split_basic(*mnist_sized, clients=10, seed=42))
    assert rows(parts[0][0]) == train_order[:6_000]
    assert rows(parts[9][0]) == train_order[54_000:]
    assert rows(parts[3][1]) == test_order[3_000:4_000]


def test_split_keeps_labels_with_images(small: Pair) -> None:
    for part in (part for pair in split_basic(*small, clients=4, seed=0) for part in pair):
        assert part.y is not None
        assert part.y.tolist() == [row * 7 % 10 for row in rows(part)]


def test_first_seen() -> None:
    assert first_seen(["a", "b", "a", "c", "b"]) == [0, 1, 0, 2, 1]


NOISE = np.random.RandomState(1).randint(1, 256, (3, 28, 28)).astype(np.uint8)


@pytest.mark.parametrize("quarter", range(4))
@pytest.mark.parametrize("side", [7, 8, 28])
def test_multiples_of_90_are_exact(quarter: int, side: int) -> None:
    images = NOISE[:, :side, :side]
    assert (rotate(images, 90.0 * quarter) == np.rot90(images, quarter, axes=(1, 2))).all()


def test_45_degrees_by_hand() -> None:
    # Counter-clockwise: what was above the center goes to its upper left. Corners look up points 1.41 pixels
    # away from the center along an axis, which is still the edge's pixel (it reaches to 1.5).
    image = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.uint8)
    assert rotate(image, 45).tolist() == [[2, 3, 6], [1, 5, 9], [4, 7, 8]]


def test_what_comes_from_outside_is_zero() -> None:
    turned = rotate(np.full((5, 5), 9, np.uint8), 45)
    assert (turned == 0).sum() == 4
    assert turned[[0, 0, 4, 4], [0, 4, 0, 4]].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize(
    "degrees", [0, 1, 30, 45, 72, 90, 120, 144, 180, 216, 240, 270, 288, 333.3, 360, -20]
)
@pytest.mark.parametrize("shape", [(28, 28), (8, 8), (9, 9), (5, 11)])
def test_every_angle_is_pillows(degrees: float, shape: tuple[int, int]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    image = NOISE[0, : shape[0], : shape[1]]
    assert (rotate(image, degrees) == np.asarray(pillow.fromarray(image).rotate(degrees))).all()


@pytest.mark.parametrize(
    ("degrees", "checksum"),
    [
        (72, 0xCEFE23EC),
        (120, 0x760C616F),
        (144, 0xC6A4627F),
        (216, 0x82FC1CE6),
        (240, 0xD94C17DE),
        (288, 0x01D49FAF),
    ],
)
def test_the_slanted_angles_of_table_9_are_recorded_from_pillow(degrees: float, checksum: int) -> None:
    # CRC-32 of an image numbered 1 to 784 after Pillow 13.0.0 turned it, as "<i4".
    numbered = np.arange(1, 785, dtype="<i4").reshape(28, 28)
    assert zlib.crc32(rotate(numbered, degrees).tobytes()) == checksum


def test_rotation_leaves_its_input_and_leading_axes_alone() -> None:
    images = NOISE.copy().reshape(3, 1, 28, 28)
    turned = rotate(images, 72)
    assert (images[:, 0] == NOISE).all()
    assert (turned[2, 0] == rotate(NOISE[2], 72)).all()
    assert (rotate(images, 72) == turned).all()


def test_unit_scales_bytes_and_adds_the_channel() -> None:
    scaled = unit(np.array([[[0, 51], [102, 255]]], np.uint8))
    assert scaled.dtype == np.float32
    assert scaled.shape == (1, 1, 2, 2)
    assert scaled.ravel().tolist() == [np.float32(v) for v in (0, 0.2, 0.4, 1)]


def test_unit_copies_floats_as_they_are() -> None:
    images = np.array([[[0.25, 1.0]]], np.float32)
    scaled = unit(images)
    scaled[:] = 0
    assert images.tolist() == [[[0.25, 1.0]]]


@pytest.mark.parametrize(("name", "full"), [("red", 0), ("green", 1), ("blue", 2)])
def test_a_color_fills_its_channel_and_no_other(name: str, full: int) -> None:
    images = NOISE // 2
    colored = color(images, name)
    assert colored.shape == (3, 3, 28, 28)
    assert colored[:, full].mean() == 1
    for channel in {0, 1, 2} - {full}:
        assert (colored[:, channel] == unit(images)[:, 0]).all()


def test_gray_is_three_equal_channels_and_keeps_color_images() -> None:
    gray = color(NOISE, "gray")
    assert all((gray[:, channel] == unit(NOISE)[:, 0]).all() for channel in range(3))
    colored = np.random.RandomState(2).random_sample((2, 3, 4, 4)).astype(np.float32)
    assert (color(colored, "gray") == colored).all()
