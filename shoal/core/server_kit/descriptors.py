"""Descriptors as vectors that can be compared.

The layout of a vector is that of the authors' code (the paper's eq. 7 interleaves the same numbers), in
blocks of l:

    [ mean of all | deviation of all | mean of class 0 .. U-1 | deviation of class 0 .. U-1 ]

The first 2 l coordinates are therefore what a device without labels can give. A class with fewer than two
samples has no moments. Its blocks are NaN until the vector is scaled: any number here would look like a
measured value, and only the scaler knows the range in which a substitute lies far from all of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from shoal.core.exchange.parts import Descriptor, FloatArray
from shoal.core.server_kit.estimates import estimate
from shoal.core.texts import listed, plural
from shoal.core.types import DeviceId


def undescribed(
    known: Iterable[DeviceId], answers: Mapping[DeviceId, Descriptor | None]
) -> tuple[DeviceId, ...]:
    """The devices with too few samples for a descriptor, after these answers. One of those that are `known`
    may have enough by now."""
    few = {device for device, one in answers.items() if one is None}
    return tuple(sorted({device for device in known if device not in answers} | few))


def too_few(devices: Sequence[DeviceId], epsilon: float) -> str:
    """What people read of devices that could not be described with this guarantee, as a clause."""
    have = "has" if len(devices) == 1 else "have"
    return (
        f"{plural(len(devices), 'device')} ({listed(devices)}) {have} too few samples to be described with "
        f"epsilon {epsilon:g}"
    )


def vector(descriptor: Descriptor, classes: int = 0) -> FloatArray:
    """One descriptor as a vector of 2 (U+1) l float64 values, NaN where a class is absent or hidden by noise.

    classes: U, if the descriptor may lack the rows of classes; they are then NaN.
    """
    found = estimate(descriptor)
    known = found.known.copy()
    known[0] = True
    means, deviations = (
        np.where(known[:, None], moments, np.nan) for moments in (found.means, found.deviations)
    )
    return _laid_out(means, deviations, classes, np.nan)


def noise_vector(descriptor: Descriptor, classes: int = 0) -> FloatArray:
    """Variances of the noise in `vector`, coordinate by coordinate; infinite for unknown coordinates."""
    found = estimate(descriptor)
    return _laid_out(found.mean_noise, found.deviation_noise, classes, np.inf)


def _laid_out(means: FloatArray, deviations: FloatArray, classes: int, missing: float) -> FloatArray:
    lacking = np.full((max(1 + classes - len(means), 0), means.shape[1]), missing)
    blocks = [means[0], deviations[0], means[1:], lacking, deviations[1:], lacking]
    return np.concatenate([block.ravel() for block in blocks])


@dataclass(frozen=True, eq=False)
class Table:
    """Descriptors side by side, (n, 1 + U, l) or (n, 1 + U). Noise is given as variances. If a descriptor
    lacks the rows of classes, these are unknown and their noise is infinite."""

    means: FloatArray
    variances: FloatArray
    counts: FloatArray
    mean_noise: FloatArray
    deviation_noise: FloatArray
    count_noise: FloatArray
    known: npt.NDArray[np.bool_]

    @property
    def noisy(self) -> npt.NDArray[np.bool_]:
        """(n,): which descriptors were released with noise of a known size."""
        return self.count_noise[:, 0] > 0.0

    @property
    def errors(self) -> FloatArray:
        """(n, 1 + U, l): variances of the means, from sampling and from noise."""
        return self.variances / self._free + self.mean_noise

    @property
    def _free(self) -> FloatArray:
        free: FloatArray = np.maximum(self.counts - 1.0, 1.0)[:, :, None]
        return free

    def without_classes(self) -> "Table":
        """Only the rows of all samples together."""
        return Table(*(getattr(self, field.name)[:, :1] for field in fields(self)))


def aligned(described: Sequence[Descriptor]) -> Table:
    """Descriptors with one number of dimensions, and with one number of classes or none."""
    found = [estimate(one) for one in described]
    rows = max(len(one.means) for one in found)

    def stacked(arrays: Iterable[FloatArray], missing: float) -> FloatArray:
        return np.stack(
            [
                np.concatenate([array, np.full((rows - len(array), *array.shape[1:]), missing)])
                for array in arrays
            ]
        )

    return Table(
        stacked((one.means for one in found), 0.0),
        stacked((one.deviations**2 for one in found), 0.0),
        stacked((one.counts for one in found), 0.0),
        stacked((one.mean_noise for one in found), np.inf),
        stacked((one.deviation_noise for one in found), np.inf),
        stacked((one.count_noise for one in found), np.inf),
        stacked((one.known.astype(np.float64) for one in found), 0.0) > 0.0,
    )


@dataclass(frozen=True, eq=False)
class BlockScaler:
    """Scales every block of `width` coordinates to [0, 1] by its lowest and highest value over all devices.

    low, high, absent: (blocks,) float64; `absent` replaces a missing class before scaling. A scaler is fitted
    once, in the clustering round. After that it is only applied, without clipping.
    """

    width: int
    low: FloatArray
    high: FloatArray
    absent: FloatArray

    @classmethod
    def fit(
        cls, vectors: Sequence[FloatArray], width: int, as_published: bool = False, noisy: bool = False
    ) -> "BlockScaler":
        """The scaler of the vectors of all devices of the clustering round.

        A missing class counts as one range of the block's values below the lowest, which is far from any
        present class on every scale; as_published: as -1, as in the authors' code. noisy: it stays NaN,
        because noise hides which classes are missing.
        """
        stacked = np.stack(vectors)  # (devices, blocks x width)
        per_block = stacked.reshape(len(vectors), -1, width).swapaxes(0, 1)
        blocks = per_block.reshape(per_block.shape[0], -1)
        gaps = np.isnan(blocks)
        low = np.where(gaps, np.inf, blocks).min(axis=1)
        high = np.where(gaps, -np.inf, blocks).max(axis=1)
        empty = gaps.all(axis=1)
        low[empty], high[empty] = 0.0, 0.0
        if noisy:
            return cls(width, low, high, np.full(len(blocks), np.nan))
        fill = np.full(len(blocks), -1.0) if as_published else low - (high - low)
        some = gaps.any(axis=1)
        low, high = np.where(some, np.minimum(low, fill), low), np.where(some, np.maximum(high, fill), high)
        return cls(width, low, high, fill)

    def transform(self, one: FloatArray) -> FloatArray:
        """A scaled vector; a label-free one, with only the first 2 l coordinates, is accepted too."""
        blocks = one.reshape(-1, self.width)
        count = len(blocks)
        low, absent = self.low[:count, None], self.absent[:count, None]
        scaled: FloatArray = (
            (np.where(np.isnan(blocks), absent, blocks) - low) / self._spans[:count]
        ).ravel()
        return scaled

    def restored(self, scaled: FloatArray) -> FloatArray:
        """The inverse of `transform`, for (n, ...) scaled vectors; a missing class gets the value that
        replaced it."""
        blocks = scaled.reshape(len(scaled), -1, self.width)
        count = blocks.shape[1]
        found: FloatArray = (blocks * self._spans[:count] + self.low[:count, None]).reshape(scaled.shape)
        return found

    def transform_noise(self, variances: FloatArray) -> FloatArray:
        """The noise of a vector after scaling, given and returned as variances."""
        blocks = variances.reshape(-1, self.width)
        scaled: FloatArray = (blocks / self._spans[: len(blocks)] ** 2).ravel()
        return scaled

    @property
    def _spans(self) -> FloatArray:
        """(blocks, 1): the range of each block; 1 for a block whose values are all equal."""
        span: FloatArray = np.where(self.high > self.low, self.high - self.low, 1.0)[:, None]
        return span
