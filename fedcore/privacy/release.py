"""The one way from `Moments` to something that may leave a device."""

from collections.abc import Callable, Mapping

import numpy as np

from fedcore.parts import Descriptor, PrivacySettings, Vector
from fedcore.privacy.moments import Moments

Mechanism = Callable[[Moments, float, np.random.Generator], tuple[Vector, Vector]]


def release(
    moments: Moments, settings: PrivacySettings, projector: str, noise: np.random.Generator
) -> Descriptor:
    """The descriptor of these moments, protected as `settings` say. Counts are sent as they are.

    projector: its SHA-256, 64 hex digits.
    noise: on a device, a generator that the operating system's entropy has seeded; never one of a known seed.
    """
    means, deviations = _MECHANISMS[settings.mode](moments, settings.epsilon, noise)
    return Descriptor(means, deviations, moments.counts.copy(), projector, settings)


def _off(moments: Moments, epsilon: float, noise: np.random.Generator) -> tuple[Vector, Vector]:
    """The moments as they are."""
    return moments.means.copy(), moments.deviations.copy()


def _paper(moments: Moments, epsilon: float, noise: np.random.Generator) -> tuple[Vector, Vector]:
    """The mechanism of FLUX (appendix C.1.1, step S4) and FEROMA, kept to compare with their tables.

    Laplace noise of scale (high - low) / (n epsilon) on every mean and every deviation, the rows of absent
    classes included. n is the number of all samples, for the class rows too.

    It is NOT differentially private, though the papers say that it is (epsilon, 0). Each coordinate alone is
    given epsilon, and one record touches 4 l of them. The mean of a class moves by up to 1/n_class of the
    range, a deviation by more than 1/n of it. The range is read off the data, so that the amount of noise is
    itself a secret, and no finite epsilon holds. Were the range public, the true epsilon would still be 821
    for a claimed 1 (n = 300, l = 10, 10 equal classes): see docs/privacy.md.
    """
    scale = (moments.high - moments.low) / (moments.counts[0] * epsilon)
    shape = moments.means.shape
    return (
        moments.means + noise.laplace(0.0, scale, shape),
        moments.deviations + noise.laplace(0.0, scale, shape),
    )


_MECHANISMS: Mapping[str, Mechanism] = {"off": _off, "paper": _paper}
