"""P(Y|X): every device sees the same images, and some of the classes go by exchanged names.

`level` classes, or as many tenths of 100, are drawn once; every device permutes their names in its own way,
in train and test alike. A permutation may leave names in place, and two devices may draw the same one. Level
1 permutes one name of ten: all agree.

Numpy stream:
1. `choice(classes, level, replace=False)`: the classes whose names are exchanged;
2. per device: one `uniform`, then one `shuffle` of the names. The uniform is the recipe's share of renamed
   images, here always 1.
Torch stream: as in `base`. The recipe goes on drawing from it for each image; at a share of 1 that changes
nothing.

Source: FLUX Table 9, column P(Y|X); ANDA, its generator that swaps labels, called
`split_label_condition_skew` in some versions and `split_feature_condition_skew` in others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import unit
from shoal_lab.shifts.base import DeviceData, class_count, first_seen, labels, of_ten, split_basic


def renamings(level: int, clients: int, seed: int, classes: int) -> npt.NDArray[np.int64]:
    """(clients, classes): the name that each device gives to each class."""
    stream = np.random.RandomState(seed)
    exchanged = stream.choice(classes, of_ten(level, classes), replace=False)
    names = np.tile(np.arange(classes), (clients, 1))
    for own in names:
        stream.uniform(1, 1)
        shuffled = exchanged.copy()
        stream.shuffle(shuffled)
        own[exchanged] = shuffled
    return names


def make(level: int, clients: int, seed: int, train: Dataset, test: Dataset) -> list[DeviceData]:
    """Devices whose `concept` numbers their renaming, in the order first seen. See
    `shoal_lab.shifts.make`."""
    names = renamings(level, clients, seed, class_count(train, test, needed=level))
    concepts = first_seen([tuple(own.tolist()) for own in names])
    parts = split_basic(train, test, clients, seed)
    return [
        DeviceData(renamed(own_train, own), renamed(own_test, own), concept)
        for own, concept, (own_train, own_test) in zip(names, concepts, parts, strict=True)
    ]


def renamed(data: Dataset, names: npt.NDArray[np.int64]) -> Dataset:
    return Dataset(unit(data.x), names[labels(data)])
