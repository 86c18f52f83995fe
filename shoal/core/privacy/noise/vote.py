"""One index with pure differential privacy: the cluster in whose data a device's samples lie.

Each sample tells each cluster how much less likely it is there than where it is likeliest, at most `BOUND`
nats. The sums over all samples are scores, and permute-and-flip names one of them: in random order, a cluster
that is behind the best one by d is taken with the probability exp(-epsilon d / BOUND).

A sample more or less moves every score by 0 to BOUND, in one direction. So the probability of each answer
changes by a factor of at most e^epsilon: which cluster wins is the same as with exponential noise of mean
BOUND / epsilon on every score (Ding et al., 2021), and given the other clusters' noisy scores, whose highest
one moves by 0 to BOUND, a cluster wins if its own noise is above a threshold, which moves by at most BOUND.
Where a sample is replaced by another, the scores move by up to BOUND in either direction, and it is twice
that epsilon. Source: McKenna and Sheldon, Permute-and-Flip, NeurIPS 2020. It is never worse than the
exponential mechanism.

All decisions are between whole numbers (`shoal.core.privacy.noise.chance`).
"""

import math
from fractions import Fraction

import numpy as np

from shoal.core.exchange.parts import FloatArray, Integers
from shoal.core.privacy.cost import ORDERS, Cost
from shoal.core.privacy.noise.chance import Chance, Entropy

BOUND = 5.0
"""Nats. A constant, since one that follows the data has no guarantee; chosen on digits, seeds 41 and 42."""
ROUNDING = 1e-14
"""A generous bound of the error with which a divergence is computed."""
STEPS = 1 << 20
"""Scores are in steps of BOUND / STEPS."""


def scores(logarithms: FloatArray) -> Integers:
    """(K,) of the logarithms of how likely each sample is in each cluster, (n, K). A sample of which some are
    not numbers counts for nothing."""
    with np.errstate(invalid="ignore"):
        behind = logarithms - logarithms.max(axis=1, keepdims=True)
    behind = np.where(np.isfinite(logarithms).all(axis=1, keepdims=True), behind, 0.0)
    steps = np.rint(np.maximum(behind, -BOUND) * (STEPS / BOUND))
    found: Integers = steps.astype(np.int64).sum(axis=0)
    return found


def drawn(found: Integers, epsilon: float, entropy: Entropy) -> int:
    """The index that permute-and-flip draws of these scores. Every call draws again.

    entropy: on a device the operating system's, and never a seed.
    """
    chance, exact = Chance(entropy), Fraction(epsilon)
    left = list(range(len(found)))
    best = int(found.max())
    while True:
        index = left.pop(chance.below(len(left)))
        behind = best - int(found[index])
        if chance.decays(behind * exact.numerator, STEPS * exact.denominator):
            return index


def cost(epsilon: float) -> Cost:
    """Of one draw, for one sample: the largest divergence of each order that epsilon allows, which is that of
    randomized response. It is above 0, however small epsilon is, and never less than that by rounding."""
    spread = math.log1p(math.exp(-epsilon)) + epsilon  # log(1 + e^epsilon)
    curve: list[float] = []
    for order in ORDERS:
        high, low = order * epsilon, (1.0 - order) * epsilon
        total = high + math.log1p(math.exp(low - high)) - spread
        curve.append(min(epsilon, max(total / (order - 1.0) + ROUNDING, ROUNDING, *curve[-1:])))
    return Cost(curve=tuple(curve))
