"""What released sums can be: a device that did as it was asked cannot have sent anything else.

Each sample adds a vector of bounded length to a sum (`shoal.core.privacy.sums`), with non-negative squares
and the same count for every sample. So the count, which is released too, bounds the rest, apart from noise
whose size is public. What is outside these bounds was not made from data, whatever the data are.
"""

import numpy as np

from shoal.core.errors import BadPayload
from shoal.core.exchange.parts import FloatArray, NoisySums
from shoal.core.privacy.sums import GRID, SHARES, weights

TAIL = 12.0
"""In standard deviations of the noise: an honest release is farther away with probability 10^-31."""
ROUNDING = 1e-5
"""Relative: sums of what was truncated to the grid differ by less."""
HINT = "update the device's software, or look at who runs it"


def check_sums(sums: NoisySums) -> None:
    """Raises BadPayload for sums that no samples have, whatever the noise is."""
    marginal, own = weights(sums.rows - 1)
    weight = np.array([marginal, *[own] * (sums.rows - 1)])
    total = sums.values / (GRID * weight[:, None])
    noise = TAIL * sums.sigma / weight
    count, latents, squares = total[:, -1], total[:, : sums.dims], total[:, sums.dims : -1]
    a, b, c = SHARES
    room = np.sqrt(sums.dims) * noise
    _expect((count >= -noise).all(), "it counts fewer than no samples")
    _expect((squares >= -noise[:, None]).all(), "a sum of squares is negative")
    _within("the latents", np.linalg.norm(latents, axis=1), a / c * count, room + a / c * noise)
    _within("the squares", squares.sum(axis=1), b / c * count, room + b / c * noise)
    if sums.rows > 1:
        rest = np.abs(total[0] - total[1:].sum(axis=0))
        spread = noise[0] + np.sqrt(sums.rows - 1) * noise[1]
        same = rest <= spread + ROUNDING * np.abs(total[0]) + ROUNDING * abs(count[0])
        _expect(bool(same.all()), "the sums of its classes are not the sum of all samples")


def _within(what: str, found: FloatArray, most: FloatArray, noise: FloatArray) -> None:
    fits = found <= np.maximum(most, 0.0) * (1.0 + ROUNDING) + noise
    _expect(bool(fits.all()), f"{what} sum to more than its samples can")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise BadPayload(f"the descriptor cannot be of any data: {what}", HINT)
