"""How far apart devices' updates are, computed block by block and without ever holding all updates in memory.

The inner products of all pairs determine the distances, the angles, and points in at most n dimensions whose
distances are exactly those of the updates, so that any clustering of points can be used.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import blocks, floats_of, manifest_of, part_of
from shoal.core.types import DeviceId, Tensors

MATRIX = 1 << 25
"""Bytes of updates that are in memory at a time: a row for each, with as many coordinates as fit."""
ROUNDING = 1e-12
"""Relative: a squared distance or an eigenvalue below it is a rounding error of float64."""
LONGEST = 1e140
"""Limit of the magnitude of an update's coordinate, so that no device makes sums of products infinite."""


def inner_products(models: Sequence[Tensors], bases: Sequence[Tensors]) -> FloatArray:
    """(n, n): inner products of the updates `models[i] - bases[i]`, over all tensors of floats.

    Memory: n x n values, one tensor, and `MATRIX` bytes of rows, however large the models are.
    """
    products = np.zeros((len(models), len(models)))
    if not models:
        return products
    floats = floats_of(manifest_of(bases[0]))
    most = max(min(MATRIX // (8 * len(models)), max((spec.size for spec in floats), default=0)), 1)
    matrix, old = np.empty((len(models), most)), np.empty(most)
    for spec in floats:
        for part in blocks(spec.size, most):
            rows, origin = matrix[:, : part.stop - part.start], None
            for row, model, base in zip(rows, models, bases, strict=True):
                # To convert first and subtract then is twice as fast as NumPy's conversion in between.
                row[:] = part_of(model, spec.name, part)
                if base is not origin:
                    origin, old[: row.size] = base, part_of(base, spec.name, part)
                with np.errstate(over="ignore"):
                    row -= old[: row.size]
            if spec.dtype == "float64":
                np.clip(rows, -LONGEST, LONGEST, out=rows)
            products += rows @ rows.T
    return products


def of_devices(models: Mapping[DeviceId, Tensors], bases: Mapping[DeviceId, Tensors]) -> FloatArray:
    """`inner_products` of devices in the order of their ids. bases: the model that each one started from."""
    devices = sorted(models)
    return inner_products([models[each] for each in devices], [bases[each] for each in devices])


def euclidean(products: FloatArray) -> FloatArray:
    """(n, n) distances. Values within the rounding error of 0 are 0, so that equal updates have distance
    0."""
    squares = np.diagonal(products)
    squared = squares[:, None] + squares[None] - 2.0 * products
    squared[squared < ROUNDING * (squares[:, None] + squares[None])] = 0.0
    np.fill_diagonal(squared, 0.0)
    distances: FloatArray = np.sqrt((squared + squared.T) / 2.0)
    return distances


def cosines(products: FloatArray) -> FloatArray:
    """(n, n) cosines of the angles between updates, -1 to 1; 0 for an update that is zero.

    Updates of one direction have exactly 1: rounding errors are rounded off.
    """
    lengths = np.sqrt(np.diagonal(products))
    moved = np.outer(lengths, lengths)
    found = np.divide(products, moved, out=np.zeros_like(products), where=moved > 0)
    angles: FloatArray = np.clip(np.round(found, 12), -1.0, 1.0)
    np.fill_diagonal(angles, 1.0)
    return angles


def angular(products: FloatArray) -> FloatArray:
    """(n, n) Euclidean distances of the updates, each normalized to length 1: 0 to 2."""
    apart: FloatArray = np.sqrt(np.maximum(2.0 - 2.0 * cosines(products), 0.0))
    return apart


def points(products: FloatArray) -> FloatArray:
    """(n, r) points, r <= n, whose inner products are `products`; the longest axis comes first.

    Equal updates give equal points: rounding errors of the eigenvectors are rounded off.
    """
    values, vectors = np.linalg.eigh((products + products.T) / 2.0)
    order = np.argsort(-values, kind="stable")
    kept = order[values[order] > ROUNDING * max(values.max(initial=0.0), 0.0)]
    found: FloatArray = vectors[:, kept] * np.sqrt(values[kept])
    digits = 8 - int(np.floor(np.log10(np.abs(found).max()))) if found.size else 0
    return np.round(found, digits)
