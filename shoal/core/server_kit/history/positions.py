"""A map of a fleet in two dimensions, of the descriptors that its devices have released."""

from collections.abc import Mapping

import numpy as np

from shoal.core.exchange.parts import Descriptor, FloatArray
from shoal.core.server_kit.descriptors import aligned
from shoal.core.server_kit.history.records import Position
from shoal.core.types import DeviceId

MIN_DEVICES = 3
"""Fewer devices than this have no map."""


def positions(described: Mapping[DeviceId, Descriptor]) -> dict[DeviceId, Position]:
    """Where the devices lie; empty if there are too few.

    The descriptors were released before, with their noise, so that the map costs no privacy. Each coordinate
    is divided by its typical uncertainty over the devices; the axes are then the two principal directions, so
    they show what differs most beyond chance. Deterministic, up to the last bits of the linear algebra.
    """
    if len(described) < MIN_DEVICES:
        return {}
    names = sorted(described)
    values, errors = _coordinates([described[name] for name in names])
    unit = np.sqrt(np.maximum(np.median(errors, axis=0), 1e-12 * (1e-30 + values.var(axis=0))))
    unit = np.where(unit > 0.0, unit, 1.0)
    scaled = (values - values.mean(axis=0)) / unit
    axes = _axes(scaled)
    places = scaled @ axes
    spread = np.einsum("nd,da,db->nab", errors / unit**2, axes, axes)
    return {
        name: Position(*map(float, (x, y, s[0, 0], s[0, 1], s[1, 1])))
        for name, (x, y), s in zip(names, places, spread, strict=True)
    }


def _coordinates(described: list[Descriptor]) -> tuple[FloatArray, FloatArray]:
    """(n, d) means of the rows that most devices know, and their variances. An unknown mean is the middle of
    the others', with their spread as its variance."""
    table = aligned(described)
    errors = table.errors
    known = np.isfinite(errors) & table.known[:, :, None] & (table.counts > 1.0)[:, :, None]
    rows = known[:, :, 0].mean(axis=0) > 0.5
    rows[0] = True
    known, means = known[:, rows], np.where(known, table.means, 0.0)[:, rows]
    count = np.maximum(known.sum(axis=0), 1)
    middle = means.sum(axis=0) / count
    scatter = np.where(known, (means - middle) ** 2, 0.0).sum(axis=0) / count
    values = np.where(known, means, middle)
    found = np.where(known, np.where(known, errors[:, rows], 0.0), scatter)
    return values.reshape(len(described), -1), found.reshape(len(described), -1)


def _axes(scaled: FloatArray) -> FloatArray:
    """(d, 2): the principal directions; each points to where its largest component is positive."""
    count, dims = scaled.shape
    if dims <= count:
        _, vectors = np.linalg.eigh(scaled.T @ scaled)
        axes = vectors[:, ::-1][:, :2]
    else:
        _, left = np.linalg.eigh(scaled @ scaled.T)
        axes = scaled.T @ left[:, ::-1][:, :2]
        axes = axes / np.maximum(np.linalg.norm(axes, axis=0), 1e-300)
    if axes.shape[1] < 2:
        axes = np.hstack([axes, np.zeros((dims, 2 - axes.shape[1]))])
    largest = np.abs(axes).argmax(axis=0)
    signs = np.where(axes[largest, np.arange(2)] < 0.0, -1.0, 1.0)
    found: FloatArray = axes * signs
    return found
