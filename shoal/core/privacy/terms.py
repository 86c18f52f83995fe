"""From what is asked to what is released: how much noise, with or without classes, or nothing at all.

Decided only from what is public: the settings, the number of classes of the run, and how many samples the
device has, which the server is given anyway. How many samples a class has is not public and decides nothing.
"""

import math
from dataclasses import dataclass

from shoal.core.errors import TooFewSamples
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.privacy.cost import Cost, rho_for, sigma_of
from shoal.core.privacy.sums import SHARES, weights

WORST = 0.02
"""The most noise on a mean over all samples, as a share of the radius: with more, a release tells too little
to be worth its cost."""
CLEAR = 5.0
"""A noisy count means something from this many times its noise on."""


@dataclass(frozen=True)
class Terms:
    """classes: rows of classes to release, 0 for only that of all samples. sigma: noise, in units of the
    sensitivity. delta: that holds together with the settings' epsilon. rho: what it costs, for one sample.
    """

    classes: int
    sigma: float
    delta: float
    rho: float

    @property
    def cost(self) -> Cost:
        return Cost(self.rho)


def terms(settings: PrivacySettings, samples: int, classes: int) -> Terms:
    """The terms of a release in a calibrated mode, by a device with this many samples.

    classes: U, or 0 where the label-free descriptor is asked for. Raises TooFewSamples.
    """
    if not settings.calibrated:
        raise ValueError(f"privacy mode {settings.mode} has no terms")
    delta = min(settings.delta, 1.0 / (100.0 * max(samples, 1)))
    rho = rho_for(settings.epsilon, delta) / settings.group_size**2
    sigma = sigma_of(rho)
    latents, _, count = SHARES
    required = math.ceil(sigma / (latents * WORST))
    if samples < required:
        raise TooFewSamples(
            f"{samples} samples are too few to be described with epsilon {settings.epsilon:g}: "
            "the noise would hide what they tell",
            f"at least {required} samples, a run with a larger epsilon (privacy=explicit), or privacy=off",
        )
    _, own = weights(classes)
    if classes:
        clear = CLEAR * sigma / (own * count)
        if samples < classes * max(clear, settings.rules.samples_per_class):
            classes = 0
    return Terms(classes, sigma, delta, rho)
