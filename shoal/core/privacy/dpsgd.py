"""The parts of DP-SGD that need no network: its terms, which samples a step takes, and Gaussian noise.

Samples and noise are drawn from entropy as the operating system gives it, with no generator in between,
because they must be secret. Torch's own generator on a CPU follows from 32 bits of its seed, and a patient
server could try all of them. The Gaussian noise is fast; unlike the noise on descriptors, it is not exact.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from shoal.core.exchange.parts import FloatArray
from shoal.core.privacy.cost import Cost
from shoal.core.privacy.noise.chance import Entropy


@dataclass(frozen=True)
class TrainingTerms:
    """One task's training. clip: L2 norm to which a sample's gradient is shortened.

    noise: its standard deviation, in units of clip. rate: probability with which a sample is in a step.
    steps: of the task. cost: of all of them.
    """

    clip: float
    noise: float
    rate: float
    steps: int
    cost: Cost


def taken(samples: int, rate: float, entropy: Entropy) -> npt.NDArray[np.intp]:
    """The samples of one step: each with the same probability, at most `rate`, whatever the others do."""
    words = np.frombuffer(entropy(8 * samples), np.uint64)
    most = math.floor(rate * 2.0**64)
    return np.flatnonzero(words < most) if most < 1 << 64 else np.arange(samples)


FINE = 20
"""Noisy sums are rounded to the power of two that is next below 2^-FINE of the noise."""


def noisy(sums: FloatArray, scale: float, entropy: Entropy) -> FloatArray:
    """`sums`, any shape, with Gaussian noise of standard deviation `scale`, above 0, rounded to a grid.

    Sum and noise are float64, and the grid is far coarser than their last bits, by which noise would give
    itself away (Mironov, On Significance of the Least Significant Bits, CCS 2012).
    """
    step = 2.0 ** (math.floor(math.log2(scale)) - FINE)
    result: FloatArray = (
        np.rint((sums + scale * gaussian(sums.size, entropy).reshape(sums.shape)) / step) * step
    )
    return result


def gaussian(count: int, entropy: Entropy) -> FloatArray:
    """(count,) standard normal numbers, by Box and Muller from 53 random bits each; none is beyond 8.7."""
    pairs = (count + 1) // 2
    words = np.frombuffer(entropy(16 * pairs), np.uint64) >> np.uint64(11)
    lengths, turns = ((words + 0.5) * 2.0**-53).reshape(2, pairs)
    radius = np.sqrt(-2.0 * np.log(lengths))
    return np.concatenate([radius * np.cos(2 * np.pi * turns), radius * np.sin(2 * np.pi * turns)])[:count]
