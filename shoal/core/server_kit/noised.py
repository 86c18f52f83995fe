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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any

import numpy as np

from shoal.core.algorithm import NOISED, Report
from shoal.core.exchange.tensors import BLOCK
from shoal.core.privacy.chance import Entropy
from shoal.core.privacy.cost import rho_of
from shoal.core.privacy.dpsgd import noisy
from shoal.core.privacy.report import CentralNoise
from shoal.core.server_kit.robust import Update, norm
from shoal.core.server_kit.standard import trained
from shoal.core.types import Array, DeviceId, ModelKey, Tensors

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
) -> dict[str, Array]:
    """The next model, from at least one update of weight 0 to 1. Every call draws noise anew.

    Whole numbers stay as in `base`. Memory: of one model and one block in float64.
    """
    scales: dict[DeviceId, float] = {}
    for device, update in sorted(updates.items()):
        size = norm(update.model, base if update.origin is None else update.origin)
        scales[device] = min(1.0, WITHIN * noise.clip / size) if size > 0.0 else 0.0
    return {
        name: _tensor(name, origin, updates, scales, noise, entropy) if origin.dtype.kind == "f" else origin
        for name, origin in base.items()
    }


def rule_of(parameters: Any) -> str | Noise:
    """How an algorithm's parameters say that updates become a model."""
    if parameters.aggregation != NOISED:
        return str(parameters.aggregation)
    return Noise(parameters.central_clip, parameters.central_noise, parameters.central_delta)


def charged(
    spent: Mapping[DeviceId, float], reports: Sequence[Report], rule: str | Noise
) -> Mapping[DeviceId, float]:
    """rho that each device has lost by models of this run, after a round with these reports."""
    if not isinstance(rule, Noise):
        return spent
    return {**spent, **{device: spent.get(device, 0.0) + rule.rho for device in trained(reports)}}


def promise(state: Any) -> CentralNoise | None:
    """What noise of the server promises the devices of a run in this state; None where it adds none."""
    rule = rule_of(state.parameters) if hasattr(state, "spent") else ""
    if not isinstance(rule, Noise):
        return None
    return CentralNoise(max(state.spent.values(), default=0.0), rule.delta)


def loudness(key: ModelKey, base: Tensors, own: Mapping[DeviceId, Update], noise: Noise) -> str:
    """For an operator: whether the noise leaves anything of so few updates."""
    size = sum(array.size for array in base.values() if array.dtype.kind == "f")
    times = noise.multiplier * size**0.5 / sum(update.weight for update in own.values())
    return (
        f"model {key}: {len(own)} devices; the noise in it is {times:.2g} times as long as an update of norm "
        "central_clip"
    )


def _tensor(
    name: str,
    base: Array,
    updates: Mapping[DeviceId, Update],
    scales: Mapping[DeviceId, float],
    noise: Noise,
    entropy: Entropy,
) -> Array:
    together = math.fsum(update.weight for update in updates.values())
    start, found = base.reshape(-1), np.empty(base.size, base.dtype)
    for first in range(0, base.size, BLOCK):
        block = slice(first, first + BLOCK)
        total = np.zeros(found[block].size)
        for device, scale in scales.items():
            if scale > 0.0:  # nothing times an infinite step would be no number
                update = updates[device]
                origin = start if update.origin is None else update.origin[name].reshape(-1)
                step = update.model[name].reshape(-1)[block].astype(np.float64) - origin[block]
                total += (update.weight * scale) * step
        found[block] = start[block] + noisy(total, noise.multiplier * noise.clip, entropy) / together
    return found.reshape(base.shape)
