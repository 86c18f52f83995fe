"""Exact and inverse formulas, for tests to compare the ledger's accounting with."""

import math

from shoal.core.privacy.cost import _highest, _least, rho_for, sigma_of


def delta_of(rho: float, epsilon: float) -> float:
    """The least delta that the conversion gives for an epsilon, at least 0.

    min over alpha > 1 of  e^((alpha - 1)(alpha rho - epsilon)) / (alpha - 1) * (1 - 1/alpha)^alpha

    Every alpha gives a valid delta, so one that is not quite the best errs on the safe side.
    """
    if rho == 0.0:
        return 0.0
    return min(1.0, math.exp(min(_least(lambda alpha: _log_delta(rho, epsilon, alpha)), 0.0)))


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
