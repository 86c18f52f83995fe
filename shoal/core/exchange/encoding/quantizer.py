"""Numbers in 8 or 4 bits: integer codes with a scale for each row, deterministic, the nearest code for each.

Models for newcomers are stored so (`shoal.core.exchange.choosing.compact`), and so are the updates of devices
(`shoal.core.exchange.encoding.updates`).
"""

from collections.abc import Mapping

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.types import Array

FINE, COARSE = 8, 4
"""Bits of a number. With 4, accuracy on digits is within half a point of that with whole models; with 3 it is
not: see docs/algorithms.md."""
MAX_CODE: Mapping[int, int] = {FINE: 127, COARSE: 7}
"""The largest code, by the number of bits; the smallest is as far below 0."""


def coded(values: FloatArray, base: FloatArray | None, most: int) -> tuple[Array, Array]:
    """Codes (rows, n) int8 and scales (rows,) float32 of `values` (rows, n).

    base: a reference of the same shape. A row is then coded as its difference from it if that is smaller; the
    scale of a row that is coded by itself has a sign. Rows that are not finite have a scale that is not.

    Example:
        >>> codes, scales = coded(np.array([[1.0, -0.5]]), None, MAX_CODE[FINE])
        >>> codes.tolist()
        [[127, -64]]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        own = np.abs(values).max(axis=1)
        apart = np.full_like(own, np.inf) if base is None else np.abs(values - base).max(axis=1)
        near = apart <= own
        shown = values if base is None else np.where(near[:, None], values - base, values)
        scale = (np.where(near, apart, own) / most).astype(np.float32)
        steps = shown / np.where(scale > 0.0, scale, 1.0)[:, None]
        codes = np.clip(np.rint(np.nan_to_num(steps)), -most, most).astype(np.int8)
    return codes, np.where(near, scale, -scale)


def bytes_of(numbers: int, bits: int) -> int:
    """The bytes that this many codes take."""
    return -(-numbers * bits // 8)


def narrow(codes: Array, bits: int) -> Array:
    """int8 codes as bytes, two in each if they have 4 bits."""
    if bits == FINE:
        return codes.view(np.uint8)
    pairs = np.append(codes, np.zeros(len(codes) % 2, np.int8)).reshape(-1, 2) + 8
    found: Array = (pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8)
    return found


def wide(data: Array, numbers: int, bits: int) -> Array:
    """Back."""
    if bits == FINE:
        return data.view(np.int8)
    return np.stack([data & 15, data >> 4], axis=1).reshape(-1)[:numbers].astype(np.int8) - 8
