"""One model from many updates, with noise of the server: a guarantee for devices, against who gets models.

Each device's update is shortened to a public norm C, whole updates are summed, every device counting once or
less, and Gaussian noise of standard deviation z C is added to the sum before it is divided by their number
(McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018). How many samples a
device has gives it no more weight: by its own word it could make the others' share, and so the noise, small.

Neighbours are two rounds that differ in one device's update, which is nothing in one of them; that it takes
part, and in which cluster, is the same in both. A device whose shares in several clusters are 1 together
moves all their sums by C at most. So a round costs it rho = 1 / (2 z^2), and rounds add up; no luck of being
chosen is counted in its favour, as the server does not choose in secret.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from secrets import token_bytes

import numpy as np

from fedcore.central.robust import Combined, Update, norm
from fedcore.privacy.accounting import rho_of
from fedcore.privacy.chance import Entropy
from fedcore.privacy.gaussian import noisy
from fedcore.tensors import BLOCK
from fedcore.types import Array, DeviceId, Tensors

NOISED = "noised"
"""Its name among the rules of aggregation."""
WITHIN = 1.0 - 1e-9
"""Of the norm, what updates are shortened to: the rest is for the rounding of float64."""


@dataclass(frozen=True)
class Noise:
    """clip: C, the L2 norm of an update. multiplier: z, of the noise, in units of clip. delta: at which its
    epsilon is told."""

    clip: float
    multiplier: float
    delta: float

    @property
    def rho(self) -> float:
        """What a round costs a device that takes part."""
        return rho_of(self.multiplier)


def noised(
    base: Tensors, updates: Mapping[DeviceId, Update], noise: Noise, entropy: Entropy = token_bytes
) -> Combined:
    """The next model, from at least one update of weight 0 to 1. Every call draws noise anew.

    Whole numbers stay as in `base`. Memory: of one model and one tensor in float64.
    """
    norms = {device: norm(update.model, base) for device, update in updates.items()}
    scales = {
        device: min(1.0, WITHIN * noise.clip / norms[device]) if norms[device] > 0.0 else 0.0
        for device in sorted(updates)
    }
    together = math.fsum(update.weight for update in updates.values())
    model = {
        name: _tensor(name, origin, updates, scales, noise, together, entropy)
        if origin.dtype.kind == "f"
        else origin
        for name, origin in base.items()
    }
    clipped = {device: size / noise.clip for device, size in norms.items() if size > noise.clip}
    return Combined(model, noise.clip, clipped)


def _tensor(
    name: str,
    origin: Array,
    updates: Mapping[DeviceId, Update],
    scales: Mapping[DeviceId, float],
    noise: Noise,
    together: float,
    entropy: Entropy,
) -> Array:
    start, found = origin.reshape(-1), np.empty(origin.size, origin.dtype)
    for first in range(0, origin.size, BLOCK):
        block = slice(first, first + BLOCK)
        total = np.zeros(found[block].size)
        for device, scale in scales.items():
            if scale > 0.0:  # nothing times an infinite step would be no number
                step = updates[device].model[name].reshape(-1)[block].astype(np.float64) - start[block]
                total += (updates[device].weight * scale) * step
        mean = noisy(total, noise.multiplier * noise.clip, entropy) / together
        found[block] = start[block] + mean
    return found.reshape(origin.shape)
