"""What the statistics in a descriptor say about a device's data, and how accurate that is.

Noisy sums are processed only here, on the server and after their release, which costs no privacy. The
variances of the noise are public, so the bias that noise causes can be removed. For the layout of the sums,
their shares and their weights see `shoal.core.privacy.sums`.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.core.exchange.parts import Descriptor, FloatArray, Moments, NoisySums
from shoal.core.privacy.sums import SHARES, totals
from shoal.core.privacy.terms import CLEAR

MIN_COUNT = 2
"""Exact counts below this yield no moments."""


@dataclass(frozen=True, eq=False)
class Estimates:
    """Estimated moments of a device's projected latents.

    means, deviations: (rows, l) and counts: (rows,) float64, as in `shoal.core.exchange.parts.Moments`.
    Counts that were released with noise may be negative.
    mean_noise, deviation_noise, count_noise: variances that privacy noise adds, to first order, in the same
    shapes; 0 for moments that were released without noise of a known size.
    known: (rows,) bool, whether the moments of a row are meaningful. If they are not in a noisy row, the
    estimates are 0 and the variances of their noise are infinite.
    """

    means: FloatArray
    deviations: FloatArray
    counts: FloatArray
    mean_noise: FloatArray
    deviation_noise: FloatArray
    count_noise: FloatArray
    known: npt.NDArray[np.bool_]


def estimate(descriptor: Descriptor) -> Estimates:
    """The estimates that a descriptor supports. Deterministic: equal descriptors give the same bits."""
    found = descriptor.statistics
    return _of_sums(found) if isinstance(found, NoisySums) else _of_moments(found)


def _of_moments(moments: Moments) -> Estimates:
    nothing = np.zeros_like(moments.means)
    known = moments.counts >= MIN_COUNT
    known[0] = True
    return Estimates(
        moments.means,
        moments.deviations,
        moments.counts,
        nothing,
        nothing,
        np.zeros_like(moments.counts),
        known,
    )


def _of_sums(sums: NoisySums) -> Estimates:
    total, spread = totals(sums)
    dims, radius = sums.dims, sums.radius
    a, b, c = SHARES
    counts = total[:, -1] / c
    inverse = _inverse(counts, spread)
    known = inverse > 0.0
    means = total[:, :dims] * (radius / a) * inverse[:, None]
    squares = total[:, dims:-1] * (radius**2 / b) * inverse[:, None]
    mean_noise = _mean_noise(means, inverse, spread, radius)
    # E[noisy mean squared] exceeds the mean squared by the variance of the noise; without this correction
    # every device's deviations would be too small.
    variances = squares - means**2 + mean_noise
    variances[~known] = 0.0
    deviations = np.sqrt(np.maximum(variances, 0.0))
    deviation_noise = _deviation_noise(means, deviations**2, inverse * spread, radius)
    mean_noise[~known] = deviation_noise[~known] = np.inf
    return Estimates(means, deviations, counts, mean_noise, deviation_noise, (spread / c) ** 2, known)


def _deviation_noise(
    means: FloatArray, variances: FloatArray, relative: FloatArray, radius: float
) -> FloatArray:
    """(rows, l): the variance of the noise in a deviation. relative: (rows,), noise over count."""
    a, b, c = SHARES
    # The delta method on q - m^2, with q the mean square: one term for each of the three sums it comes from.
    squares = variances + means**2
    of_variance = relative[:, None] ** 2 * (
        (radius**2 / b) ** 2 + (2 * means * radius / a) ** 2 + ((squares - 2 * means**2) / c) ** 2
    )
    # d sqrt(x) = dx / (2 sqrt(x)) diverges near 0, but a square root never changes by more than sqrt(dx).
    found: FloatArray = np.minimum(of_variance / np.maximum(4 * variances, 1e-300), np.sqrt(of_variance))
    return found


def _inverse(counts: FloatArray, spread: FloatArray) -> FloatArray:
    """(rows,): 1 / count for a count that is clearly above its noise, else 0.

    1 / (noisy count) is too large on average, by the square of its relative noise, which is divided out.
    """
    noise = spread / SHARES[2]
    clear = counts >= CLEAR * noise
    safe = np.where(clear, counts, 1.0)
    result: FloatArray = np.where(clear, 1.0 / (safe * (1.0 + (noise / safe) ** 2)), 0.0)
    return result


def _mean_noise(means: FloatArray, inverse: FloatArray, spread: FloatArray, radius: float) -> FloatArray:
    """(rows, l): the variance that noise adds to a mean, through the sum of latents and through the count."""
    result: FloatArray = (inverse * spread)[:, None] ** 2 * (
        (radius / SHARES[0]) ** 2 + (means / SHARES[2]) ** 2
    )
    return result
