"""What noisy sums tell, and how sure it is: processing after the release, which costs nothing.

Noise variances are public, so all that noise adds on average is taken off again. For the layout of the sums,
their shares and weights see `shoal.core.privacy.sums`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.core.exchange.parts import Descriptor, NoisySums, PrivacySettings, Vector
from shoal.core.privacy.modes import CLEAR
from shoal.core.privacy.sums import GRID, SHARES, weights

FEWEST = 2
"""Exact counts below this give no moments."""


@dataclass(frozen=True, eq=False)
class Noise:
    """What noise does to a descriptor; for one that was released without, all variances are 0.

    means, deviations: (rows, l), counts: (rows,), variances of what noise added. known: (rows,), whether a
    row's moments mean anything; where they do not, their variances are infinite.
    """

    means: Vector
    deviations: Vector
    counts: Vector
    known: npt.NDArray[np.bool_]


def descriptor_of(sums: NoisySums, projector: str, settings: PrivacySettings) -> Descriptor:
    """The descriptor that noisy sums are worth. A row whose count is within noise has moments of 0."""
    totals, spread = _totals(sums)
    dims = totals.shape[1] // 2
    counts = totals[:, -1] / SHARES[2]
    inverse = _inverse(counts, spread)
    means = totals[:, :dims] * (sums.radius / SHARES[0]) * inverse[:, None]
    squares = totals[:, dims:-1] * (sums.radius**2 / SHARES[1]) * inverse[:, None]
    # The square of a noisy mean is too large by the noise's variance.
    variances = squares - means**2 + _mean_noise(means, inverse, spread, sums.radius)
    variances[inverse == 0.0] = 0.0
    return Descriptor(means, np.sqrt(np.maximum(variances, 0.0)), counts, projector, settings, sums)


def noise_of(descriptor: Descriptor) -> Noise:
    """The noise in a descriptor, to first order."""
    if descriptor.sums is None:
        nothing = np.zeros_like(descriptor.means)
        known = descriptor.counts >= FEWEST
        known[0] = True
        return Noise(nothing, nothing, np.zeros_like(descriptor.counts), known)
    radius = descriptor.sums.radius
    _, spread = _totals(descriptor.sums)
    inverse = _inverse(descriptor.counts, spread)
    known = inverse > 0.0
    means, variances = descriptor.means, descriptor.deviations**2
    a, b, c = SHARES
    # Of q - m^2, with q the mean square: by its three sums, and by delta method.
    squares = variances + means**2
    of_variance = (inverse * spread)[:, None] ** 2 * (
        (radius**2 / b) ** 2 + (2 * means * radius / a) ** 2 + ((squares - 2 * means**2) / c) ** 2
    )
    # d sqrt(x) = dx / (2 sqrt(x)), but a square root never moves by more than sqrt(dx).
    of_deviation = np.minimum(of_variance / np.maximum(4 * variances, 1e-300), np.sqrt(of_variance))
    of_mean = _mean_noise(means, inverse, spread, radius)
    of_mean[~known] = of_deviation[~known] = np.inf
    return Noise(of_mean, of_deviation, (spread / c) ** 2, known)


def _totals(sums: NoisySums) -> tuple[Vector, Vector]:
    """Sums of sample vectors, (rows, 2 l + 1), and the noise's standard deviation in each row.

    All samples together are both a row of their own and the sum of the classes: the two are weighted by how
    sure they are.
    """
    classes = len(sums.values) - 1
    marginal, own = weights(classes)
    weight = np.array([marginal, *[own] * classes])[:, None]
    totals = sums.values / (GRID * weight)
    spread = sums.sigma / weight[:, 0]
    if classes:
        sure = np.array([marginal**2, own**2 / classes])
        totals[0] = sure @ np.stack([totals[0], totals[1:].sum(axis=0)]) / sure.sum()
        spread[0] = sums.sigma / np.sqrt(sure.sum())
    return totals, spread


def _inverse(counts: Vector, spread: Vector) -> Vector:
    """(rows,): 1 / count where a count is clear of its noise, else 0. 1 / (noisy count) is too large, on
    average, by the square of its relative noise."""
    noise = spread / SHARES[2]
    clear = counts >= CLEAR * noise
    safe = np.where(clear, counts, 1.0)
    result: Vector = np.where(clear, 1.0 / (safe * (1.0 + (noise / safe) ** 2)), 0.0)
    return result


def _mean_noise(means: Vector, inverse: Vector, spread: Vector, radius: float) -> Vector:
    """(rows, l): variance of what noise adds to a mean, by the sum of latents and by the count."""
    result: Vector = (inverse * spread)[:, None] ** 2 * ((radius / SHARES[0]) ** 2 + (means / SHARES[2]) ** 2)
    return result
