"""Damaged images, at five severities: what weather, motion and cheap sensors do to a picture.

In the manner of MNIST-C (Mu and Gilmer, MNIST-C: A Robustness Benchmark for Computer Vision, 2019) and
Fashion-MNIST-C (Weiss and Tonella, 2022), with arithmetic of our own: figures on those are not figures on
these. All take images (n, c, h, w) float32 in [0, 1], a severity of 1 to 5, and chance, and give as many.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from shoal.simulation.images import rotate

Images = npt.NDArray[np.float32]
Corruption = Callable[[Images, int, np.random.Generator], Images]
SEVERITIES = range(1, 6)


def identity(images: Images, severity: int, chance: np.random.Generator) -> Images:
    return images


def gaussian_noise(images: Images, severity: int, chance: np.random.Generator) -> Images:
    """Standard deviation 0.06 to 0.3."""
    return _clipped(images + 0.06 * severity * chance.standard_normal(images.shape, np.float32))


def shot_noise(images: Images, severity: int, chance: np.random.Generator) -> Images:
    """Photons: 60, 30, 20, 15 or 12 at full brightness."""
    photons = 60.0 / severity
    return _clipped(chance.poisson(images * photons) / photons)


def impulse_noise(images: Images, severity: int, chance: np.random.Generator) -> Images:
    """3 to 15 % of the pixels are black or white."""
    hit = chance.random(images.shape) < 0.03 * severity
    return np.where(hit, chance.integers(0, 2, images.shape), images).astype(np.float32)


def blur(images: Images, severity: int, chance: np.random.Generator) -> Images:
    """Replace each pixel by the mean of itself and its four neighbors, 1 to 5 times over."""
    for _ in range(severity):
        padded = np.pad(images, ((0, 0), (0, 0), (1, 1), (1, 1)), mode="edge")
        images = _clipped(
            (
                images
                + padded[..., :-2, 1:-1]
                + padded[..., 2:, 1:-1]
                + padded[..., 1:-1, :-2]
                + padded[..., 1:-1, 2:]
            )
            / 5.0
        )
    return images


def pixelate(images: Images, severity: int, chance: np.random.Generator) -> Images:
    """One value for squares of 2, 2, 3, 3 or 4 pixels: that of their upper left corner."""
    side = (2, 2, 3, 3, 4)[severity - 1]
    rows, columns = (np.arange(size) // side * side for size in images.shape[2:])
    return images[:, :, rows[:, None], columns[None]]


def brightness(images: Images, severity: int, chance: np.random.Generator) -> Images:
    """Lighter by 0.1 to 0.5."""
    return _clipped(images + 0.1 * severity)


def contrast(images: Images, severity: int, chance: np.random.Generator) -> Images:
    """85 to 25 % of the contrast, around each image's own mean."""
    mean = images.mean(axis=(1, 2, 3), keepdims=True)
    return _clipped(mean + (1.0 - 0.15 * severity) * (images - mean))


def inverted_stripe(images: Images, severity: int, chance: np.random.Generator) -> Images:
    """One stripe across each picture is a negative, 1 to 5 fourteenths of it wide."""
    height = images.shape[2]
    wide = max(1, height * severity // 14)
    start = (height - wide) // 2
    found = images.copy()
    found[:, :, start : start + wide] = 1.0 - found[:, :, start : start + wide]
    return found


def rotation(images: Images, severity: int, chance: np.random.Generator) -> Images:
    """By 6 to 30 degrees, to the left or to the right, all images alike."""
    turned: Images = rotate(images, 6.0 * severity * (1 - 2 * int(chance.integers(2))))
    return turned


def translation(images: Images, severity: int, chance: np.random.Generator) -> Images:
    """By 1 to 5 pixels down and to the right, all images alike; what comes in is black."""
    found = np.zeros_like(images)
    found[:, :, severity:, severity:] = images[:, :, :-severity, :-severity]
    return found


CORRUPTIONS: Mapping[str, Corruption] = {
    each.__name__: each
    for each in (
        identity,
        gaussian_noise,
        shot_noise,
        impulse_noise,
        blur,
        pixelate,
        brightness,
        contrast,
        inverted_stripe,
        rotation,
        translation,
    )
}


def _clipped(images: npt.NDArray[np.floating[Any]]) -> Images:
    found: Images = np.clip(images, 0.0, 1.0).astype(np.float32)
    return found
