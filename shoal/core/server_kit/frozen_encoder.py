"""What all algorithms that describe data by a frozen model share: the exchange of latent bounds, and the
projector; and of those with an encoder that is no model of the run, that it is the same on all devices.

A run has one projector. The server makes it, never a device: from the merged latent bounds, as in the papers,
or only from public numbers, for the calibrated privacy modes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from shoal.core.algorithm import Basis, DescriptorParameters, Plan, Report
from shoal.core.data.scale import LEVELS, TARGET, scale_of, without_scale
from shoal.core.exchange.messages import CountLatents, Describe, Described, Evaluate, LatentsCounted
from shoal.core.exchange.parts import (
    MAX_ROWS,
    Descriptor,
    LatentBounds,
    Moments,
    PrivacySettings,
    Prototypes,
)
from shoal.core.server_kit.clustered import FORMING, GLOBAL, S
from shoal.core.server_kit.estimates import MIN_COUNT, estimate
from shoal.core.server_kit.standard import metrics_of
from shoal.core.types import DeviceId, Tensors

MARGIN = 1.02
"""The factor by which merged bounds are widened (FLUX C.1.1, S1)."""
POINTS = 200
SEED = 1
FAR = 10.0
"""In median widths: bounds that are farther from most are not merged."""
NOISY = 60.0
"""In scales of the Laplace noise: an honest value is farther away with probability 10^-26."""
MIN_CLASSES = 2
"""A single output may stand for two classes."""
LENGTH = 2
"""The number of coordinates of standardized latents that carry their length
(`shoal.core.inference.describing.standardized`)."""


def of_one_encoder(held: Mapping[DeviceId, Prototypes]) -> dict[DeviceId, Prototypes]:
    """The mean embeddings by the encoder of most devices, and those of devices that do not say by which: the
    version before did not. The others are asked again, and the question then names the encoder."""
    names = Counter(each.encoder for each in held.values() if each.encoder)
    usual = max(sorted(names), key=names.__getitem__, default="")
    return {device: each for device, each in held.items() if each.encoder in ("", usual)}


def ask_bounds(state: S, present: Sequence[DeviceId]) -> Plan:
    """The phase that asks for the bounds of the common model's latents; with a privacy guarantee, only for
    their number. The state's parameters are `DescriptorParameters`."""
    if state.parameters.asked_privacy.calibrated:
        count = CountLatents(state.models[GLOBAL])
        return Plan(dict.fromkeys(present, count), "number of the latent values")
    # One pair for all latents: on those of ReLUs the clusters are the same as by a pair for each, which would
    # reveal a value of a record for each of them.
    task = Evaluate(state.models[GLOBAL], cluster=GLOBAL, bounds="scalar")
    return Plan(dict.fromkeys(present, task), "bounds of the latent values")


def describing(parameters: DescriptorParameters) -> str:
    """What a round is for in which devices describe their data, as its title says it."""
    mark = " (privacy=paper: not private)" if parameters.privacy == "paper" else ""
    return f"devices describe their data{mark}"


def ask_described(basis: Basis, present: Sequence[DeviceId]) -> Plan:
    """The exchange that takes the place of the bounds where the devices of an earlier run have described
    their data: they are asked for the same, so that what they have paid for is given again."""
    task = Describe(basis.encoder, basis.projector, basis.classes, basis.privacy)
    title = "devices describe their data, by the encoder of an earlier run"
    return Plan(dict.fromkeys(present, task), title, FORMING, others=task)


def merged_bounds(reports: Sequence[Report], privacy: PrivacySettings) -> tuple[LatentBounds | None, int]:
    """The merged bounds of all devices' latents, or None with a privacy guarantee; and the number of
    latents."""
    measured = [each for _, each in sorted(metrics_of(reports).items()) if each.latents]
    # A device with a different network must not spoil the projector for all others.
    numbers = [each.message.number for each in reports if isinstance(each.message, LatentsCounted)]
    width = Counter([*numbers, *(each.latents for each in measured)]).most_common(1)[0][0]
    if privacy.calibrated:
        return None, width
    found = [each.bounds for each in measured if each.bounds is not None and each.latents == width]
    return merge_bounds(_usual(found)), width


