"""Many draws of the discrete Gaussian at once, for vectors as long as a model: still exact.

The algorithm is that of `shoal.core.privacy.noise.discrete_gaussian`. Each of its decisions compares a random
number of 64 bits with e^-x. In float64 that is right unless the two are within `UNSURE` of each other, which
is some thousand times the largest rounding error; where they are, the same decision is made in rational
arithmetic, with as many more random bits as it takes. So rounding decides nothing.
"""

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from shoal.core.privacy.noise.chance import Entropy

UNSURE = 2.0**-36
MAX_VARIANCE = 1 << 60
"""Draws then stay below 2^36, and their squares are exact enough in float64."""

Whole = npt.NDArray[np.int64]
Exponent = Callable[[int], Fraction]
"""The exact x of one of the decisions, by its number."""


def draw_many(variance: Fraction, count: int, entropy: Entropy) -> Whole:
    """(count,) independent draws with this variance parameter, above 0 and at most 2^60."""
    if not 0 < variance <= MAX_VARIANCE:
        raise ValueError(f"the discrete Gaussian has no variance {variance}, or too much of it")
    scale = math.isqrt(variance.numerator // variance.denominator) + 1
    center, twice = float(variance / scale), 2.0 * float(variance)
    found = np.zeros(0, np.int64)
    while len(found) < count:
        some = _laplace(scale, 2 * (count - len(found)) + 64, entropy)
        size = np.abs(some)
        kept = _decays(
            (size - center) ** 2 / twice,
            lambda at, size=size: (int(size[at]) - variance / scale) ** 2 / (2 * variance),  # type: ignore[misc]
            entropy,
        )
        found = np.concatenate([found, some[kept]])
    draws: Whole = found[:count]
    return draws


def _laplace(scale: int, count: int, entropy: Entropy) -> Whole:
    """Up to `count` whole numbers y with probability in proportion to e^(-|y| / scale)."""
    bits = max(1, (scale - 1).bit_length())
    rest = (_words(count, entropy) >> np.uint64(64 - bits)).astype(np.int64)
    rest = rest[rest < scale]
    rest = rest[_decays(rest / scale, lambda at: Fraction(int(rest[at]), scale), entropy)]
    whole, going = np.zeros(len(rest), np.int64), np.arange(len(rest))
    while len(going):
        going = going[_decays(np.ones(len(going)), lambda at: Fraction(1), entropy)]
        whole[going] += 1
    size = rest + scale * whole
    negative = _words(len(size), entropy) >> np.uint64(63) == 1
    found: Whole = np.where(negative, -size, size)
    draws: Whole = found[~(negative & (size == 0))]
    return draws


def _decays(exponents: npt.NDArray[np.float64], exact: Exponent, entropy: Entropy) -> npt.NDArray[np.bool_]:
    """For each x >= 0 of these, True with probability e^-x."""
    words = _words(len(exponents), entropy)
    apart = words * 2.0**-64 - np.exp(-exponents)
    found: npt.NDArray[np.bool_] = apart < 0.0
    for at in np.flatnonzero(np.abs(apart) <= UNSURE):
        found[at] = _is_below(int(words[at]), exact(int(at)), entropy)
    return found


def _is_below(word: int, exponent: Fraction, entropy: Entropy) -> bool:
    """Whether a random number that begins with these 64 bits is below e^-exponent."""
    bits = 64
    while True:
        low, high = _bounds(exponent, bits)
        if Fraction(word + 1, 1 << bits) <= low:
            return True
        if Fraction(word, 1 << bits) >= high:
            return False
        word, bits = word << 64 | int(_words(1, entropy)[0]), bits + 64


def _bounds(exponent: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Below and above e^-exponent, closer to each other than 2^-bits."""
    if exponent == 0:
        return Fraction(1), Fraction(1)
    digits = bits // 3 + 20
    found = []
    for rounding, step in ((ROUND_CEILING, -1), (ROUND_FLOOR, 1)):
        divide = Context(digits, rounding)
        x = divide.divide(Decimal(exponent.numerator), Decimal(exponent.denominator))
        value = Context(digits).exp(-x)  # correctly rounded: at most one unit in the last place away
        found.append(Fraction(value) * (1 + Fraction(step, 10 ** (digits - 2))))
    return found[0], found[1]


def _words(count: int, entropy: Entropy) -> npt.NDArray[np.uint64]:
    return np.frombuffer(entropy(8 * count), np.uint64)
