"""One model from many updates, with noise that the server adds: a guarantee for devices against the
recipients of the models.

Each device's update is clipped to a public norm C. The updates are summed, every device counting at most
once, and Gaussian noise of standard deviation z C is added to the sum before it is divided by the total
weight (McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018). More samples
give a device no more weight: since it reports their number itself, it could otherwise make the others' share,
and so the effect of the noise, small.

Two rounds are neighbors if they differ in one device's update, which is zero in one of them; that the device
takes part, and in which cluster, is the same in both. A device whose shares in several clusters sum to at
most 1 changes all sums together by at most C. A round therefore costs it rho = 1 / (2 z^2), and the costs of
rounds add up. There is no amplification by sampling, because the server does not choose devices in secret.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from secrets import token_bytes
from typing import Any

import numpy as np

from shoal.core.algorithm import NOISED, Report
from shoal.core.exchange.tensors import blocks, floats_of, manifest_of, part_of
from shoal.core.privacy.cost import rho_of
from shoal.core.privacy.dpsgd import noisy
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.report import CentralNoise
from shoal.core.server_kit.aggregation.robust import Update
from shoal.core.server_kit.aggregation.update_geometry import norm
from shoal.core.server_kit.standard import trained
from shoal.core.types import Array, DeviceId, ModelKey, Tensors

WITHIN = 1.0 - 1e-9
"""Updates are clipped to this fraction of the norm; the rest covers rounding errors of float64."""

TOGETHER = 1 << 18
"""Coordinates for which updates are read, and noise is drawn, at a time."""


@dataclass(frozen=True)
class Noise:
    """clip: C, the L2 norm of an update. multiplier: z, the standard deviation of the noise in units of clip.
    delta: the delta for which epsilon is reported. by_devices: with secure aggregation, the devices have
    added it already."""

    clip: float
    multiplier: float
    delta: float
    by_devices: bool = False

    @property
    def rho(self) -> float:
        """The cost of a round for a device that takes part."""
        return rho_of(self.multiplier)


def noised(
    base: Tensors, updates: Mapping[DeviceId, Update], noise: Noise, entropy: Entropy = token_bytes
) -> dict[str, Array]:
    """The next model, from at least one update of weight 0 to 1. Every call draws new noise.

    Whole numbers stay as in `base`. Memory: one model, and one block in float64.
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
    """The aggregation rule of an algorithm's parameters."""
    if parameters.aggregation != NOISED:
        return str(parameters.aggregation)
    by_devices = parameters.secure_aggregation
    return Noise(parameters.central_clip, parameters.central_noise, parameters.dp_delta, by_devices)


def charged(
    spent: Mapping[DeviceId, float], reports: Sequence[Report], rule: str | Noise
) -> Mapping[DeviceId, float]:
    """The rho that each device has spent through the models of this run, after a round with these reports."""
    if not isinstance(rule, Noise):
        return spent
    return {**spent, **{device: spent.get(device, 0.0) + rule.rho for device in trained(reports)}}


def promise(state: Any) -> CentralNoise | None:
    """The guarantee of the server's noise for the devices of a run in this state; None if it adds no
    noise."""
    rule = rule_of(state.parameters) if hasattr(state, "spent") else ""
    if not isinstance(rule, Noise):
        return None
    return CentralNoise(max(state.spent.values(), default=0.0), rule.delta, rule.by_devices)


def loudness(key: ModelKey, base: Tensors, own: Mapping[DeviceId, Update], noise: Noise) -> str:
    """For an operator: how the noise compares with this many updates."""
    size = sum(spec.size for spec in floats_of(manifest_of(base)))
    times = noise.multiplier * size**0.5 / sum(update.weight for update in own.values())
    return (
        f"model {key}: {len(own)} devices; its noise is {times:.2g} times as long as an update of norm "
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
    for block in blocks(base.size, TOGETHER):
        total = np.zeros(found[block].size)
        for device, scale in scales.items():
            if scale > 0.0:  # 0 times an infinite step would be NaN
                update = updates[device]
                origin = start[block] if update.origin is None else part_of(update.origin, name, block)
                step = part_of(update.model, name, block).astype(np.float64) - origin
                total += (update.weight * scale) * step
        found[block] = start[block] + noisy(total, noise.multiplier * noise.clip, entropy) / together
    return found.reshape(base.shape)
