"""Lower bounds on epsilon from how well a test tells two data sets apart.

(epsilon, delta)-differential privacy means  true positives <= e^epsilon x false positives + delta  for every
test (Wasserman and Zhou 2010, Kairouz et al. 2015). Rates are measured, so each is taken at the bad end of
its Clopper-Pearson interval; the two intervals hold together with the confidence that is asked for. The
threshold is chosen on one half of the releases, the rates are measured on the other half.
"""

import math
from collections.abc import Callable

import numpy as np
from scipy.stats import beta, norm

from shoal.core.exchange.parts import FloatArray
from tests.core.privacy.reference import gaussian_epsilon

CONFIDENCE = 0.95
THRESHOLDS = 100


def epsilon_bound(
    absent: FloatArray, present: FloatArray, delta: float, confidence: float = CONFIDENCE
) -> float:
    """A lower bound on epsilon, whatever the mechanism is.

    absent, present: (n,) each, the statistic of releases without and with the sample; larger where it is
    more likely to be there.
    """

    def bound(true: float, false: float) -> float:
        return math.log(max(true - delta, 1e-300) / false)

    return max(0.0, _best(absent, present, confidence, bound))


def gaussian_bound(
    absent: FloatArray, present: FloatArray, delta: float, confidence: float = CONFIDENCE
) -> float:
    """A lower bound on epsilon if the noise has the shape of a Gaussian, whatever its size.

    Then no test has  probit(true positives) - probit(false positives)  above the sensitivity over the noise
    (Dong, Roth and Su 2022), and a rate that is easy to measure tells of epsilon at a tiny delta too: so this
    is nearly tight (Nasr et al. 2023).
    """

    def apart(true: float, false: float) -> float:
        return float(norm.ppf(true) - norm.ppf(false))

    measured = _best(absent, present, confidence, apart)
    return gaussian_epsilon(1.0 / measured, delta) if measured > 0.0 else 0.0


def _best(
    absent: FloatArray, present: FloatArray, confidence: float, bound: Callable[[float, float], float]
) -> float:
    """`bound` of the least true and the most false positives, at the threshold that looked best before."""
    first, second = slice(0, None, 2), slice(1, None, 2)
    seen = np.concatenate([absent[first], present[first]])
    thresholds = np.unique(np.quantile(seen, np.linspace(0, 1, THRESHOLDS)))
    found = [_at(absent[first], present[first], at, confidence, bound) for at in thresholds]
    return _at(absent[second], present[second], thresholds[int(np.argmax(found))], confidence, bound)


def _at(
    absent: FloatArray,
    present: FloatArray,
    threshold: float,
    confidence: float,
    bound: Callable[[float, float], float],
) -> float:
    sure = 1.0 - (1.0 - confidence) / 2.0
    true = lowest(int((present >= threshold).sum()), len(present), sure)
    false = highest(int((absent >= threshold).sum()), len(absent), sure)
    return bound(true, false)


def lowest(hits: int, trials: int, sure: float) -> float:
    """A rate is at least this, with so much confidence (Clopper and Pearson 1934)."""
    return float(beta.ppf(1.0 - sure, hits, trials - hits + 1)) if hits else 0.0


def highest(hits: int, trials: int, sure: float) -> float:
    """A rate is at most this, with so much confidence."""
    return float(beta.ppf(sure, hits + 1, trials - hits)) if hits < trials else 1.0
