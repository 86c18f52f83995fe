"""Images that need no download, for the demo, the checks and examples: handwritten digits, bundled with
scikit-learn, and what is done to images before a device sees them."""

import functools
import importlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.core.data.dataset import Dataset

TRAIN = 1438
"""How many of the 1,797 images are the train set: four fifths, always the same ones."""


def digits() -> tuple[Dataset, Dataset]:
    """Train and test set: 1,438 and 359 images (n, 8, 8) uint8 in 0..255, with their classes 0..9 as int64.

    Values are 0..16 in the file: they are scaled by 255/16 and rounded. The images come in the order of
    `RandomState(0).permutation(1797)`.

    Example:
        >>> train, test = digits()
        >>> train.x.shape, test.x.shape
        ((1438, 8, 8), (359, 8, 8))
    """
    # By name, so that scikit-learn is needed only by those who ask for its digits.
    bundled = importlib.import_module("sklearn.datasets").load_digits()
    order = np.random.RandomState(0).permutation(len(bundled.target))
    everything = Dataset(np.rint(bundled.images * (255 / 16)).astype(np.uint8), bundled.target)
    return everything.subset(order[:TRAIN]), everything.subset(order[TRAIN:])


def rotate(images: npt.NDArray[Any], degrees: float) -> npt.NDArray[Any]:
    """`images` (..., h, w) turned counter-clockwise about their center, at their size, 0 where nothing was.

    Nearest neighbor, pixel for pixel what Pillow's `Image.rotate(degrees)` gives.
    """
    height, width = images.shape[-2:]
    source, outside = _rotation(height, width, degrees)
    turned = np.take(images.reshape(*images.shape[:-2], height * width), source, axis=-1)
    turned[..., outside] = 0
    return turned.reshape(images.shape)


@functools.lru_cache(maxsize=64)
def _rotation(height: int, width: int, degrees: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """For each output pixel, in reading order: the input pixel it shows, and whether that lies outside."""
    # Pillow rounds both to 15 digits, which makes the multiples of 90 exact, and steps in 16.16 fixed point.
    cosine = round(math.cos(math.radians(degrees)), 15)
    sine = round(math.sin(math.radians(degrees)), 15)
    start_x = width / 2 - cosine * width / 2 + sine * height / 2
    start_y = height / 2 - sine * width / 2 - cosine * height / 2

    def fixed(value: float) -> int:
        return math.floor(value * 65536 + 0.5)

    # A pixel is looked up at its middle, hence the halves.
    y, x = np.mgrid[0:height, 0:width]
    from_x = (fixed(start_x + cosine / 2 - sine / 2) + x * fixed(cosine) + y * fixed(-sine)) >> 16
    from_y = (fixed(start_y + sine / 2 + cosine / 2) + x * fixed(sine) + y * fixed(cosine)) >> 16
    outside = (from_x < 0) | (from_x >= width) | (from_y < 0) | (from_y >= height)
    return np.where(outside, 0, from_y * width + from_x).ravel(), outside.ravel()


def unit(images: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """Bytes, or numbers in [0, 1] -> float32 (n, c, h, w) in [0, 1], always a copy; (n, h, w) has c = 1.

    Samples of another number of dimensions keep their shape.
    """
    top = np.float32(255 if images.dtype == np.uint8 else 1)
    scaled: npt.NDArray[np.float32] = np.divide(images, top, dtype=np.float32)
    return scaled[:, np.newaxis] if scaled.ndim == 3 else scaled
