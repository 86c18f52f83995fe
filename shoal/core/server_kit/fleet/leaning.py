"""How much the model of a device that is a cluster of its own should lean on what all clusters learn.

Few samples teach a network little, and it soon memorizes them. What other devices learn helps such a
device the more, the fewer samples it has, and the less devices differ. How much they do is the variance of
the means of their classes, in units of the variance of a sample: 1 / that is the number of samples of a class
after which its own mean says more than everyone's.

Source: Efron and Morris, Data Analysis Using Stein's Estimator and its Generalizations, JASA 1975, for the
form of the share; `SAMPLES` was chosen.
"""

from collections import Counter
from collections.abc import Mapping

import numpy as np

from shoal.core.exchange.parts import Descriptor
from shoal.core.server_kit.estimates import estimate
from shoal.core.server_kit.fleet.evidence import MEAN, evidence
from shoal.core.types import DeviceId, ModelKey

SAMPLES = 10.0
"""A network needs this many times the samples that a mean needs. Chosen of 1, 4 and 10 on HAPT and digits,
seeds 40 and 41."""
LEAST = 0.05
"""Devices count as differing by this much at least."""


def leaning(
    described: Mapping[DeviceId, Descriptor], assignments: Mapping[DeviceId, ModelKey]
) -> dict[ModelKey, float]:
    """The share, 0 to 1, of the clusters of one device, by which their steps go toward the mean of all.

    described: the descriptors of devices, some of which may have no cluster.
    """
    homes = {device: assignments[device] for device in sorted(described) if device in assignments}
    devices = Counter(homes.values())
    lonely = {device: home for device, home in homes.items() if devices[home] == 1}
    if not lonely or len(devices) < 2:
        return {}
    found = evidence([described[device] for device in homes], shares=False)
    means = found.of_number == MEAN
    values, errors, unit = found.values[:, means], found.errors[:, means], found.unit[means]
    known = np.isfinite(errors)
    count = known.sum(axis=0)
    several = count > 1
    values, errors, known, count, unit = (part[..., several] for part in (values, errors, known, count, unit))
    if not count.size:
        return {}
    middle = np.where(known, values, 0.0).sum(axis=0) / count
    scatter = np.where(known, np.square(values - middle), 0.0).sum(axis=0) / (count - 1.0)
    chance = np.where(known, errors, 0.0).sum(axis=0) / count
    differ = max(float((scatter - chance).sum() / unit.sum()), LEAST)
    worth = SAMPLES * (count.size / found.width) / differ
    counts = {device: float(estimate(described[device]).counts[0]) for device in lonely}
    return {home: worth / (worth + max(counts[device], 0.0)) for device, home in lonely.items()}
