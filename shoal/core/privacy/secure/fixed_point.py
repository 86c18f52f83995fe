"""Updates as whole numbers of 32 bits, of which sums are exact, and back.

An update is shortened to a norm C, scaled by a power of two and truncated toward zero, which shortens it
further: so one device moves the sum by at most C times the scale (L2 norm), in whole numbers. The scale
leaves room for the sum of all devices and their noise, so that nothing wraps around.
"""

import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from shoal.core.exchange.tensors import floats_of, manifest_of
from shoal.core.privacy.secure.cohort import smallest
from shoal.core.privacy.secure.masks import Words
from shoal.core.types import Array, Tensors

Vector = npt.NDArray[np.float64]
WITHIN = 1.0 - 1e-9
"""Of the norm, what updates are shortened to; the rest covers rounding errors of float64."""
TAIL = 12.0
"""Standard deviations of noise for which there is room."""


def scale_of(clip: float, noise: float, devices: int) -> float:
    """Steps in one unit, for updates of norm `clip` of a cohort with this many devices.

    noise: of the smallest sum that any server learns, in units of `clip`; 0 for none.
    """
    spread = noise * math.sqrt(devices / smallest(devices))
    return 2.0 ** math.floor(math.log2((2**31 - 1) / (clip * (devices + TAIL * spread))))


def variance_of(clip: float, noise: float, devices: int) -> Fraction:
    """Of the noise that each device adds, in steps: so much that the smallest sum has `noise`."""
    steps = Fraction(noise) * Fraction(clip) * Fraction(scale_of(clip, noise, devices))
    return steps**2 / smallest(devices)


def vector(base: Tensors, model: Tensors, clip: float) -> Vector:
    """(d,) float64, what a model has moved from `base`, shortened to the norm `clip`. A model that has NaN or
    infinite values counts as one that has not moved."""
    moved = np.concatenate(
        [
            (model[spec.name].astype(np.float64) - base[spec.name]).reshape(-1)
            for spec in floats_of(manifest_of(base))
        ]
    )
    size = float(np.linalg.norm(moved))
    if not math.isfinite(size):
        return np.zeros(len(moved))
    return moved * min(1.0, WITHIN * clip / size) if size > 0.0 else moved


def steps_of(moved: Vector, scale: float) -> npt.NDArray[np.int64]:
    """(d,) whole numbers, truncated toward zero."""
    return np.trunc(moved * scale).astype(np.int64)


def to_words(steps: npt.NDArray[np.int64]) -> Words:
    """Modulo 2^32."""
    return (steps & 0xFFFFFFFF).astype(np.uint32)


def moved_by(base: Tensors, total: Words, scale: float, devices: int) -> dict[str, Array]:
    """`base`, moved by the mean of this many updates, of which `total` is the sum."""
    mean = total.view(np.int32).astype(np.float64) / (scale * devices)
    found: dict[str, Array] = dict(base)
    at = 0
    for spec in floats_of(manifest_of(base)):
        array, size = base[spec.name], spec.size
        step = mean[at : at + size].reshape(spec.shape)
        found[spec.name] = (array.astype(np.float64) + step).astype(array.dtype)
        at += size
    return found
