"""The discrete Gaussian: whole numbers y with probability in proportion to e^(-y^2 / (2 s^2)), drawn exactly.

Canonne, Kamath and Steinke, The Discrete Gaussian for Differential Privacy, NeurIPS 2020. Added to whole
numbers of L2 sensitivity D it gives D^2 / (2 s^2) zero-concentrated differential privacy (their Theorem 14),
as the continuous one does; unlike that one, a computer can draw it exactly.

The time of a draw depends on its outcome, so timing single draws would reveal something about them. Only the
device itself can do that.
"""

from fractions import Fraction
from math import isqrt

from shoal.core.privacy.noise.chance import Chance


def draw(variance: Fraction, count: int, chance: Chance) -> list[int]:
    """`count` independent draws with this variance parameter s^2, above 0 (their Algorithm 3).

    A draw is a discrete Laplace number of scale t = floor(s) + 1, kept with probability
    e^(-(|y| - s^2 / t)^2 / (2 s^2)), else drawn again.
    """
    if variance <= 0:
        raise ValueError(f"the discrete Gaussian has no variance {variance}")
    scale = isqrt(variance.numerator // variance.denominator) + 1
    # (|y| - n/(d t))^2 / (2 n/d) = (|y| d t - n)^2 / (2 n d t^2), all whole numbers.
    center, step = variance.numerator, variance.denominator * scale
    divisor = 2 * variance.numerator * variance.denominator * scale * scale
    draws: list[int] = []
    while len(draws) < count:
        value = laplace(scale, chance)
        if chance.decays((abs(value) * step - center) ** 2, divisor):
            draws.append(value)
    return draws


def laplace(scale: int, chance: Chance) -> int:
    """A whole number y with probability in proportion to e^(-|y| / scale) (their Algorithm 2)."""
    while True:
        rest = chance.below(scale)
        if not chance.decays(rest, scale):
            continue
        whole = 0
        while chance.decays(1, 1):
            whole += 1
        size = rest + scale * whole
        if chance.below(2):
            return size
        if size:  # else zero would come up twice as often as it should
            return -size
