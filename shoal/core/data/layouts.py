"""How the axes of samples may be arranged for a network, and what samples without a channel show.

People keep the same images as (n, 28, 28), (n, 28, 28, 1), (n, 784) or (n, 1, 28, 28), and a network takes
one of these. `layouts_of` lists those that are worth a try; `shoal.core.device_kit.shapes` tries them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from shoal.core.types import Array

MIN_SIDE = 8
"""Pixels or readings: arrays of at least this many in both directions may be images of any format."""
CHANNELS = (1, 3, 4)
"""Of images: gray, color, and color with transparency."""


@dataclass(frozen=True)
class Layout:
    """name: for people, after "samples ...". apply: (n, ...) samples -> the same samples, whose memory is
    shared where that is possible."""

    name: str
    apply: Callable[[Array], Array] = field(repr=False)

    def shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """Of one sample of this shape."""
        return self.apply(np.broadcast_to(np.float32(0), (1, *shape))).shape[1:]


def _same(x: Array) -> Array:
    return x


def _channel(x: Array) -> Array:
    return x[:, None]


def _last_first(x: Array) -> Array:
    return np.moveaxis(x, -1, 1)


def _flat(x: Array) -> Array:
    return x.reshape(len(x), -1)


def _square(x: Array) -> Array:
    side = math.isqrt(x.shape[1])
    return x.reshape(len(x), 1, side, side)


def _float(x: Array) -> Array:
    return x.astype(np.float32)


def _whole(x: Array) -> Array:
    return x.astype(np.int64)


AS_THEY_ARE = Layout("as they are", _same)
CHANNEL = Layout("with a channel in front", _channel)
LAST_FIRST = Layout("with the last axis first", _last_first)
FLAT = Layout("flattened", _flat)
SQUARE = Layout("as square images of one channel", _square)
FLOAT = Layout("as float32", _float)
WHOLE = Layout("as whole numbers", _whole)


def layouts_of(x: Array) -> list[Layout]:
    """What to try, the likeliest first: the samples (n, ...) as they are come first.

    Whole numbers other than bytes, such as tokens, are also tried as float32 in each layout, and float32
    samples of whole numbers as int64.
    """
    shape = x.shape[1:]
    axes = [AS_THEY_ARE]
    axes += [CHANNEL] if len(shape) in (1, 2) else []
    axes += [LAST_FIRST] if len(shape) in (2, 3) else []
    axes += [FLAT] if len(shape) > 1 else []
    axes += (
        [SQUARE]
        if len(shape) == 1 and shape[0] >= MIN_SIDE**2 and math.isqrt(shape[0]) ** 2 == shape[0]
        else []
    )
    if x.dtype.kind in "iu" and x.dtype != np.uint8:
        return [*axes, FLOAT, *(_both(FLOAT, each) for each in axes[1:])]
    if x.dtype.kind == "f" and bool((x == np.floor(x)).all()):
        return [*axes, WHOLE]
    return axes


def _both(first: Layout, second: Layout) -> Layout:
    return Layout(f"{first.name}, {second.name}", _Chain(first.apply, second.apply))


@dataclass(frozen=True)
class _Chain:
    """One after the other; unlike a closure, other processes can be sent it."""

    first: Callable[[Array], Array]
    second: Callable[[Array], Array]

    def __call__(self, x: Array) -> Array:
        return self.second(self.first(x))


def are_images(shape: Sequence[int], dtype: npt.DTypeLike, low: float, high: float) -> bool:
    """Whether samples (h, w) are taken for gray images, and not for windows of readings (channels, length).

    They are where all values are bytes or lie in 0 to 255, and the sides are equal or both at least
    `MIN_SIDE`. low, high: the least and the greatest value of all samples.

    Example:
        >>> are_images((28, 28), np.uint8, 0, 255), are_images((6, 128), np.float32, -1.5, 1.5)
        (True, False)
    """
    if len(shape) != 2:
        return False
    pixels = np.dtype(dtype) == np.uint8 or (low >= 0 and high <= 255)
    return bool(pixels and (shape[0] == shape[1] or min(shape) >= MIN_SIDE))


def channel_is_last(shape: Sequence[int]) -> bool:
    """Whether images of this shape have their channel behind, (h, w, channels), as files of pictures do."""
    return len(shape) == 3 and shape[2] in CHANNELS and shape[0] not in CHANNELS
