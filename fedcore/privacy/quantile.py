"""A quantile of a device's values, under a budget, by noisy binary search: a bound that is no extreme.

Each step asks how many values lie at or below a threshold. One sample moves that count by 1 at most: a step
with noise sigma costs rho = 1 / (2 sigma^2), and steps add up, though each depends on those before.
"""

from fractions import Fraction
from secrets import token_bytes

from fedcore.parts import Vector
from fedcore.privacy.accounting import sigma_of
from fedcore.privacy.chance import Chance, Entropy
from fedcore.privacy.discrete_gaussian import draw

STEPS = 10


def private_quantile(
    values: Vector, share: float, highest: float, rho: float, entropy: Entropy = token_bytes
) -> float:
    """About the value below which `share` of (n,) values lie, between 0 and the public `highest`.

    The answer is a multiple of highest / 2^10, and never below the first of them. It costs `rho`, above 0,
    whatever comes out; n is public. Values that are NaN count as highest.
    """
    if not 0.0 < share < 1.0:
        raise ValueError(f"{share} is no share between 0 and 1")
    variance = Fraction(sigma_of(rho / STEPS)) ** 2
    chance = Chance(entropy)
    low, high = 0, 1 << STEPS
    while high - low > 1:
        middle = (low + high) // 2
        below = int((values <= highest * middle / (1 << STEPS)).sum()) + draw(variance, 1, chance)[0]
        low, high = (low, middle) if below >= share * len(values) else (middle, high)
    return highest * high / (1 << STEPS)
