"""What the generators share: the checks, the random streams, the even split, rotation and colour.

The recipes draw permutations from torch and everything else from numpy's legacy generator. The two streams do
not touch, so the order within each is all that has to be kept.

Torch stream, the same in every generator (ANDA, `split_basic`):
1. a permutation of the train set; 2. a permutation of the test set.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedcore.data.dataset import Dataset

LEVELS = range(1, 9)
CHANNELS = {"red": 0, "green": 1, "blue": 2}


@dataclass(frozen=True, eq=False)
class DeviceData:
    """What one device holds, and the truth about it.

    `concept`: number of the device's distribution: two devices have the same number when and only when their
    data were made alike. It is there to compare found clusters with; an algorithm must not see it.
    """

    train: Dataset
    test: Dataset
    concept: int


def check(level: int, clients: int, seed: int, train: Dataset, test: Dataset) -> None:
    """Raise a ValueError that says which argument no generator can work with, and what to give instead."""
    if level not in LEVELS:
        raise ValueError(f"level {level} is unknown: FLUX defines the levels 1 to 8")
    if not 0 <= seed < 2**32:
        raise ValueError(f"seed {seed} is out of range: give one from 0 to 2**32 - 1")
    for name, data in (("train", train), ("test", test)):
        if not 1 <= clients <= len(data):
            raise ValueError(
                f"{clients} clients cannot share {len(data)} {name} images: ask for 1 to {len(data)}"
            )
        shape, kind = data.x.shape, data.x.dtype
        if len(shape) not in (3, 4) or (len(shape) == 4 and shape[1] not in (1, 3)):
            raise ValueError(
                f"{name} images have shape {shape}: give (n, h, w), or (n, c, h, w) with c 1 or 3"
            )
        if kind != np.uint8 and not (data.x.min() >= 0 and data.x.max() <= 1):
            raise ValueError(f"{name} images are {kind} outside 0 to 1: give uint8, or scale them to 0..1")
    if train.x.shape[1:] != test.x.shape[1:]:
        raise ValueError(
            f"train images are {train.x.shape[1:]} but test images {test.x.shape[1:]}: make them alike"
        )


def labels(data: Dataset) -> npt.NDArray[np.int64]:
    """The classes of `data`. Raises ValueError when it is unlabelled."""
    if data.y is None:
        raise ValueError("the data set is unlabelled: generators need the classes")
    return data.y


def class_count(train: Dataset, test: Dataset, needed: int) -> int:
    """How many classes there are, numbered from 0. Raises ValueError when the level needs more."""
    count = 1 + max(int(labels(train).max()), int(labels(test).max()))
    if needed > count:
        raise ValueError(f"this level needs {needed} classes and the data have {count}: choose another level")
    return count


def split_basic(train: Dataset, test: Dataset, clients: int, seed: int) -> Iterator[tuple[Dataset, Dataset]]:
    """Each device's train and test part: shuffled, disjoint, equal, the last with the remainder on top."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(train), generator=generator).numpy()
    test_order = torch.randperm(len(test), generator=generator).numpy()
    for device in range(clients):
        yield train.subset(_share(order, device, clients)), test.subset(_share(test_order, device, clients))


def _share(order: npt.NDArray[np.int64], device: int, clients: int) -> npt.NDArray[np.int64]:
    size = len(order) // clients
    end = len(order) if device == clients - 1 else (device + 1) * size
    return order[device * size : end]


def first_seen(keys: Sequence[Hashable]) -> list[int]:
    """Keys numbered 0, 1, ... in the order in which each first occurs: a b a c -> 0 1 0 2."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(key, len(numbers)) for key in keys]


def rotate(images: npt.NDArray[Any], degrees: float) -> npt.NDArray[Any]:
    """`images` (..., h, w) turned counter-clockwise about their centre at their size, 0 where nothing was.

    Nearest neighbour, pixel for pixel what Pillow's `Image.rotate(degrees)` gives.
    """
    height, width = images.shape[-2:]
    source, outside = _rotation(height, width, degrees)
    turned = np.take(images.reshape(*images.shape[:-2], height * width), source, axis=-1)
    turned[..., outside] = 0
    return turned.reshape(images.shape)


@functools.lru_cache(maxsize=64)
def _rotation(height: int, width: int, degrees: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """For each output pixel, in reading order: the input pixel it shows, and whether that lies outside."""
    # Pillow rounds both to 15 digits, which makes the multiples of 90 exact, and steps in 16.16 fixed point.
    cosine = round(math.cos(math.radians(degrees)), 15)
    sine = round(math.sin(math.radians(degrees)), 15)
    start_x = width / 2 - cosine * width / 2 + sine * height / 2
    start_y = height / 2 - sine * width / 2 - cosine * height / 2

    def fixed(value: float) -> int:
        return math.floor(value * 65536 + 0.5)

    # A pixel is looked up at its middle, hence the halves.
    y, x = np.mgrid[0:height, 0:width]
    from_x = (fixed(start_x + cosine / 2 - sine / 2) + x * fixed(cosine) + y * fixed(-sine)) >> 16
    from_y = (fixed(start_y + sine / 2 + cosine / 2) + x * fixed(sine) + y * fixed(cosine)) >> 16
    outside = (from_x < 0) | (from_x >= width) | (from_y < 0) | (from_y >= height)
    return np.where(outside, 0, from_y * width + from_x).ravel(), outside.ravel()


def unit(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Images as `check` takes them -> float32 (n, c, h, w) in [0, 1], always a copy; (n, h, w) has c = 1."""
    top = np.float32(255 if images.dtype == np.uint8 else 1)
    scaled: npt.NDArray[np.float32] = np.divide(images, top, dtype=np.float32)
    return scaled if scaled.ndim == 4 else scaled[:, np.newaxis]


def colour(images: npt.NDArray[Any], name: str) -> npt.NDArray[np.float32]:
    """Images as `check` takes them -> float32 (n, 3, h, w); those of one channel get three equal ones first.

    `name`: "red", "green" or "blue" sets that channel to 1 at every pixel, so that the background takes the
    colour and the figure shows in the other two (ANDA, `color_dataset`); "gray" leaves them as they are.
    """
    scaled = unit(images)
    coloured = scaled if scaled.shape[1] == 3 else np.repeat(scaled, 3, axis=1)
    if name != "gray":
        coloured[:, CHANNELS[name]] = 1
    return coloured
