"""P(Y): every device holds only some of the classes, 11 - level of them, or as many tenths of 100.

Five sets of classes are drawn, and each device takes one. It drops its images of other classes and then
repeats images of those left, drawn with replacement, until it has about as many as before. So a device holds
duplicates, 3.3 of each image at level 8, and whatever is held out of its train set has copies in the rest.
The paper does not mention it; the published measurements were made so.

Numpy stream:
1. five times `choice(classes, 11 - level, replace=False)`: the sets;
2. per device: `choice` of one of five; then for train, and after it for test, with n images left:
   `choice(n, int(n * (classes / (11 - level) - 1)))`, the repeated images.
Torch stream: as in `base`.

Source: FLUX Table 9, column P(Y), and appendix F.1; ANDA, `split_label_skew_strict`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import unit
from shoal_lab.shifts.base import DeviceData, class_count, labels, of_ten, split_basic

SETS = 5


def make(
    level: int,
    clients: int,
    seed: int,
    train: Dataset,
    test: Dataset,
    looks: Sequence[Callable[[Dataset], Dataset]] = (),
) -> list[DeviceData]:
    """Devices whose `concept` is the number, 1 to 5, of their set of classes. See `shoal_lab.shifts.make`.

    Sets are numbered in the order drawn; where one was drawn twice, its first number stands for both.
    looks: for each device, what it does to its samples before those of other classes are dropped.
    """
    classes = class_count(train, test, needed=11 - level)
    kept = of_ten(11 - level, classes)
    stream = np.random.RandomState(seed)
    sets = [np.sort(stream.choice(classes, kept, replace=False)).tolist() for _ in range(SETS)]
    devices = []
    for number, (own_train, own_test) in enumerate(split_basic(train, test, clients, seed)):
        if looks:
            own_train, own_test = looks[number](own_train), looks[number](own_test)
        wanted = sets[stream.choice(SETS)]
        own_train = _restrict(own_train, wanted, classes, stream)
        own_test = _restrict(own_test, wanted, classes, stream)
        devices.append(DeviceData(own_train, own_test, concept=1 + sets.index(wanted)))
    return devices


def _restrict(data: Dataset, wanted: list[int], classes: int, stream: np.random.RandomState) -> Dataset:
    """Only the wanted classes of `data`, with images repeated in place of those dropped."""
    left = np.flatnonzero(np.isin(labels(data), wanted))
    if not len(left):
        raise ValueError(f"a device is left with no image of its classes {wanted}: ask for fewer clients")
    repeated = stream.choice(len(left), int(len(left) * (classes / len(wanted) - 1)))
    data = data.subset(np.concatenate([left, left[repeated]]))
    return Dataset(unit(data.x), data.y)