def with_classes(state: S, reports: Sequence[Report]) -> S:
    """The state with the number of classes where its parameters leave that open: of numbers to predict, their
    levels; else as many as most devices say that the network tells apart.

    With a guarantee they say only the number of latents. Then it is the length of the network's last tensor,
    which nearly always is of its outputs. If it is not, devices need more samples to describe their classes,
    or describe only the first ones.
    """
    model = state.models[GLOBAL]
    said = Counter(each.classes for _, each in sorted(metrics_of(reports).items()) if each.classes)
    lengths = [len(array) for array in without_scale(model).values() if array.ndim]
    if TARGET in scale_of(model):
        found = LEVELS
    elif said:
        found = said.most_common(1)[0][0]
    else:
        found = max(lengths[-1:], default=0)
    found = min(max(found, MIN_CLASSES), MAX_ROWS - 1)
    return replace(state, parameters=state.parameters.with_classes(found))


def _usual(found: Sequence[LatentBounds]) -> Sequence[LatentBounds]:
    """The bounds without those that are far from most: one device would stretch the projector of all.

    Far is more than `FAR` times the median width, in width or in distance from the median middle. With fewer
    than three there is no telling which are usual.
    """
    if len(found) < 3:
        return found
    lows, highs = (np.stack([getattr(each, name) for each in found]) for name in ("low", "high"))
    widths = (highs - lows).max(axis=1)
    middles = (lows + highs) / 2.0
    far = FAR * float(np.median(widths))
    away = np.abs(middles - np.median(middles, axis=0)).max(axis=1)
    near = (widths <= far) & (away <= far)
    return [each for each, fits in zip(found, near, strict=True) if fits] or found


def telling(found: Descriptor | None) -> Descriptor | None:
    """The descriptor, or None where its noise hides even all samples together, as if the device had none.

    No device has to release such a one (`shoal.core.privacy.terms`). It is like every other, so that it would
    join a group at will, whose middle would then be as unknown as it is, and no newcomer be placed any more.
    """
    return found if found is not None and estimate(found).known[0] else None


def answers_of(reports: Sequence[Report]) -> dict[DeviceId, Descriptor | None]:
    """The answers of the devices that were asked to describe their data; None for one that could not, or
    whose descriptor tells nothing."""
    return {
        each.device: telling(each.message.descriptor)
        for each in reports
        if isinstance(each.message, Described)
    }


def bounded(
    bounds: LatentBounds | None, projector: Tensors, answers: Mapping[DeviceId, Descriptor | None]
) -> dict[DeviceId, Descriptor]:
    """The descriptors in these answers, with what is outside the merged bounds of the latents moved to their
    edge.

    Such moments may be a lie, which would change how far apart all others seem. But they are no proof of one:
    the bounds are of held-out samples, and one value far out in a device's training part is enough. bounds:
    None with a privacy guarantee, where nothing is changed.
    """
    return {
        device: each if bounds is None else _bounded(bounds, projector, each)
        for device, each in answers.items()
        if each is not None
    }


def _bounded(bounds: LatentBounds, projector: Tensors, descriptor: Descriptor) -> Descriptor:
    """Outside is what is farther away than the widest coordinate is wide, and in the mode "paper" also than
    its noise, whose scale is a share of the range. An encoder whose training has failed may give the same
    latents for all held-out samples: such bounds say nothing of others."""
    found, beyond = descriptor.statistics, float((bounds.high - bounds.low).max())
    if not isinstance(found, Moments) or not beyond > 0.0:
        return descriptor
    mean, components = projector["mean"], projector["components"]
    low, high = np.broadcast_to(bounds.low, mean.shape), np.broadcast_to(bounds.high, mean.shape)
    middle = components @ ((low + high) / 2.0 - mean)
    reach = np.abs(components) @ ((high - low) / 2.0 + beyond)
    epsilon = descriptor.privacy.epsilon
    if epsilon:
        reach = reach + NOISY * 2.0 * reach.max() / (max(float(found.counts[0]), 1.0) * epsilon)
    rows = found.counts[:, None] >= MIN_COUNT
    means = np.where(rows, np.clip(found.means, middle - reach, middle + reach), found.means)
    deviations = np.where(rows, np.minimum(found.deviations, reach), found.deviations)
    return replace(descriptor, statistics=Moments(means, deviations, found.counts))


