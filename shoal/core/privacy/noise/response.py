"""One bit with pure differential privacy: randomized response (Warner 1965).

    said = the bit with probability e^epsilon / (1 + e^epsilon), else its opposite

Whatever the bit was computed from, and however, the probability of each answer changes by a factor of at most
e^epsilon. All decisions are between whole numbers (`shoal.core.privacy.noise.chance`). What it costs is what
a vote of the same epsilon costs (`shoal.core.privacy.noise.vote.cost`).
"""

import math
from fractions import Fraction

from shoal.core.privacy.noise.chance import Chance, Entropy

WATCHING = 0.75
"""The epsilon of one answer to whether a device's data have moved."""
EVERY_DAYS = 92.0
"""Days between two such answers of a device: at most four in 365 days, which together have a pure epsilon of
3. With a given total, few answers of a large epsilon tell more than many of a small one (docs/results.md)."""
A_YEAR = 4
"""The most answers of a device in 365 days."""


def randomized(bit: bool, epsilon: float, entropy: Entropy) -> bool:
    """The bit, or its opposite. Every call draws again.

    entropy: on a device the operating system's, and never a seed.
    """
    chance, exact = Chance(entropy), Fraction(epsilon)
    while True:
        if not chance.below(2):
            return bit
        if chance.decays(exact.numerator, exact.denominator):
            return not bit


def wrong(epsilon: float) -> float:
    """The probability that the opposite is said.

    Example:
        >>> round(wrong(0.75), 4)
        0.3208
    """
    return 1.0 / (1.0 + math.exp(epsilon))
