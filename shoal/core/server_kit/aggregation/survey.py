"""What the rules have to know of all updates of a round, in one pass over them: how long they are, how they
point to each other, and their mean, for the usual round in which none of them has to be corrected.

A pass costs more than its arithmetic: each report is mapped from the disk and converted to float64. Lengths
and means have the same bits as those of `norm` and `tensors.weighted_mean`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import BLOCK, finish
from shoal.core.server_kit.aggregation.coordinates import blocks
from shoal.core.server_kit.aggregation.pieces import Part, helpers, pieces_of, results
from shoal.core.server_kit.clustering.distances import LONGEST, MATRIX, of_devices
from shoal.core.types import Array, DeviceId, Tensors


@dataclass(frozen=True, eq=False)
class Survey:
    """norms: L2, of each update. products: (n, n) inner products in the order of the devices' ids, if they
    were asked for. mean: the tensors of floats, if weights were given and no workers were asked."""

    norms: Mapping[DeviceId, float]
    products: FloatArray | None = None
    mean: dict[str, Array] | None = None


def survey(
    models: Mapping[DeviceId, Tensors],
    origins: Mapping[DeviceId, Tensors],
    base: Tensors,
    weights: Mapping[DeviceId, float] | None = None,
    compared: bool = False,
) -> Survey:
    """models: what the devices reported, which began with `origins`. weights: of the mean, with a positive
    sum. compared: whether the inner products are wanted.

    Memory: the mean, a tensor of float64 and at most `MATRIX` bytes.
    """
    devices = sorted(models)
    floats = {name: like for name, like in base.items() if like.dtype.kind == "f"}
    most = min(BLOCK, max((like.size for like in floats.values()), default=0))
    together = compared and 8 * most * len(devices) <= MATRIX
    if found := _norms_by_workers(models, origins, base):
        # In blocks of the same size as below, so that workers do not change the last bits.
        return Survey(found, of_devices(models, origins, most if together else 0) if compared else None)
    matrix = np.empty((len(devices) if together else 1, most))
    scratch, old = np.empty(most), np.empty(most)
    totals, products = dict.fromkeys(devices, 0.0), np.zeros((len(devices), len(devices)))
    mean: dict[str, Array] = {}
    for name, like in floats.items():
        sums = np.zeros(like.size if weights else 0)
        for block in blocks(like.size, BLOCK):
            width = min(BLOCK, like.size - block.start)
            rows, terms, start, origin = matrix[:, :width], scratch[:width], old[:width], None
            for place, device in enumerate(devices):
                step = rows[place if together else 0]
                step[:] = models[device][name].reshape(-1)[block]
                if weights:
                    sums[block] += np.multiply(step, weights[device], out=terms)
                if origins[device] is not origin:
                    origin = origins[device]
                    start[:] = origin[name].reshape(-1)[block]
                with np.errstate(over="ignore"):
                    step -= start
                    totals[device] += float(np.square(step, out=terms).sum())
            if together:
                if like.dtype == np.float64:
                    np.clip(rows, -LONGEST, LONGEST, out=rows)
                products += rows @ rows.T
        if weights:
            total = 0.0
            for device in devices:
                total += weights[device]
            mean[name] = finish(sums, total, like.dtype).reshape(like.shape)
    norms = {device: math.sqrt(total) for device, total in totals.items()}
    if compared and not together:
        products = of_devices(models, origins)
    return Survey(norms, products if compared else None, mean if weights else None)


def norm(model: Tensors, base: Tensors) -> float:
    """L2 norm of the update, over all tensors of floats; infinite if it is beyond float64."""
    return survey({"": model}, {"": base}, base).norms[""]


def _norms_by_workers(
    models: Mapping[DeviceId, Tensors], origins: Mapping[DeviceId, Tensors], base: Tensors
) -> dict[DeviceId, float] | None:
    """The norm of each update; None if no workers help, or updates began with different models."""
    workers = helpers(list(models.values())) if all(each is base for each in origins.values()) else None
    if workers is None:
        return None
    floats = {name: array for name, array in base.items() if array.dtype.kind == "f"}
    pieces = pieces_of(floats, dict.fromkeys(floats, BLOCK))
    found = results(workers, "squares", [Part(model) for model in models.values()], base, pieces)
    totals = [0.0] * len(models)
    for piece in pieces:  # in the order of `survey`
        for place, square in enumerate(found[piece]):
            totals[place] += float(square)
    return {device: math.sqrt(total) for device, total in zip(models, totals, strict=True)}
