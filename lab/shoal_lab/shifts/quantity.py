"""Quantity skew: devices of four concepts hold very different numbers of samples.

The first quarter of the devices has concept 0, the next concept 1, and so on. Kinds of concepts:

    features   all images turned by 0, 90, 180 or 270 degrees
    labels     two names exchanged: 1 and 7, 2 and 7, 4 and 7, or 3 and 8
    skew       strokes eroded by 3x3, dilated by 3x3, left as they are, or dilated by 8x8

Levels are the paper's three scenarios, by samples of each label that a device has:

    0   every device 50
    1   5, 20, 100, 200, 5, ... from device to device, so that every concept has devices of every size
    2   5, 20, 100 and 200, all devices of a concept the same

Images are taken in their shuffled order, label by label, and a size starts again at the first of them, as in
the authors' code: so devices of two sizes may share images, never two of one size. Where a label has too few
for that, all devices of the size get fewer. Test images, up to 10 a label, are dealt among all devices.

Torch stream: 1. a permutation of the train set, 2. of the test set.

Source: CORNFLQS, sections 2.2 and 3; sizes, swaps and kernels as in its authors' code, whose border is that
of OpenCV: what lies outside counts neither as ink nor as paper.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import rotate, unit
from shoal_lab.shifts.base import DeviceData, class_count, labels

LEVELS = range(3)
KINDS = ("features", "labels", "skew")
CONCEPTS = 4
SIZES = (5, 20, 100, 200)
EVEN, TESTED = 50, 10
SWAPS = ((1, 7), (2, 7), (4, 7), (3, 8))
ANGLES = (0, 90, 180, 270)


def sizes(level: int, clients: int) -> list[int]:
    """Samples of each label that each device has."""
    if level == 0:
        return [EVEN] * clients
    return [
        SIZES[(number if level == 1 else concept(number, clients)) % len(SIZES)] for number in range(clients)
    ]


def concept(number: int, clients: int) -> int:
    """Which of the four concepts a device has: contiguous quarters."""
    return number * CONCEPTS // clients


def make(kind: str, level: int, clients: int, seed: int, train: Dataset, test: Dataset) -> list[DeviceData]:
    """Devices whose `concept` is 0 to 3. See `shoal_lab.shifts.make`."""
    classes = class_count(train, test, needed=9 if kind == "labels" else 1)
    generator = torch.Generator().manual_seed(seed)
    pools, test_pools = (_by_class(data, classes, generator) for data in (train, test))
    wanted = sizes(level, clients)
    tested = [min(TESTED, len(pool) // clients) for pool in test_pools]
    if not sum(tested):
        raise ValueError(f"{clients} clients cannot share {len(test)} test images: ask for fewer")
    devices, given = [], dict.fromkeys(wanted, 0)
    for number, size in enumerate(wanted):
        group, place = wanted.count(size), given[size]
        given[size] += 1
        rows = [_slice(pool, min(size, len(pool) // group), place) for pool in pools]
        test_rows = [_slice(pool, count, number) for pool, count in zip(test_pools, tested, strict=True)]
        if not sum(map(len, rows)):
            raise ValueError(f"{group} devices cannot share {len(train)} train images: ask for fewer clients")
        own, own_test = (
            _seen(kind, concept(number, clients), data.subset(np.concatenate(found)))
            for data, found in ((train, rows), (test, test_rows))
        )
        devices.append(DeviceData(own, own_test, concept(number, clients)))
    return devices


def _seen(kind: str, number: int, data: Dataset) -> Dataset:
    """A device's samples as its concept has them."""
    if kind == "features":
        return Dataset(unit(rotate(data.x, ANGLES[number])), data.y)
    if kind == "labels":
        names = labels(data).copy()
        one, other = SWAPS[number]
        names[labels(data) == one], names[labels(data) == other] = other, one
        return Dataset(unit(data.x), names)
    return Dataset(_stroked(unit(data.x), number), data.y)


def _stroked(images: npt.NDArray[np.float32], number: int) -> npt.NDArray[np.float32]:
    """Images with thinner or thicker strokes: the lowest or highest value of a square around each pixel."""
    match number:
        case 0:
            return -extended(-images, 3)
        case 1:
            return extended(images, 3)
        case 3:
            return extended(images, 8)
    return images


def extended(images: npt.NDArray[np.float32], width: int) -> npt.NDArray[np.float32]:
    """Dilation of (..., h, w) by a square of `width`, anchored at its middle, the later of two."""
    before = width // 2
    edges = [(0, 0)] * (images.ndim - 2)
    for axis in (-1, -2):
        around = [*edges, (0, 0), (0, 0)]
        around[axis] = (before, width - 1 - before)
        padded = np.pad(images, around, constant_values=-np.inf)
        images = np.lib.stride_tricks.sliding_window_view(padded, width, axis).max(axis=-1)
    return images


def _by_class(data: Dataset, classes: int, generator: torch.Generator) -> list[npt.NDArray[np.int64]]:
    """The rows of each class, shuffled."""
    order = torch.randperm(len(data), generator=generator).numpy()
    return [order[labels(data)[order] == label] for label in range(classes)]


def _slice(pool: npt.NDArray[np.int64], count: int, place: int) -> npt.NDArray[np.int64]:
    return pool[place * count : (place + 1) * count]
