"""Descriptors of devices whose data are drawn from known distributions, without and with privacy."""

import numpy as np

from shoal.core.exchange.parts import Descriptor, PrivacySettings
from shoal.core.inference.describing import moments_of
from shoal.core.privacy.release import release, release_sums
from shoal.core.privacy.sums import sums_of
from shoal.core.privacy.terms import terms

CLASSES, DIMS = 4, 6
BALANCED, STRICT = PrivacySettings("balanced", 5.0, 1e-6), PrivacySettings("strict", 1.0, 1e-6)


def device(
    seed: int,
    shift: float = 0.0,
    samples: int = 200,
    mix: tuple[float, ...] = (1, 1, 1, 1),
    spread: float = 1.0,
) -> Descriptor:
    """Gaussian latents around a mean for each class, all moved by `shift`."""
    chance = np.random.default_rng(seed)
    labels = chance.choice(CLASSES, samples, p=np.array(mix) / sum(mix))
    latents = labels[:, None] * 2.0 + chance.normal(size=(samples, DIMS)) * spread + shift
    moments = moments_of(latents, labels, CLASSES)
    return release(moments, PrivacySettings(), "0" * 64, chance)


def private(
    seed: int, shift: float = 0.0, samples: int = 600, settings: PrivacySettings = BALANCED, turn: int = 0
) -> Descriptor:
    """As `device`, in a ball of radius 1; `turn` calls every class by the name of one further on."""
    chance = np.random.default_rng(seed)
    labels = chance.integers(0, CLASSES, samples)
    centres = np.random.default_rng(0).normal(size=(CLASSES, DIMS)) * 0.2
    latents = centres[labels] + 0.1 * chance.normal(size=(samples, DIMS)) + shift
    agreed = terms(settings, samples, CLASSES)
    exact = sums_of([(latents, (labels + turn) % CLASSES)], 1.0, DIMS, agreed.classes)
    return release_sums(exact, settings, agreed, "0" * 64, chance.bytes)
