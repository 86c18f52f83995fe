"""The trimmed mean of many values, for each coordinate at once: minima and maxima of whole rows, and no sort.

Batcher's odd-even merge sort (Sorting Networks and their Applications, 1968) compares fixed pairs, so each
comparison is one minimum and one maximum of two rows. Those on which no value that is wanted depends are left
out. Of ten rows, that is ten times as fast as to sort each column.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import ALIGNMENT, BLOCK
from shoal.core.types import Array

MAX_ROWS = 100
"""Rows up to which a network is faster than to sort. It has about n log(n)^2 / 4 comparisons."""
MAX_VALUES, MIN_WIDTH = 1 << 22, 1 << 12
"""Values of all rows that are looked at together, and coordinates for which a step is worth its call."""


def trimmed_mean(rows: Sequence[Array], cut: int) -> FloatArray:
    """(width,): the mean of each coordinate without its `cut` lowest and highest values.

    rows: n > 2 cut of them, (width,) each, of any type; best no more than `width_of(n)` wide.
    """
    own = [row.astype(np.result_type(row.dtype, np.float32)) for row in rows]
    left = _ranked(own, cut) if len(own) <= MAX_ROWS else _sorted(own, cut)
    mean = left[0].astype(np.float64)
    if len(left) == 1:
        return mean
    with np.errstate(over="ignore"):
        for row in left[1:]:
            mean += row
    mean *= 1.0 / len(left)
    if len(left) > 2 or left[0].dtype == np.float64:  # a rounding error must not leave the range
        np.clip(mean, left[0], left[-1], out=mean)
    return mean


def half(count: int) -> int:
    """How many of `count` values to leave out at each end so that one or two remain."""
    return (count - 1) // 2


def width_of(rows: int) -> int:
    """How many coordinates of this many rows to look at together: a block, or less of very many."""
    return min(BLOCK, max(MAX_VALUES // rows, MIN_WIDTH))


def _ranked(ranked: list[Array], cut: int) -> list[Array]:
    """The rows in order, but for the `cut` lowest and highest; what is given is overwritten."""
    spare = np.empty_like(ranked[0])
    for low, high, lowest, highest in _network(len(ranked), cut):
        one, other = ranked[low], ranked[high]
        if lowest and highest:
            np.minimum(one, other, out=spare)
            np.maximum(one, other, out=other)
            ranked[low], spare = spare, one
        elif lowest:
            np.minimum(one, other, out=one)
        else:
            np.maximum(one, other, out=other)
    return ranked[cut : len(ranked) - cut]


def _sorted(rows: Sequence[Array], cut: int) -> Array:
    # Rows whose distance in memory is a power of two would share a few lines of the cache.
    apart = np.empty((len(rows), rows[0].size + ALIGNMENT), rows[0].dtype)[:, : rows[0].size]
    np.stack(rows, out=apart)
    columns = apart.T.copy()
    columns.sort(axis=1)
    return columns.T[cut : len(rows) - cut].copy()


@cache
def _network(count: int, cut: int) -> list[tuple[int, int, bool, bool]]:
    """The comparisons after which all but the `cut` lowest and highest rows are in their places: the place
    of the lower value and of the higher one, and which of the two are wanted."""
    pairs = []
    merged = 1
    while merged < count:
        apart = merged
        while apart:
            for start in range(apart % merged, count - apart, 2 * apart):
                for low in range(start, min(start + apart, count - apart)):
                    if low // (2 * merged) == (low + apart) // (2 * merged):
                        pairs.append((low, low + apart))
            apart //= 2
        merged *= 2
    wanted, found = set(range(cut, count - cut)), []
    for low, high in reversed(pairs):
        if low in wanted or high in wanted:
            found.append((low, high, low in wanted, high in wanted))
            wanted |= {low, high}
    return found[::-1]