def projector_of(bounds: LatentBounds | None, latents: int, parameters: DescriptorParameters) -> Tensors:
    """The projector of a run, from the merged bounds, or with a privacy guarantee from public numbers."""
    if parameters.asked_privacy.calibrated:
        return public_projector(latents, parameters.dims)
    assert bounds is not None
    return make_projector(bounds, latents, parameters.dims, "auto" if parameters.as_published else "full")


def merge_bounds(parts: Sequence[LatentBounds]) -> LatentBounds:
    """The lowest low and the highest high of each coordinate (FLUX C.1.1, S1), widened by `MARGIN`.

    All are of one width and one encoder, as `shoal.core.exchange.admit` takes no others. Their order does not
    matter.
    """
    low = np.min([part.low for part in parts], axis=0)
    high = np.max([part.high for part in parts], axis=0)
    spread = MARGIN - 1.0
    return LatentBounds(low - spread * np.abs(low), high + spread * np.abs(high))


def make_projector(
    bounds: LatentBounds, latents: int, dims: int, solver: Literal["auto", "full"] = "full"
) -> Tensors:
    """PCA of 200 points drawn uniformly between the bounds (FLUX C.1.1, S2): v latents to l dimensions.

    bounds: (v,), or (1,) for one pair of bounds for all. Returns "mean" (v,) and "components" (l, v),
    float64; l is the smallest of `dims`, 200 and v. The points come from the legacy generator with seed 1, as
    in the authors' code.

    solver: "full" gives the same projector with every version of scikit-learn. "auto", which the authors
    used, is randomized above 500 latents and then continues with the same generator.
    """
    chance = np.random.RandomState(SEED)
    points = chance.uniform(bounds.low, bounds.high, (POINTS, latents))
    from sklearn.decomposition import PCA  # where it is used, as in shoal.core.server_kit.clustering.cluster

    with np.errstate(invalid="ignore"):  # of points that are all the same, it divides by their variance
        fitted = PCA(min(dims, POINTS, latents), svd_solver=solver, random_state=chance).fit(points)
    return {"mean": fitted.mean_, "components": np.ascontiguousarray(fitted.components_)}


def public_projector(latents: int, dims: int) -> Tensors:
    """A projector with a radius, which depends on no device's data: v latents to l dimensions, or slightly
    fewer.

    "components" (l, v + 2), for latents that are standardized first
    (`shoal.core.inference.describing.standardized`): d = l - 2 random orthonormal rows, at least one, for the
    directions of latents, and the two coordinates of the length, which weigh as much as two directions do on
    average. "mean" is 0.

    "radius" (), to which projected latents are clipped: the square root of (d + 2 sqrt(2 d) + 2) / v. For a
    random direction this is the mean squared length after projection plus twice its standard deviation, so
    that the radius is public and few samples are clipped.
    """
    directions = max(min(dims - LENGTH, latents), 1)
    normal = np.random.RandomState(SEED).standard_normal((latents, directions))
    basis, upper = np.linalg.qr(normal)
    components = np.zeros((directions + LENGTH, latents + LENGTH))
    components[:directions, :latents] = (basis * np.sign(np.diag(upper))).T
    of_length = LENGTH / latents
    components[directions:, latents:] = np.sqrt(of_length) * np.eye(LENGTH)
    left = min(1.0, (directions + 2.0 * np.sqrt(2.0 * directions)) / latents)
    return {
        "mean": np.zeros(latents + LENGTH),
        "components": components,
        "radius": np.array(np.sqrt(left + of_length)),
    }
