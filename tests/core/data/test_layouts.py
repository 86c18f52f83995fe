"""How samples may be arranged, and which of them are images."""

import pickle

import numpy as np
import pytest

from shoal.core.data.layouts import LAST_FIRST, SQUARE, are_images, channel_is_last, layouts_of


def named(x: np.ndarray) -> dict[str, tuple[int, ...]]:
    return {layout.name: layout.shape(x.shape[1:]) for layout in layouts_of(x)}


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((5,), {"as they are": (5,), "with a channel in front": (1, 5)}),
        (
            (64,),
            {
                "as they are": (64,),
                "with a channel in front": (1, 64),
                "as square images of one channel": (1, 8, 8),
            },
        ),
        (
            (8, 6),
            {
                "as they are": (8, 6),
                "with a channel in front": (1, 8, 6),
                "with the last axis first": (6, 8),
                "flattened": (48,),
            },
        ),
        (
            (8, 6, 3),
            {"as they are": (8, 6, 3), "with the last axis first": (3, 8, 6), "flattened": (144,)},
        ),
        ((2, 3, 4, 5), {"as they are": (2, 3, 4, 5), "flattened": (120,)}),
    ],
)
def test_the_layouts_that_are_worth_a_try(shape: tuple[int, ...], found: dict[str, object]) -> None:
    assert named(np.full((3, *shape), 0.5, np.float32)) == found


def test_the_type_is_tried_too_where_it_may_be_meant_otherwise() -> None:
    tokens = named(np.zeros((3, 4, 2), np.int64))
    assert [name for name in tokens if "float32" in name] == [
        "as float32",
        "as float32, with a channel in front",
        "as float32, with the last axis first",
        "as float32, flattened",
    ]
    assert "as whole numbers" in named(np.array([[1.0, 3.0]], np.float32))
    assert "as whole numbers" not in named(np.array([[1.0, 3.5]], np.float32))
    assert "as float32" not in named(np.zeros((3, 4), np.uint8))


def test_values_go_where_the_name_says() -> None:
    x = np.arange(24).reshape(1, 2, 4, 3)
    moved = LAST_FIRST.apply(x)
    assert moved[0, 2].tolist() == x[0, :, :, 2].tolist()
    assert SQUARE.apply(np.arange(64)[None])[0, 0, 1].tolist() == list(range(8, 16))


def test_a_layout_can_be_sent_to_another_process() -> None:
    for layout in layouts_of(np.zeros((3, 4, 2), np.int64)):
        assert pickle.loads(pickle.dumps(layout)).shape((4, 2)) == layout.shape((4, 2))


@pytest.mark.parametrize(
    ("shape", "dtype", "low", "high", "images"),
    [
        ((28, 28), np.uint8, 0, 255, True),
        ((28, 28), np.float32, 0.0, 1.0, True),
        ((3, 3), np.float32, 0.0, 16.0, True),
        ((8, 20), np.float32, 0.0, 255.0, True),
        ((7, 20), np.uint8, 0, 255, False),
        ((28, 28), np.float32, -0.1, 1.0, False),
        ((28, 28), np.float32, 0.0, 256.0, False),
        ((28,), np.uint8, 0, 255, False),
        ((1, 28, 28), np.uint8, 0, 255, False),
    ],
)
def test_images_are_told_from_windows_of_readings(
    shape: tuple[int, ...], dtype: type, low: float, high: float, images: bool
) -> None:
    assert are_images(shape, dtype, low, high) is images


def test_a_channel_is_last_where_only_the_last_axis_can_be_one() -> None:
    assert channel_is_last((32, 32, 3))
    assert not channel_is_last((3, 32, 3))
    assert not channel_is_last((32, 32))
    assert not channel_is_last((32, 32, 2))
