"""What releases cost, in rho of zero-concentrated differential privacy (zCDP), and that as (epsilon, delta).

Bun and Steinke, Concentrated Differential Privacy, TCC 2016; the conversion is that of Canonne, Kamath and
Steinke, NeurIPS 2020. rho of several releases add up, whatever each was made to depend on. `sigma` is the
noise's standard deviation in units of the L2 sensitivity.

The `gaussian_...` functions are exact for one release with continuous noise (Balle and Wang, ICML 2018). They
are here to compare with: releases are accounted in rho, which is some eight hundredths dearer in epsilon and
covers the discrete noise that is really drawn.
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


def delta_of(rho: float, epsilon: float) -> float:
    """The least delta that the conversion gives for an epsilon, at least 0.

    min over alpha > 1 of  e^((alpha - 1)(alpha rho - epsilon)) / (alpha - 1) * (1 - 1/alpha)^alpha

    Every alpha gives a valid delta, so one that is not quite the best errs on the safe side.
    """
    if rho == 0.0:
        return 0.0
    return min(1.0, math.exp(min(_least(lambda alpha: _log_delta(rho, epsilon, alpha)), 0.0)))


def epsilon_of(rho: float, delta: float) -> float:
    """The least epsilon that the conversion gives for a delta above 0 and below 1.

    min over alpha > 1 of  alpha rho + (log(1/delta) - log(alpha)) / (alpha - 1) + log(1 - 1/alpha)
    """
    if rho == 0.0:
        return 0.0

    def epsilon(alpha: float) -> float:
        kept = math.log1p(-1.0 / alpha)
        return alpha * rho - (math.log(delta) + math.log(alpha)) / (alpha - 1.0) + kept

    return max(0.0, _least(epsilon))


def rho_for(epsilon: float, delta: float) -> float:
    """The most that may be spent for (epsilon, delta), both above 0, delta below 1."""
    return _highest(lambda rho: epsilon_of(rho, delta) <= epsilon)


def sigma_for(epsilon: float, delta: float) -> float:
    """The noise of one release that is (epsilon, delta)-differentially private."""
    return sigma_of(rho_for(epsilon, delta))


def gaussian_delta(sigma: float, epsilon: float) -> float:
    """delta of one release with continuous Gaussian noise, exactly (Balle and Wang, Theorem 8)."""
    half = 1.0 / (2.0 * sigma)
    rare = _normal(-half - epsilon * sigma)
    return _normal(half - epsilon * sigma) - (math.exp(epsilon + math.log(rare)) if rare > 0.0 else 0.0)


def gaussian_epsilon(sigma: float, delta: float) -> float:
    """epsilon of one release with continuous Gaussian noise."""
    return _highest(lambda epsilon: gaussian_delta(sigma, epsilon) > delta)


def gaussian_sigma(epsilon: float, delta: float) -> float:
    """The continuous Gaussian noise that one (epsilon, delta) release needs."""
    return 1.0 / _highest(lambda inverse: gaussian_delta(1.0 / inverse, epsilon) <= delta)


def _log_delta(rho: float, epsilon: float, alpha: float) -> float:
    kept = alpha * math.log1p(-1.0 / alpha)
    return (alpha - 1.0) * (alpha * rho - epsilon) - math.log(alpha - 1.0) + kept


def _normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2.0)) / 2.0


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
