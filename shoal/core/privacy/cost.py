"""What releases cost one sample, whatever their mechanisms, and that as (epsilon, delta).

Gaussian noise on a bounded vector is zero-concentrated differentially private (zCDP), and one number, rho, is
its cost. `sigma` is the standard deviation of the noise in units of the L2 sensitivity. See Bun and Steinke,
Concentrated Differential Privacy, TCC 2016; the conversion to (epsilon, delta) is that of Canonne, Kamath and
Steinke, NeurIPS 2020.

Training on random batches is not zCDP with a useful rho: at high orders its Renyi divergence is far more than
a small rho times the order. So it has a curve instead: the divergence at each of `ORDERS`, the larger of the
two directions between neighbors.

At one order the divergences of releases add up, whatever each was made to depend on (Mironov, Renyi
Differential Privacy, CSF 2017, Proposition 1), and rho of zCDP is a divergence of rho alpha at every order
alpha. So both are summed, every order gives an epsilon that holds, and the smallest is reported.

A limit on what may be spent is another matter: whether there is a next release, and which one, may depend on
the answers to all before. Then divergences add up at an order that was fixed in advance, and not at whichever
order turns out to be best (docs/proofs.md has the proof). So `fits` and `room` use `order_for` the limit.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

KEPT = 256
"""How many limits are remembered: finding what fits takes a while."""


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


@lru_cache(KEPT)
def rho_for(epsilon: float, delta: float) -> float:
    """The most that may be spent for (epsilon, delta), both above 0, delta below 1.

    Ledgers have its last bits: a release is found again by them.
    """
    return _highest(lambda rho: epsilon_of(rho, delta) <= epsilon)


@lru_cache(KEPT)
def order_for(epsilon: float, delta: float) -> float:
    """The order at which a limit of (epsilon, delta), both above 0, is enforced: that at which the most zCDP
    fits. It depends on nothing that is released."""
    return _best_order(lambda alpha: (at_order(alpha, 0.0, delta) - epsilon) / alpha)


def _least(value: Callable[[float], float]) -> float:
    """The least value over alpha > 1 of a function that falls and then rises."""
    return value(_best_order(value))


def _best_order(value: Callable[[float], float]) -> float:
    """The alpha > 1 of the least value of a function that falls and then rises: golden section in
    log(alpha - 1)."""
    low, high = math.log(1e-9), math.log(1e12)
    ratio = (math.sqrt(5.0) - 1.0) / 2.0
    for _ in range(70):
        left, right = high - ratio * (high - low), low + ratio * (high - low)
        if value(1.0 + math.exp(left)) <= value(1.0 + math.exp(right)):
            high = right
        else:
            low = left
    return 1.0 + math.exp(low)


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


ROUNDING = 1e-9
"""A release of just what is allowed must fit, whatever the last bits of its cost are."""
TINY, LARGEST = 1e-6, 1e6
"""Limits that are looked at."""

ORDERS = (
    *(1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 12.0, 14.0, 16.0),
    *(20.0, 24.0, 28.0, 32.0, 40.0, 48.0, 64.0, 96.0, 128.0, 256.0, 512.0),
)
"""Where curves are known. Ledgers are written with them, so they never change."""


def _less(all_of_it: float, part: float) -> float:
    """What is left, at least 0. The last bits in which a sum of parts differs from the whole count as 0."""
    left = all_of_it - part
    return left if left > ROUNDING * all_of_it else 0.0


@dataclass(frozen=True)
class Cost:
    """rho: of all that is zCDP. curve: of all else, the divergence at each of ORDERS; () where none is."""

    rho: float = 0.0
    curve: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        ordered = all(low <= high for low, high in zip(self.curve, self.curve[1:], strict=False))
        values = (self.rho, *self.curve)
        if len(self.curve) not in (0, len(ORDERS)) or not ordered:
            raise ValueError(f"a curve has {len(ORDERS)} values that do not fall, this one {len(self.curve)}")
        if not all(0.0 <= value < math.inf for value in values):
            raise ValueError("a cost is finite and at least 0")

    def __bool__(self) -> bool:
        return self.rho > 0.0 or any(self.curve)

    def __add__(self, other: "Cost") -> "Cost":
        if not (self.curve and other.curve):
            return Cost(self.rho + other.rho, self.curve or other.curve)
        curve = (mine + others for mine, others in zip(self.curve, other.curve, strict=True))
        return Cost(self.rho + other.rho, tuple(curve))

    def __sub__(self, other: "Cost") -> "Cost":
        """What is left of this cost when `other` is taken from it, at least 0 at each order. Where that would
        fall from one order to the next, it stays: too much rather than too little is left."""
        taken = other.curve or (0.0,) * len(ORDERS)
        left = map(_less, self.curve, taken)
        return Cost(_less(self.rho, other.rho), tuple(accumulate(left, max)))

    def epsilon(self, delta: float, size: int = 1) -> float:
        """The epsilon that holds for `size` samples together; infinite where no order is known for them."""
        if not self.curve:
            return epsilon_of(group(self.rho, size), delta)
        found = (
            at_order(order / size, size * self.rho * order + divergence, delta)
            for order, divergence in _grouped(self.curve, size)
        )
        return max(0.0, min(found, default=math.inf))

    def epsilon_if_replaced(self, reach: float, delta: float, size: int = 1) -> float:
        """The same, where samples are replaced by others instead of left out.

        reach: how far that moves a zCDP release, where leaving out moves it by 1. In training, a sample that
        is replaced counts as two that are left out, one after the other (`_grouped`).
        """
        rho = group(reach * reach * self.rho, size)
        if not self.curve:
            return epsilon_of(rho, delta)
        found = (
            at_order(order / (2 * size), rho * order / (2 * size) + divergence, delta)
            for order, divergence in _grouped(self.curve, 2 * size)
        )
        return max(0.0, min(found, default=math.inf))

    def room(self, epsilon: float, delta: float, size: int = 1) -> float:
        """rho for one sample that still fits into a limit of (epsilon, delta); below 0 where none does."""
        if epsilon <= 0.0:
            return 0.0 if not self else -math.inf
        if not self.curve:
            return rho_for(epsilon, delta) / size**2 - self.rho
        order = order_for(epsilon, delta)
        spent = _between(_grouped(self.curve, size), size, order)
        return (epsilon - at_order(order, spent, delta)) / (size**2 * order) - self.rho

    def fits(self, epsilon: float, delta: float, size: int = 1) -> bool:
        """Whether releases of this cost, chosen one after the other, stay within a limit of (epsilon,
        delta)."""
        return self.room(epsilon, delta, size) >= -ROUNDING * self.rho

    def limit(self, delta: float, size: int = 1) -> float:
        """An epsilon that suffices as a limit for this cost, to a thousandth; infinite where none does."""
        low = high = max(self.epsilon(delta, size), TINY)
        if not self.curve:
            return high
        while not self.fits(high, delta, size):
            low, high = high, high * 1.5
            if high > LARGEST:
                return math.inf
        while high > 1.001 * low:
            middle = (low * high) ** 0.5
            low, high = (low, middle) if self.fits(middle, delta, size) else (middle, high)
        return high


def total(costs: Iterable[Cost]) -> Cost:
    """Of all of them together."""
    return sum(costs, Cost())


def _between(known: list[tuple[float, float]], size: int, order: float) -> float:
    """The divergence at any order, from those of `_grouped`; infinite above the highest.

    (a - 1) times the divergence of order a is convex in a (van Erven and Harremoes, Renyi Divergence and
    Kullback-Leibler Divergence, 2014, Corollary 2), and the divergence itself does not fall.
    """
    below = (1.0, 0.0)
    for divided, divergence in known:
        above = (divided / size, divergence)
        if order <= above[0]:
            share = (order - below[0]) / (above[0] - below[0])
            joined = share * (above[0] - 1.0) * above[1] + (1.0 - share) * (below[0] - 1.0) * below[1]
            return min(above[1], joined / (order - 1.0))
        below = above
    return math.inf


def _grouped(curve: tuple[float, ...], size: int) -> list[tuple[float, float]]:
    """(order, divergence at order / size between data sets that differ in `size` samples), where both exist.

    Bun and Steinke, Lemma 5.2, for distributions P, R, Q and k, a > 1:

        D_a(P | Q)  <=  k a / (k a - 1)  D_b(P | R)  +  D_ka(R | Q),      b = (k a - 1) / (k - 1)

    from one of k samples to the next gives  D_a  <=  sum over j < k of  k a / (k a - j)  R(k a - j), and R
    does not fall with its order.
    """
    return [
        (order, divergence * math.fsum(order / (order - j) for j in range(size)))
        for order, divergence in zip(ORDERS, curve, strict=True)
        if order > size
    ]
