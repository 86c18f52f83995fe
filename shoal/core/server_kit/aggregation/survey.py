"""What the rules have to know of all updates of a round before they combine them, in one pass: how long they
are, and how they lie to the middle of all."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import BLOCK
from shoal.core.server_kit.aggregation.influence import bearings
from shoal.core.server_kit.aggregation.pieces import Job, Part, Piece, helpers, pieces_of, results
from shoal.core.server_kit.clustering.distances import MATRIX
from shoal.core.types import DeviceId, Tensors


@dataclass(frozen=True, eq=False)
class Survey:
    """norms: L2, of each update. cosines: with the middle of all, of each update that is not zero."""

    norms: Mapping[DeviceId, float]
    cosines: Mapping[DeviceId, float]


def survey(
    models: Mapping[DeviceId, Tensors], origins: Mapping[DeviceId, Tensors], together: int = MATRIX
) -> Survey:
    """models: what the devices reported, which began with `origins`. together: bytes of updates in memory at
    a time. An origin may be computed again for each block that is read.
    """
    devices = sorted(models)
    base = origins[devices[0]]
    floats = {name: like for name, like in base.items() if like.dtype.kind == "f"}
    most = {name: max(1, min(together // (8 * len(devices)), like.size)) for name, like in floats.items()}
    pieces = pieces_of(floats, most)
    one_origin = all(each is base for each in origins.values())
    workers = helpers([models[device] for device in devices]) if one_origin else None
    sums = np.zeros(2 * len(devices) + 1)
    if workers:
        sent = [Part(models[device]) for device in devices]
        found = results(workers, "bearings", sent, base, pieces)
        for piece in pieces:  # in the order in which one process adds
            sums += found[piece]
    else:
        for piece in pieces:
            sums += bearings(_steps(models, origins, devices, piece))
    squares, products = sums[: len(devices)], sums[len(devices) : -1]
    lengths, middle = np.sqrt(squares), math.sqrt(sums[-1])
    norms = dict(zip(devices, lengths.tolist(), strict=True))
    return Survey(
        norms,
        {
            device: float(product) / (norms[device] * middle)
            for device, product in zip(devices, products, strict=True)
            if norms[device] * middle > 0.0
        },
    )


def norm(model: Tensors, base: Tensors) -> float:
    """L2 norm of the update, over all tensors of floats; infinite if it is beyond float64."""
    total = 0.0
    for name, start, stop in pieces_of(base, dict.fromkeys(base, BLOCK)):
        if base[name].dtype.kind == "f":
            part = slice(start, stop)
            with np.errstate(over="ignore"):
                step = model[name].reshape(-1)[part].astype(np.float64) - base[name].reshape(-1)[part]
                total += float(np.square(step, out=step).sum())
    return math.sqrt(total)


def bearings_in(job: Job, piece: Piece) -> FloatArray:
    """In a worker: `bearings` of a piece."""
    name, start, stop = piece
    rows = np.empty((len(job.parts), stop - start))
    for row, part in zip(rows, job.parts, strict=True):
        row[:] = part.model[name].reshape(-1)[start:stop]
    with np.errstate(over="ignore"):
        rows -= job.base[piece]
    return bearings(rows)


def _steps(
    models: Mapping[DeviceId, Tensors],
    origins: Mapping[DeviceId, Tensors],
    devices: Sequence[DeviceId],
    piece: Piece,
) -> FloatArray:
    """(n, width): some coordinates of all updates."""
    name, start, stop = piece
    rows, old, origin = np.empty((len(devices), stop - start)), np.empty(stop - start), None
    for row, device in zip(rows, devices, strict=True):
        # To convert first and subtract then is twice as fast as NumPy's conversion in between.
        row[:] = models[device][name].reshape(-1)[start:stop]
        if origins[device] is not origin:
            origin = origins[device]
            old[:] = origin[name].reshape(-1)[start:stop]
        with np.errstate(over="ignore"):
            row -= old
    return rows
