"""P(Y) by degrees: every device draws how much it has of each class from a Dirichlet distribution.

Device by device, a mixture of the classes is drawn from Dir(alpha); images are then dealt by it, without
replacement, until the device has its equal share. A class that is used up drops out of the mixtures of those
who come later. Test images are dealt in the proportions that came out for the train set, so that a device is
tested on what it has seen. Small alphas make devices of one or two classes.

Levels: alpha 100, 10, 3, 1, 0.5, 0.3, 0.1 and 0.05. FMCL and most others report 0.1, which is level 7.

Numpy stream: 1. a permutation of the train set, 2. of the test set; 3. per device: `dirichlet` of the classes
that are left, then one `choice` for each of its images.

Source: Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual
Classification, 2019, section 3.1. FMCL, section 4.2, says no more than "a Dirichlet distribution over class
labels"; sizes are equal here, as a share of each class for each device leaves devices with nothing.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from shoal.core.data.dataset import Dataset
from shoal.simulation.images import unit
from shoal_lab.shifts.base import DeviceData, class_count, labels

ALPHAS = (100.0, 10.0, 3.0, 1.0, 0.5, 0.3, 0.1, 0.05)


def make(level: int, clients: int, seed: int, train: Dataset, test: Dataset) -> list[DeviceData]:
    """Devices that are all of a `concept` of their own. See `shoal_lab.shifts.make`."""
    classes = class_count(train, test, needed=1)
    stream = np.random.RandomState(seed)
    pools, test_pools = (_by_class(data, classes, stream) for data in (train, test))
    counts = deal(ALPHAS[level - 1], len(train) // clients, clients, [len(pool) for pool in pools], stream)
    ends = np.cumsum(counts, axis=0)
    devices = []
    for device in range(clients):
        rows, test_rows = [], []
        for label, (pool, test_pool) in enumerate(zip(pools, test_pools, strict=True)):
            end, start = ends[device, label], ends[device, label] - counts[device, label]
            rows.append(pool[start:end])
            scale = len(test_pool) / max(len(pool), 1)
            test_rows.append(test_pool[round(start * scale) : round(end * scale)])
        if not sum(map(len, test_rows)):
            raise ValueError("a device is left without test images: ask for fewer clients")
        own, own_test = (
            data.subset(stream.permutation(np.concatenate(found)))
            for data, found in ((train, rows), (test, test_rows))
        )
        devices.append(DeviceData(Dataset(unit(own.x), own.y), Dataset(unit(own_test.x), own_test.y), device))
    return devices


def deal(
    alpha: float, share: int, clients: int, available: list[int], stream: np.random.RandomState
) -> npt.NDArray[np.int64]:
    """(clients, classes): how many images of each class each device gets, `share` in all."""
    left = np.array(available)
    counts = np.zeros((clients, len(left)), np.int64)
    for own in counts:
        mixture = stream.dirichlet(np.full(len(left), alpha))
        while (missing := share - int(own.sum())) > 0:
            # Where alpha is small, all that a mixture has weight for may be used up: the rest serves then.
            weights = np.where(left > 0, np.maximum(mixture, 1e-12), 0.0)
            drawn = stream.choice(len(left), missing, p=weights / weights.sum())
            taken = np.minimum(np.bincount(drawn, minlength=len(left)), left)
            own += taken
            left -= taken
    return counts


def _by_class(data: Dataset, classes: int, stream: np.random.RandomState) -> list[npt.NDArray[np.int64]]:
    """The rows of each class, shuffled."""
    order = stream.permutation(len(data))
    return [order[labels(data)[order] == label] for label in range(classes)]
