"""Descriptors as vectors that can be compared.

Layout of a vector, as in the authors' code (the paper's eq. 7 interleaves the same numbers), in blocks of l:

    [ mean of all | deviation of all | mean of class 0 .. U-1 | deviation of class 0 .. U-1 ]

so the first 2 l coordinates are what a device without labels can give. A class with fewer than two samples
has no moments: its blocks are NaN here, and get their value when the vector is scaled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedcore.parts import Descriptor, Vector

FEWEST = 2
"""Samples below which a class has no moments."""


def vector(descriptor: Descriptor) -> Vector:
    """One descriptor as a vector of 2 (U+1) l float64, NaN where a class is absent."""
    means, deviations = descriptor.means.copy(), descriptor.deviations.copy()
    absent = descriptor.counts < FEWEST
    absent[0] = False
    means[absent] = deviations[absent] = np.nan
    return np.concatenate([means[0], deviations[0], means[1:].ravel(), deviations[1:].ravel()])


@dataclass(frozen=True, eq=False)
class BlockScaler:
    """Takes every block of `width` coordinates to [0, 1] by one lowest and highest value over all devices.

    low, high, absent: (blocks,) float64; `absent` stands for a missing class before scaling.
    Fitted once, at the clustering round, and only applied after that, without clipping.
    """

    width: int
    low: Vector
    high: Vector
    absent: Vector

    @classmethod
    def fit(cls, vectors: Sequence[Vector], width: int, absent: str) -> "BlockScaler":
        """From the vectors of all devices of the clustering round.

        absent: what a missing class counts as. "minus_one": -1, as the authors' code has it. "beyond": one
        range of the block's values below the lowest, which is far from any present class in every scale.
        """
        stacked = np.stack(vectors)  # (devices, blocks x width)
        per_block = stacked.reshape(len(vectors), -1, width).swapaxes(0, 1)
        blocks = per_block.reshape(per_block.shape[0], -1)
        gaps = np.isnan(blocks)
        low = np.where(gaps, np.inf, blocks).min(axis=1)
        high = np.where(gaps, -np.inf, blocks).max(axis=1)
        empty = gaps.all(axis=1)
        low[empty], high[empty] = 0.0, 0.0
        fill = np.full(len(blocks), -1.0) if absent == "minus_one" else low - (high - low)
        some = gaps.any(axis=1)
        low, high = np.where(some, np.minimum(low, fill), low), np.where(some, np.maximum(high, fill), high)
        return cls(width, low, high, fill)

    def transform(self, one: Vector) -> Vector:
        """A scaled vector; a label-free one, of the first 2 l coordinates, is taken too."""
        blocks = one.reshape(-1, self.width)
        count = len(blocks)
        low, high, absent = self.low[:count, None], self.high[:count, None], self.absent[:count, None]
        span = np.where(high > low, high - low, 1.0)
        scaled: Vector = ((np.where(np.isnan(blocks), absent, blocks) - low) / span).ravel()
        return scaled
