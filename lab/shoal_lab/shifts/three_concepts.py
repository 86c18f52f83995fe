"""All shifts at once (FedRC): uneven classes, corrupted images, and other names for the classes.

A device has its equal share of the images, dealt by a Dirichlet distribution with alpha for each class; a
tenth of them, at random, is its test part. It is of one of three concepts: the classes' own names, C - 1 - y,
or (y + 1) mod C. On some devices all images are corrupted, in one way of `shoal_lab.datasets.corruptions` and
at one severity; one of the ways is to leave them as they are. Of all devices there are, by level,

| level | as                   | alpha | own names: clean, corrupted | each other one: clean, corrupted |
|-------|----------------------|-------|-----------------------------|----------------------------------|
| 1     | H.8, with its alpha  | 0.1   | 30 %, 20 %                  | 20 %, 5 %                        |
|       | as in the code       |       |                             |                                  |
| 2     | the authors' code    | 0.1   | 20 %, 20 %                  | 20 %, 10 %                       |
| 3     | the text, 5.1 and H.8| 1.0   | 30 %, 20 %                  | 20 %, 5 %                        |

The text says 1.0; the code draws from Dirichlet(1.0 p), with p the shares of the classes, 0.1 each.

`concept` is which names a device uses: devices of one concept may have other classes and other looks, and
should share a model all the same. `newcomers` has the devices by which the paper measures global accuracy,
one for each concept: the whole test set, balanced and clean, 90 % of it to be placed by and 10 % to test on.

Streams of our own generators: "deal", as `shoal_lab.shifts.dirichlet` says; "devices": which device gets
which place in the table; "device", number: rows of its test part, corruption, severity, and the corruption's
own.

Source: Guo et al., FedRC, section 5.1 and appendix H.8.
"""

import numpy as np
import numpy.typing as npt

from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import derive, generator
from shoal.simulation.images import unit
from shoal_lab.datasets.corruptions import CORRUPTIONS, SEVERITIES
from shoal_lab.shifts.base import DeviceData, class_count, labels
from shoal_lab.shifts.dirichlet import deal

LEVELS = range(1, 4)
CONCEPTS = 3
MIX = (
    ((0, False, 0.30), (0, True, 0.20), (1, False, 0.20), (1, True, 0.05), (2, False, 0.20), (2, True, 0.05)),
    ((0, False, 0.20), (0, True, 0.20), (1, False, 0.20), (1, True, 0.10), (2, False, 0.20), (2, True, 0.10)),
    ((0, False, 0.30), (0, True, 0.20), (1, False, 0.20), (1, True, 0.05), (2, False, 0.20), (2, True, 0.05)),
)
"""By level: concept, whether corrupted, share of the devices."""
ALPHAS = (0.1, 0.1, 1.0)
"""By level, of the Dirichlet distribution."""
TEST, PLACED_BY = 0.1, 0.9


def make(level: int, clients: int, seed: int, train: Dataset, test: Dataset) -> list[DeviceData]:
    """See `shoal_lab.shifts.make`. Only images of `train` are used: those of `test` are for newcomers."""
    classes = class_count(train, test, needed=2)
    stream = np.random.RandomState(derive(seed, "deal") % (1 << 32))
    order = stream.permutation(len(train))
    pools = [order[labels(train)[order] == label] for label in range(classes)]
    counts = deal(ALPHAS[level - 1], len(train) // clients, clients, [len(pool) for pool in pools], stream)
    ends = np.cumsum(counts, axis=0)
    places = generator(seed, "devices").permutation(clients)
    devices = []
    for device in range(clients):
        rows = [pool[end - n : end] for pool, end, n in zip(pools, ends[device], counts[device], strict=True)]
        own = train.subset(np.concatenate(rows))
        concept, corrupted = _place(level, places[device] / clients)
        devices.append(_device(own, concept, corrupted, classes, generator(seed, "device", device)))
    return devices


def newcomers(seed: int, train: Dataset, test: Dataset) -> list[DeviceData]:
    """One device for each concept, of images that no device trained on."""
    classes = class_count(train, test, needed=2)
    order = generator(seed, "newcomers").permutation(len(test))
    cut = int(PLACED_BY * len(test))
    found = []
    for concept in range(CONCEPTS):
        placed_by, measured = (
            Dataset(unit(part.x), named(labels(part), concept, classes))
            for part in (test.subset(order[:cut]), test.subset(order[cut:]))
        )
        found.append(DeviceData(placed_by, measured, concept))
    return found


def named(y: npt.NDArray[np.int64], concept: int, classes: int) -> npt.NDArray[np.int64]:
    """What a concept calls the classes."""
    return (y, classes - 1 - y, (y + 1) % classes)[concept]


def _place(level: int, position: float) -> tuple[int, bool]:
    """Concept, and whether corrupted, at a position of 0 to 1 in the table."""
    reached = 0.0
    for concept, corrupted, share in MIX[level - 1]:
        reached += share
        if position < reached - 1e-9:
            return concept, corrupted
    return concept, corrupted


def _device(
    data: Dataset, concept: int, corrupted: bool, classes: int, chance: np.random.Generator
) -> DeviceData:
    order = chance.permutation(len(data))
    images = unit(data.x)
    if corrupted:
        way = CORRUPTIONS[str(chance.choice(list(CORRUPTIONS)))]
        images = way(images, int(chance.choice(list(SEVERITIES))), chance)
    renamed = Dataset(images, named(labels(data), concept, classes))
    cut = max(1, round(TEST * len(data)))
    return DeviceData(renamed.subset(order[cut:]), renamed.subset(order[:cut]), concept)
