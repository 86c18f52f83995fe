"""Moments as measured: exact, and therefore private."""

from dataclasses import dataclass

from shoal.core.exchange.parts import Vector


@dataclass(frozen=True, eq=False)
class ExactMoments:
    """Moments of a device's projected latents, before any protection (FLUX appendix C.1.1, step S3).

    On purpose no message and no payload can hold this: only `release` makes something of it that may leave.

    means, deviations: (1 + U, l) float64; deviations are population standard deviations (ddof 0).
    Row 0 is over all samples; row 1 + u over those of class u, zeros where that class has less than two.
    counts: (1 + U,) float64, samples behind each row, as many as they are worth where some are repeated.
    low, high: lowest and highest projected latent, over all samples and coordinates.
    """

    means: Vector
    deviations: Vector
    counts: Vector
    low: float
    high: float
