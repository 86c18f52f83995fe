"""What releases cost, in rho of zero-concentrated differential privacy (zCDP), and that as (epsilon, delta).

Bun and Steinke, Concentrated Differential Privacy, TCC 2016; the conversion is that of Canonne, Kamath and
Steinke, NeurIPS 2020. rho of several releases add up, whatever each was made to depend on. `sigma` is the
noise's standard deviation in units of the L2 sensitivity.
"""

import math
from collections.abc import Callable


def rho_of(sigma: float) -> float:
    """What one release with this noise costs."""
    return 1.0 / (2.0 * sigma * sigma)


def sigma_of(rho: float) -> float:
    """The noise of one release that costs `rho`, above 0."""
    return math.sqrt(1.0 / (2.0 * rho))


def group(rho: float, size: int) -> float:
    """The cost for `size` samples together, such as all those of one person: it grows by their square."""
    return rho * size * size


def epsilon_of(rho: float, delta: float) -> float:
    """The least epsilon that the conversion gives for a delta between 0 and 1: the best order alpha > 1."""
    if rho == 0.0:
        return 0.0
    return max(0.0, _least(lambda alpha: at_order(alpha, alpha * rho, delta)))


def at_order(alpha: float, divergence: float, delta: float) -> float:
    """An epsilon for delta, where the Renyi divergence of order alpha > 1 is known.

    divergence + (log(1/delta) - log(alpha)) / (alpha - 1) + log(1 - 1/alpha)
    """
    return divergence - (math.log(delta) + math.log(alpha)) / (alpha - 1.0) + math.log1p(-1.0 / alpha)


def rho_for(epsilon: float, delta: float) -> float:
    """The most that may be spent for (epsilon, delta), both above 0, delta below 1."""
    return _highest(lambda rho: epsilon_of(rho, delta) <= epsilon)


def _least(value: Callable[[float], float]) -> float:
    """The least value over alpha > 1 of a function that falls and then rises: golden section in
    log(alpha - 1)."""
    low, high = math.log(1e-9), math.log(1e12)
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(70):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if value(1.0 + math.exp(left)) <= value(1.0 + math.exp(right)):
            high = right
        else:
            low = left
    return value(1.0 + math.exp(low))


def _highest(holds: Callable[[float], bool]) -> float:
    """The highest number above 0 up to which `holds`, to the last bits, from below."""
    low, high = 0.0, 1.0
    while holds(high):
        low, high = high, high * 2.0
    for _ in range(200):
        middle = (low + high) / 2.0
        if middle in (low, high):
            break
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low
