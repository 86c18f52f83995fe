"""P(X|Y): every device sees the same classes, and turns the images of some of them.

`level` classes, or as many tenths of 100, are drawn once; for each of them every device draws its own angle
out of 0, 90, 180 and 270 degrees, and turns all its images of that class by it. From level 3 on nearly every
device is a distribution of its own. Images come out in three equal channels.

Numpy stream:
1. `choice(classes, level, replace=False)`: the classes that are turned;
2. the same once more: the classes that the recipe would color. FLUX colors none, but the draw is made;
3. per device, per turned class in increasing order: `choice` of an angle.
Torch stream: as in `base`.

Source: FLUX Table 9, column P(X|Y), and appendix F.1; ANDA, its generator of targeted rotation, called
`split_feature_condition_skew` in some versions and `split_label_condition_skew` in others.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import rotate
from shoal_lab.datasets.pixels import color
from shoal_lab.shifts.base import DeviceData, class_count, first_seen, labels, of_ten, split_basic

ANGLES = (0, 90, 180, 270)


def angles(level: int, clients: int, seed: int, classes: int) -> npt.NDArray[np.int64]:
    """(clients, classes): by how many degrees each device turns each class, counter-clockwise."""
    stream = np.random.RandomState(seed)
    count = of_ten(level, classes)
    turned = stream.choice(classes, count, replace=False)
    stream.choice(classes, count, replace=False)
    degrees = np.zeros((clients, classes), np.int64)
    for own in degrees:
        for number in sorted(turned):
            own[number] = stream.choice(ANGLES)
    return degrees


def make(level: int, clients: int, seed: int, train: Dataset, test: Dataset) -> list[DeviceData]:
    """Devices whose `concept` numbers their angles, in the order first seen. See `shoal_lab.shifts.make`."""
    degrees = angles(level, clients, seed, class_count(train, test, needed=level))
    concepts = first_seen([tuple(own.tolist()) for own in degrees])
    parts = split_basic(train, test, clients, seed)
    return [
        DeviceData(turned(own_train, own), turned(own_test, own), concept)
        for own, concept, (own_train, own_test) in zip(degrees, concepts, parts, strict=True)
    ]


def turned(data: Dataset, degrees: npt.NDArray[np.int64]) -> Dataset:
    """Each image of `data` turned by the angle of its class."""
    per_image = degrees[labels(data)]
    images = data.x.copy()
    for angle in ANGLES[1:]:
        chosen = per_image == angle
        images[chosen] = rotate(images[chosen], angle)
    return Dataset(color(images, "gray"), data.y)
