"""Gaussian noise on many real numbers: fast, and not exact as that on descriptors is.

It is made of entropy as the operating system gives it, with no generator in between. Torch's own, on a
processor, follows from 32 bits of its seed, which a patient server could try.
"""

import math

import numpy as np

from shoal.core.exchange.parts import Vector
from shoal.core.privacy.chance import Entropy

FINE = 20
"""Noisy sums are rounded to the power of two that is next below 2^-FINE of the noise."""


def noisy(sums: Vector, scale: float, entropy: Entropy) -> Vector:
    """`sums`, any shape, with Gaussian noise of standard deviation `scale`, above 0, rounded to a grid.

    Sum and noise are float64, and the grid is far coarser than their last bits, by which noise would give
    itself away (Mironov, On Significance of the Least Significant Bits, CCS 2012).
    """
    step = 2.0 ** (math.floor(math.log2(scale)) - FINE)
    result: Vector = np.rint((sums + scale * gaussian(sums.size, entropy).reshape(sums.shape)) / step) * step
    return result


def gaussian(count: int, entropy: Entropy) -> Vector:
    """(count,) standard normal numbers, by Box and Muller from 53 random bits each; none is beyond 8.7."""
    pairs = (count + 1) // 2
    words = np.frombuffer(entropy(16 * pairs), np.uint64) >> np.uint64(11)
    lengths, turns = ((words + 0.5) * 2.0**-53).reshape(2, pairs)
    radius = np.sqrt(-2.0 * np.log(lengths))
    return np.concatenate([radius * np.cos(2 * np.pi * turns), radius * np.sin(2 * np.pi * turns)])[:count]
