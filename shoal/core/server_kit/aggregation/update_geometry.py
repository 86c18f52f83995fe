"""What the rules have to know of all updates of a round before they combine them, in one pass: how long they
are, and how they lie to the middle of all."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import blocks, floats_of, manifest_of, part_of
from shoal.core.server_kit.aggregation.influence import bearing, bearings
from shoal.core.server_kit.aggregation.parallel import Piece, pieces_of, results
from shoal.core.server_kit.clustering.distances import MATRIX
from shoal.core.types import Array, DeviceId, Tensors


@dataclass(frozen=True, eq=False)
class UpdateGeometry:
    """norms: L2, of each update. cosines: of each update that is not zero, see `influence.bearing`.

    apart: for each tensor of floats, (n,), in the order of the devices: the squared distances of the models
    from their middle; of the updates, if not all began with one model.
    """

    norms: Mapping[DeviceId, float]
    cosines: Mapping[DeviceId, float]
    apart: Mapping[str, FloatArray]


def geometry_of(
    models: Mapping[DeviceId, Tensors], origins: Mapping[DeviceId, Tensors], together: int = MATRIX
) -> UpdateGeometry:
    """models: what the devices reported, which began with `origins`. together: bytes of updates in memory at
    a time. An origin may be computed again for each piece that is read.
    """
    devices = sorted(models)
    base = origins[devices[0]]
    floats = floats_of(manifest_of(base))
    pieces = pieces_of(floats, len(devices), together)
    if all(each is base for each in origins.values()):
        found = results(_of_models, [models[device] for device in devices], base, pieces)
    else:
        found = _of_steps(models, origins, devices, pieces)
    of_tensors = {spec.name: np.zeros((4, len(devices))) for spec in floats}
    for (name, _, _), sums in found:
        of_tensors[name] += sums
    squares, products, middle, _ = sum(of_tensors.values(), np.zeros((4, len(devices))))
    cosines = bearing(squares, products, middle)
    return UpdateGeometry(
        dict(zip(devices, np.sqrt(squares).tolist(), strict=True)),
        {device: float(cosine) for device, cosine in zip(devices, cosines, strict=True) if cosine == cosine},
        {name: sums[3] for name, sums in of_tensors.items()},
    )


def norm(model: Tensors, base: Tensors) -> float:
    """L2 norm of the update, over all tensors of floats; infinite if it is beyond float64."""
    total = 0.0
    for name, like in base.items():
        if like.dtype.kind == "f":
            values, old = model[name].reshape(-1), like.reshape(-1)
            for block in blocks(like.size):
                with np.errstate(over="ignore"):
                    step = values[block].astype(np.float64) - old[block]
                    total += float(np.square(step, out=step).sum())
    return math.sqrt(total)


def _of_models(name: str, rows: Sequence[Array], base: Array) -> FloatArray:
    return bearings(rows, base)


def _of_steps(
    models: Mapping[DeviceId, Tensors],
    origins: Mapping[DeviceId, Tensors],
    devices: Sequence[DeviceId],
    pieces: Sequence[Piece],
) -> Iterator[tuple[Piece, FloatArray]]:
    """`bearings` of the updates themselves, where they began with several models."""
    for name, start, stop in pieces:
        part, origin, old = slice(start, stop), None, np.empty(0)
        rows: list[Array] = []
        for device in devices:
            if origins[device] is not origin:
                origin = origins[device]
                old = part_of(origin, name, part).astype(np.float64)
            with np.errstate(over="ignore"):
                rows.append(part_of(models[device], name, part) - old)
        yield (name, start, stop), bearings(rows, np.zeros(stop - start))
