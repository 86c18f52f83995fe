"""The mean of what devices say, such that fewer than a quarter of them cannot carry it away."""

import numpy as np

from shoal.core.types import Array


def trimmed_mean(values: Array) -> Array:
    """The mean over the first axis without as many of either end as could lie: the most below a quarter.

    values: (devices, ...); finite, or infinite where fewer than a quarter of the devices say so. What is left
    lies within what the others say.

    Example:
        >>> float(trimmed_mean(np.array([0.5, 1e30, 0.7, 0.6, 0.6])))
        0.6333333333333333
    """
    left_out = -(-len(values) // 4) - 1
    found: Array = np.sort(values, axis=0)[left_out : len(values) - left_out].mean(axis=0)
    return found
