"""P(X): every device sees the same things, each through its own rotation and color.

A device picks one pattern, an angle with a color, for all its images. Angles are the multiples of 360 / n
degrees, n = 2, 3, 4, 5 at levels 1 to 4 and again at 5 to 8; levels 1 to 4 keep the original color, and from
level 5 on the color is red, blue or green. Images are rotated first and colored afterward. Patterns are
picked with replacement: 10 devices of 6 patterns hold 5 different ones on average.

Numpy stream: 1. `randint(0, patterns, size=clients)`: the pattern of each device.
Torch stream: as in `base`.

Source: FLUX Table 9, column P(X); ANDA, `split_feature_skew_strict`.
"""

from __future__ import annotations

import itertools

import numpy as np

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import rotate
from shoal_lab.datasets.pixels import color
from shoal_lab.shifts.base import DeviceData, split_basic


def patterns(level: int) -> list[tuple[float, str]]:
    """The patterns of a level, (degrees counterclockwise, color), in the order of their ids."""
    angles = 2 + (level - 1) % 4
    colors = ["gray"] if level <= 4 else ["red", "blue", "green"]
    return list(itertools.product([i * 360 / angles for i in range(angles)], colors))


def drawn(level: int, clients: int, seed: int) -> list[int]:
    """The id of each device's pattern."""
    ids: list[int] = np.random.RandomState(seed).randint(0, len(patterns(level)), size=clients).tolist()
    return ids


def make(level: int, clients: int, seed: int, train: Dataset, test: Dataset) -> list[DeviceData]:
    """Devices whose `concept` is the id of their pattern in `patterns(level)`. See
    `shoal_lab.shifts.make`."""
    bank = patterns(level)
    ids = drawn(level, clients, seed)
    parts = split_basic(train, test, clients, seed)
    return [
        DeviceData(seen(own_train, *bank[number]), seen(own_test, *bank[number]), concept=number)
        for number, (own_train, own_test) in zip(ids, parts, strict=True)
    ]


def seen(data: Dataset, degrees: float, name: str) -> Dataset:
    return Dataset(color(rotate(data.x, degrees), name), data.y)
