"""The one way from `ExactMoments` or `ExactSums` to something that may leave a device."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from secrets import token_bytes

import numpy as np

from shoal.core.errors import BadPayload
from shoal.core.exchange.parts import Descriptor, FloatArray, Moments, NoisySums, PrivacySettings
from shoal.core.exchange.privacy_modes import Mechanism
from shoal.core.privacy.noise.chance import Chance, Entropy
from shoal.core.privacy.noise.discrete_gaussian import draw
from shoal.core.privacy.sums import GRID, ExactSums
from shoal.core.privacy.terms import Terms


@dataclass(frozen=True, eq=False)
class ExactMoments:
    """Moments of a device's projected latents, before any protection (FLUX appendix C.1.1, step S3).

    On purpose no message and no payload can hold this: only `release` makes something of it that may leave.

    means, deviations: (1 + U, l) float64; deviations are population standard deviations (ddof 0).
    Row 0 is over all samples; row 1 + u over those of class u, zeros where that class has less than two.
    counts: (1 + U,) float64, samples behind each row, as many as they are worth where some are repeated.
    low, high: lowest and highest projected latent, over all samples and coordinates.
    """

    means: FloatArray
    deviations: FloatArray
    counts: FloatArray
    low: float
    high: float


Noise = Callable[[ExactMoments, float, np.random.Generator], tuple[FloatArray, FloatArray]]


def noisy_count(count: int, rho: float, entropy: Entropy) -> int:
    """A count that one sample moves by at most 1, with discrete Gaussian noise that costs `rho`."""
    return count + draw(1 / (2 * Fraction(rho)), 1, Chance(entropy))[0]


def release_sums(
    exact: ExactSums, settings: PrivacySettings, terms: Terms, projector: str, entropy: Entropy = token_bytes
) -> Descriptor:
    """These sums with discrete Gaussian noise, which costs `terms.rho`. Every call draws new noise: what
    may be sent twice is what was released, and never the sums again.

    projector: its SHA-256, 64 hex digits. entropy: on a device the operating system's, and never a seed.
    """
    if exact.values.shape[0] != 1 + terms.classes:
        raise ValueError(f"sums of {exact.values.shape[0] - 1} classes, {terms.classes} are to be released")
    noise = draw(Fraction(terms.sigma) ** 2 * GRID**2, exact.values.size, Chance(entropy))
    values = exact.values + np.array(noise, np.int64).reshape(exact.values.shape)
    return Descriptor(NoisySums(values, terms.sigma, exact.radius), projector, settings)


def release(
    moments: ExactMoments, settings: PrivacySettings, projector: str, noise: np.random.Generator
) -> Descriptor:
    """The descriptor of these moments, in the modes without a guarantee. Counts are sent as they are.

    projector: its SHA-256, 64 hex digits.
    noise: on a device, a generator that the operating system's entropy has seeded; never one of a known seed.
    """
    if settings.calibrated:
        raise BadPayload(f"privacy mode {settings.mode} releases sums, not moments")
    means, deviations = _OPEN[settings.rules.mechanism](moments, settings.epsilon, noise)
    return Descriptor(Moments(means, deviations, moments.counts.copy()), projector, settings)


def _off(moments: ExactMoments, epsilon: float, noise: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """The moments as they are."""
    return moments.means.copy(), moments.deviations.copy()


def _paper(
    moments: ExactMoments, epsilon: float, noise: np.random.Generator
) -> tuple[FloatArray, FloatArray]:
    """The mechanism of FLUX (appendix C.1.1, step S4) and FEROMA, kept to compare with their tables.

    Laplace noise of scale (high - low) / (n epsilon) on every mean and every deviation, the rows of absent
    classes included. n is the number of all samples, for the class rows too.

    It is NOT differentially private, though the papers say that it is (epsilon, 0). Each coordinate by itself
    is given epsilon, and one record touches 4 l of them. The mean of a class moves by up to 1/n_class of the
    range, a deviation by more than 1/n of it. The range is read off the data, so that the amount of noise is
    itself a secret, and no finite epsilon holds. Were the range public, the true epsilon would still be 821
    for a claimed 1 (n = 300, l = 10, 10 equal classes): see docs/proofs.md.
    """
    scale = (moments.high - moments.low) / (moments.counts[0] * epsilon)
    shape = moments.means.shape
    return (
        moments.means + noise.laplace(0.0, scale, shape),
        moments.deviations + noise.laplace(0.0, scale, shape),
    )


_OPEN: Mapping[Mechanism, Noise] = {Mechanism.NONE: _off, Mechanism.PAPER: _paper}
