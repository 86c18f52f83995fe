"""Compute what the calibrated modes release, before noise: a vector of integers that no sample moves far.

A sample with projected latents u (l,), shortened to the public radius R where it is longer, and class y has

    v = (a u / R,  b (u o u) / R^2,  c)         a : b : c = .80 : .50 : .33,  a^2 + b^2 + c^2 = 1

so |v| <= 1, since |u o u| <= |u|^2 <= R^2. It enters row 0 with weight w_m, and row 1 + y with w_c, where
w_m^2 + w_c^2 = 1; without class rows w_m is 1. So one sample moves the whole vector by at most 1 (L2 norm),
however many classes and dimensions there are.

Each weighted value is truncated toward zero on a grid of 2^-20, which can only shorten vectors. The result is
an integer vector, so its squared length is at most 2^40 exactly: floating-point error, about 10^-13 of it,
cannot reach the next integer. Sums of integers are the same in every order.

Neighbors are two data sets with the same number of places, where one place is filled in one and empty in the
other (Kairouz et al., Practical and Private Deep Learning without Sampling or Shuffling, ICML 2021). So the
number of places is public. A sample with NaN or infinite latents, or of a class that the run lacks, counts as
an empty place.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.exchange.parts import FloatArray, Integers, NoisySums

Labels = npt.NDArray[np.integer[Any]]

GRID = 1 << 20
"""Steps of the grid in one unit of sensitivity."""
SHARES = np.array([0.80, 0.50, 0.33]) / np.linalg.norm([0.80, 0.50, 0.33])
"""a, b, c: the parts of a sample's norm that its latents, their squares, and its count get."""
REPLACED = 2.0 * float(SHARES[0])
"""How far one sample that is replaced by another moves the whole vector: 2 a, where leaving one out moves it
by 1. Proof in docs/proofs.md; it takes a^2 >= 2 b^2."""
ROWS_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class ExactSums:
    """Sums without noise. No message and no payload can hold this, on purpose: only `release` turns it into
    something that may leave.

    values: (1 + U, 2 l + 1) int64, in steps of the grid. Row 0 is over all samples, and row 1 + k over class
    k; each row has the latents, their squares and the count. radius: R, in projected latent units.
    """

    values: Integers
    radius: float


def weights(classes: int) -> tuple[float, float]:
    """Return (w_m, w_c), the weights of the row of all samples and of the rows of classes."""
    return (math.sqrt(0.5), math.sqrt(0.5)) if classes else (1.0, 0.0)


def sums_of(
    batches: Iterable[tuple[FloatArray, Labels | None]], radius: float, dims: int, classes: int
) -> ExactSums:
    """Sum over batches of any size, each with projected latents (n, l) and their labels (n,).

    Labels may be None when `classes` is 0. radius: R, above 0, which is public.
    """
    values = np.zeros((1 + classes, 2 * dims + 1), np.int64)
    marginal, own = weights(classes)
    for latents, labels in batches:
        for start in range(0, len(latents), ROWS_AT_ONCE):
            some = latents[start : start + ROWS_AT_ONCE]
            filled = np.isfinite(some).all(axis=1)
            if not classes:
                values[0] += on_grid(sample_vectors(some[filled], radius)).sum(axis=0)
                continue
            if labels is None:
                raise ValueError(f"sums of {classes} classes need labels")
            their = labels[start : start + ROWS_AT_ONCE]
            filled &= (their >= 0) & (their < classes)
            vectors = sample_vectors(some[filled], radius)
            values[0] += on_grid(marginal * vectors).sum(axis=0)
            np.add.at(values, 1 + their[filled].astype(np.intp), on_grid(own * vectors))
    return ExactSums(values, radius)


def sample_vectors(latents: FloatArray, radius: float) -> FloatArray:
    """Return v for each of (n, l) finite latents: (n, 2 l + 1) float64, each with a norm of at most 1."""
    latents = np.asarray(latents, np.float64)
    largest = np.maximum(np.abs(latents).max(axis=1, initial=0.0), radius)  # its square may overflow
    lengths = np.linalg.norm(latents / largest[:, None], axis=1)
    units = latents / largest[:, None] / np.maximum(lengths, radius / largest)[:, None]
    a, b, c = SHARES
    return np.concatenate([a * units, b * units**2, np.full((len(latents), 1), c)], axis=1)


def on_grid(vectors: FloatArray) -> Integers:
    """Truncate to whole steps of the grid, toward zero."""
    return np.trunc(vectors * GRID).astype(np.int64)


def totals(sums: NoisySums) -> tuple[FloatArray, FloatArray]:
    """Return the sums of sample vectors, (rows, 2 l + 1), and the noise's standard deviation by row, (rows,).

    The sum over all samples is released twice: as a row of its own, and as the sum of the classes. These are
    two independent measurements of one quantity, so they are averaged, weighted by their inverse variances.
    """
    classes = sums.rows - 1
    marginal, own = weights(classes)
    weight = np.array([marginal, *[own] * classes])[:, None]
    found = sums.values / (GRID * weight)
    spread = sums.sigma / weight[:, 0]
    if classes:
        sure = np.array([marginal**2, own**2 / classes])
        found[0] = sure @ np.stack([found[0], found[1:].sum(axis=0)]) / sure.sum()
        spread[0] = sums.sigma / np.sqrt(sure.sum())
    return found, spread


def counts(sums: NoisySums) -> FloatArray:
    """Return the number of samples behind each row, (rows,). It has noise, so it may be negative."""
    found: FloatArray = totals(sums)[0][:, -1] / SHARES[2]
    return found
