"""Where the data of each cluster lie, estimated from its devices' descriptors: what newcomers are given.

A cluster's density is a mixture of normal distributions, one for each class, and a wide one, for samples of
classes that it does not know. Means and variances are those of all samples of the cluster's devices together;
a variance contains how much its devices differ, and how uncertain the mean is, from few samples and from
privacy noise. Where no device describes classes, there is one distribution for all samples.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from shoal.core.exchange.parts import Descriptor, FloatArray
from shoal.core.server_kit.descriptors import Table, aligned
from shoal.core.server_kit.estimates import MIN_COUNT
from shoal.core.server_kit.fleet.evidence import MIN_VARIANCE, PRIOR_SAMPLES
from shoal.core.types import DeviceId, ModelKey, Tensors

UNSEEN = 1e-3
"""The share of samples that may be of a class of which the cluster has none."""
CLASS_PRIOR = 0.5
"""A class counts for half a sample more than there are, so that none has the share 0 by chance."""
VARIANCE_FACTOR = 2.0
"""By which factor the variance of samples of unknown classes exceeds that of all samples."""


def cluster_densities(
    described: Mapping[DeviceId, Descriptor],
    assignments: Mapping[DeviceId, ModelKey],
    names: Sequence[ModelKey],
) -> Tensors | None:
    """The densities of the clusters `names`, as `shoal.core.exchange.choosing.ClusterDensities` has them.

    described: the descriptors of devices, some of which may belong to none of the clusters. A cluster of
    which nothing is known has the density of all devices together. None where nothing is known of any.
    """
    devices = [device for device in sorted(described) if assignments.get(device) in names]
    if not devices:
        return None
    table = aligned([described[device] for device in devices])
    homes = np.array([names.index(assignments[device]) for device in devices])
    everyone = pooled(table, np.ones(len(devices), np.bool_))
    if everyone[0][0] < MIN_COUNT:
        return None
    own = [pooled(table, homes == index) for index in range(len(names))]
    own = [each if each[0][0] >= MIN_COUNT else everyone for each in own]
    counts, means, variances, errors = (np.stack(parts) for parts in zip(*own, strict=True))
    return _mixtures(counts, means, variances, errors)


_Moments = tuple[FloatArray, FloatArray, FloatArray, FloatArray]
"""Counts (rows,), and means, variances of a sample and variances of the means by noise, (rows, l)."""


def pooled(table: Table, mine: npt.NDArray[np.bool_]) -> _Moments:
    """The moments of all samples of some devices together; row 0 is over all classes."""
    counts = np.where(table.known[mine], np.maximum(table.counts[mine], 0.0), 0.0)
    total = counts.sum(axis=0)
    weights = (counts / np.maximum(total, 1e-300))[:, :, None]
    noise = np.where(weights > 0.0, table.mean_noise[mine], 0.0)
    means = (weights * table.means[mine]).sum(axis=0)
    # The part by which noise makes the means of devices differ is no difference of their data.
    apart = np.maximum((table.means[mine] - means) ** 2 - noise, 0.0)
    variances = (weights * (table.variances[mine] + apart)).sum(axis=0)
    return total, means, variances, (weights**2 * noise).sum(axis=0)


def _mixtures(counts: FloatArray, means: FloatArray, variances: FloatArray, errors: FloatArray) -> Tensors:
    """counts: (K, 1 + U). means, variances, errors: (K, 1 + U, l)."""
    n = counts[:, :, None]
    own = n[:, 1:].sum(axis=(0, 1))
    rows = slice(1, None) if own.size and own.sum() > 0.0 else slice(0, 1)
    usual = (n[:, rows] * variances[:, rows]).sum(axis=(0, 1)) / n[:, rows].sum(axis=(0, 1))
    shrunk = (n * variances + PRIOR_SAMPLES * usual) / (n + PRIOR_SAMPLES)
    known = counts >= MIN_COUNT
    # A sample differs from an estimated mean by its own deviation, and by the error of the mean.
    spread = shrunk * (1.0 + 1.0 / np.maximum(n, 1.0)) + errors
    shares = np.zeros_like(counts)
    if rows == slice(0, 1):
        shares[:, 0] = 1.0
    else:
        classes = counts[:, 1:] + CLASS_PRIOR
        classes = classes / classes.sum(axis=1, keepdims=True)
        shares[:, 1:] = np.where(known[:, 1:], classes, 0.0)
        shares[:, 0] = UNSEEN + np.where(known[:, 1:], 0.0, classes).sum(axis=1)
        spread[:, 0] = VARIANCE_FACTOR * variances[:, 0] + errors[:, 0]
    there = (shares > 0.0)[:, :, None]
    least = MIN_VARIANCE * max(float(variances[:, 0].max()), 1e-30)
    return {
        "shares": shares,
        "means": np.where(there, means, 0.0),
        "variances": np.where(there, np.maximum(spread, least), 1.0),
    }
