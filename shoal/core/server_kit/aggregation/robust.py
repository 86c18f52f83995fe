"""One model from many updates, some of which may be hostile. This module knows nothing of rounds and reports.

An update is the model that a device reported minus the model that its round began with. The rules:

    clipped   `aggregation.influence`: numbers of samples count up to what others have, updates that move back
              while the others agree are left out, and each of the rest pulls the model away from the middle
              of all, no farther than the middle device does
    trimmed   the mean of each coordinate without its highest and lowest tenth: within the range of the honest
              values, as long as at most as many devices are hostile as are left out at one end
    median    the median of each coordinate: the same, as long as fewer than half are hostile
    mean      the weighted mean, which bounds nothing

One or two updates have no middle. There, every rule but `mean` shortens them to `BOUND` times a reference:
the median norm of the round, itself at most `BOUND` times the reference of the round before.

Whole numbers (the counter of a batch norm) have no length: every rule but `mean` takes their median.

Norm bound: Sun et al., Can You Really Backdoor Federated Learning?, 2019. Trimmed mean and median: Yin et
al., Byzantine-Robust Distributed Learning: Towards Optimal Statistical Rates, ICML 2018.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import get_args

from shoal.core.algorithm import Rule
from shoal.core.server_kit.aggregation.coordinates import Clipped, mean, middle, settle, tenth
from shoal.core.server_kit.aggregation.influence import MIN_UPDATES, believed, opposed
from shoal.core.server_kit.aggregation.trimmed_mean import half
from shoal.core.server_kit.aggregation.update_geometry import geometry_of
from shoal.core.types import DeviceId, Tensors

RULES = get_args(Rule)
BOUND = 3.0
"""In units of the reference: the longest of one or two updates, and the largest growth of the reference in a
round."""


@dataclass(frozen=True, eq=False)
class Update:
    """What a device reported; it is read several times. weight: above 0, in any unit.

    origin: the model that it trained from, if it differs from that of the others. loss: its mean training
    loss, if the device released it; no rule looks at it.
    """

    model: Tensors
    weight: float
    origin: Tensors | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Spread:
    """Of the updates whose mean a model has moved by. square: their mean squared distance from it.
    concentration: the sum of the squares of their shares in the mean; 1 / n for n equal ones."""

    square: float
    concentration: float


NAMED_BELOW = 0.9
"""A device is named whose number of samples counts as less than this part of it."""


@dataclass(frozen=True, eq=False)
class Combined:
    """reference: the norm with which updates were compared; 0 if there was none.

    long: for each update that is more than `BOUND` times as long, how many times; such an update counts like
    one of the usual length. capped: the devices whose numbers of samples count much less than in full.
    left_out: for each update that was left out, its cosine with the middle of all. spread: of the updates as
    they counted, under `clipped`.
    """

    model: Tensors
    reference: float = 0.0
    long: Mapping[DeviceId, float] = field(default_factory=dict)
    capped: tuple[DeviceId, ...] = ()
    left_out: Mapping[DeviceId, float] = field(default_factory=dict)
    spread: Spread | None = None


def combine(
    rule: str,
    base: Tensors,
    updates: Mapping[DeviceId, Update],
    before: float = 0.0,
) -> Combined:
    """The next model, from at least one update; it has the same bits whatever the order of the updates.

    base: the model that the round began with, for all updates without an origin of their own.
    before: the reference of the previous round; 0 if there was none.
    Memory: one model and a few times `MATRIX` bytes, however many updates there are.
    """
    devices = sorted(updates)
    weights = {device: updates[device].weight for device in devices}
    models: dict[DeviceId, Tensors] = {device: updates[device].model for device in devices}
    if rule == "mean":
        return Combined(mean([(models[device], weights[device]) for device in devices], base))
    origins = {device: base if (one := updates[device].origin) is None else one for device in devices}
    seen = geometry_of(models, origins)
    usual = reference(seen.norms, before)
    long = {device: size / usual for device, size in seen.norms.items() if 0.0 < BOUND * usual < size}
    if len(devices) < MIN_UPDATES:
        models |= {device: Clipped(models[device], origins[device], BOUND / long[device]) for device in long}
    elif rule in ("trimmed", "median"):
        cut = tenth(len(devices)) if rule == "trimmed" else half(len(devices))
        return Combined(middle(list(models.values()), base, cut), usual, long)
    left_out = opposed(seen.cosines)
    for device in left_out:
        del models[device], weights[device]
    if any(
        models.get(device) is not update.model or origins[device] is not base
        for device, update in updates.items()
    ):
        seen = geometry_of(models, dict.fromkeys(models, base))  # of what counts, and as it counts
    counted = believed(weights)
    total = math.fsum(counted.values())
    shares = [weight / total for weight in counted.values()]
    found, scatter = settle(list(models.values()), shares, seen.apart, base)
    heavy = tuple(device for device in models if counted[device] < NAMED_BELOW * weights[device])
    spread = Spread(scatter, math.fsum(share**2 for share in shares))
    return Combined(found, usual, long, heavy, left_out, spread)


def reference(norms: Mapping[DeviceId, float], before: float) -> float:
    """The median of the norms, at most `BOUND` times `before` if there was a reference before; 0 if no model
    moved.

    Devices that did not move their model say nothing about how far training goes.
    """
    moved = [size for size in norms.values() if size > 0.0]
    if not moved:
        return 0.0
    usual = median(moved)
    return min(usual, BOUND * before) if before > 0.0 else usual
