"""From a device's data to the moments of its projected latents (FLUX, appendix C.1.1, step S3; eq. 7).

The projector is a tensor set of "mean" (v,) and "components" (l, v), float64, the same on every device. In
the calibrated privacy modes it has a "radius" () too, and takes standardized latents, (n, v + 2). Only the
projected ones, (n, l), are kept at once, never the latents (n, v).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from shoal.core.data.version import Numbers
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.latents import latents, latents_apart
from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.samples import Samples
from shoal.core.errors import BadPayload, DataFault, LearnerFault
from shoal.core.exchange.parts import MAX_ROWS, MAX_SCALE, MIN_SCALE, Descriptor, FloatArray, PrivacySettings
from shoal.core.exchange.tensors import Manifest, TensorSpec, check_manifest, digest, manifest_of
from shoal.core.privacy.accountant import Order
from shoal.core.privacy.release import ExactMoments, release
from shoal.core.privacy.report import OPEN
from shoal.core.privacy.sums import ExactSums, sums_of
from shoal.core.privacy.terms import terms
from shoal.core.types import Array, Tensors

TURN = 2.0
"""Radians on the circle of lengths for a factor of e."""
ROUNDING = 1e-12
"""Relative: what is left of latents that are all the same, less their mean, is not more."""
Extract = Callable[[Learner, nn.Module, Sequence[Samples], Tensors, int, Numbers | None], ExactMoments]
"""The arguments of `describe`: learner, its network, the samples of the parts, the projector, U (the number
of classes), and which samples are identical.
"""
ALL = ("train", "held_out")
"""All parts that can be described, so a budget is about these. The test part never is."""


def describe(
    learner: Learner,
    model: nn.Module,
    parts: Sequence[Samples],
    projector: Tensors,
    classes: int,
    distinct: Numbers | None = None,
) -> ExactMoments:
    """ExactMoments of all samples of `parts` and, for `classes` above 0, of each class. `model` is not
    changed.

    distinct: which samples are identical; without it each counts separately.
    Raises DeviceFault if labels are needed and missing, LearnerFault if the author's code fails,
    BadPayload for a projector that does not fit the learner's latents.
    """
    labels = torch.cat([part.labels for part in parts]).cpu().numpy() if classes else None
    batches = (batch for part in parts for batch in latents(learner, model, part))
    return moments_of(project(batches, projector), labels, classes, distinct)


def sums(
    learner: Learner,
    model: nn.Module,
    parts: Sequence[Samples],
    projector: Tensors,
    classes: int,
    distinct: Numbers,
) -> ExactSums:
    """What a calibrated privacy mode makes its release of: for `classes` above 0, of each class too.

    Repeated samples count once. One more sample is then at most one more distinct sample, so repetition does
    not increase what one sample can change. The projector has a radius. Raises as `describe` does.
    """
    check_classes(classes)
    labels = torch.cat([part.labels for part in parts]) if classes else None
    samples = Samples(torch.cat([part.x for part in parts]), labels, classes)
    first = np.unique(distinct, return_index=True)[1]

    def batches() -> Iterator[tuple[FloatArray, Array | None]]:
        for values, rows in latents_apart(learner, model, samples, first):
            filled = rows >= 0
            found = project([values], projector)[filled.cpu().numpy()]
            yield found, None if labels is None else labels[rows[filled]].cpu().numpy()

    return sums_of(batches(), float(projector["radius"]), len(projector["components"]), classes)


def project(batches: Iterable[Tensor], projector: Tensors) -> FloatArray:
    """Latents (B, v), batch by batch -> (z - mean) components^T for all of them, (n, l) float64."""
    projected, mean, components = [], None, None
    for batch in batches:
        values = standardized(batch.double()) if "radius" in projector else batch.double()
        if mean is None or components is None:
            check_projector(projector, values.shape[1])
            # A copy on the device that computes; torch would warn of sharing a read-only view of a file.
            mean, components = (
                torch.tensor(projector[name], device=batch.device) for name in ("mean", "components")
            )
        projected.append(((values - mean) @ components.T).cpu().numpy())
    return np.concatenate(projected)


def standardized(latents: Tensor) -> Tensor:
    """(B, v) latents as (B, v + 2) numbers: each less its own mean over the v values, at length 1; and the
    length that it had, as a point on a circle of radius 1. All are 0 where the v values are the same.

    How far such numbers lie from 0 is known without looking at any, whatever the encoder is. The lengths of
    its latents differ by factors, with the brightness of images, for example: so once around the circle is a
    factor, e^pi, which is 23. NaN and infinity give NaN.
    """
    centered = latents - latents.mean(dim=1, keepdim=True)
    lengths = centered.norm(dim=1, keepdim=True)
    turned = TURN * lengths.log()
    numbers = torch.cat([centered / lengths, turned.cos(), turned.sin()], dim=1)
    none = lengths <= ROUNDING * latents.norm(dim=1, keepdim=True)
    return numbers.masked_fill(none, 0.0)


def moments_of(
    projected: FloatArray, labels: Array | None, classes: int, distinct: Numbers | None = None
) -> ExactMoments:
    """Mean and population standard deviation of (n, l) projected latents, n at least 1.

    distinct: (n,), which samples are the same one. Counts are then of as many samples drawn once each as the
    moments are worth: n^2 / (sum of the squared number of times that each is there) (Kish 1965).

    Raises LearnerFault when some are NaN or infinite, DataFault for a label that is not below `classes`,
    BadPayload for a number of classes that no descriptor can have.
    """
    check_classes(classes)
    if not np.isfinite(projected).all():
        raise LearnerFault("some latents are NaN or infinite", "lower the learning rate or look at latent()")
    means = np.zeros((1 + classes, projected.shape[1]))
    deviations = np.zeros_like(means)
    counts = np.zeros(1 + classes)
    times = np.ones(len(projected)) if distinct is None else np.bincount(distinct)[distinct]
    means[0], deviations[0] = projected.mean(0), projected.std(0)
    counts[0] = len(projected) ** 2 / times.sum()
    if labels is not None:
        if labels.max() >= classes:
            raise DataFault(
                f"the data have the label {labels.max()}", f"this run has the classes 0 to {classes - 1}"
            )
        found = np.bincount(labels, minlength=classes)
        counts[1:] = found**2 / np.maximum(np.bincount(labels, times, classes), 1.0)
        for label in np.flatnonzero(found >= 2):
            own = projected[labels == label]
            means[1 + label], deviations[1 + label] = own.mean(0), own.std(0)
    return ExactMoments(means, deviations, counts, float(projected.min()), float(projected.max()))


def check_classes(classes: int) -> None:
    """Raise BadPayload for a number of classes that no descriptor can have."""
    if not 0 <= classes < MAX_ROWS:
        raise BadPayload(f"a descriptor cannot have {classes} classes", f"0 to {MAX_ROWS - 1} are possible")


def check_projector(projector: Tensors, width: int) -> None:
    """Raise BadPayload unless this is a projector for `width` values, with those of a length."""
    components = projector.get("components")
    rows = len(components) if components is not None and components.ndim == 2 else 0
    expected: Manifest = (
        TensorSpec("mean", "float64", (width,)),
        TensorSpec("components", "float64", (rows, width)),
    )
    if "radius" in projector:
        expected = (*expected, TensorSpec("radius", "float64", ()))
    found = {spec.name: projector[spec.name] for spec in expected if spec.name in projector}
    check_manifest(manifest_of({**found, **projector}), expected, "the projector")
    if rows == 0:
        raise BadPayload("the projector has no components")
    if "radius" in projector and not MIN_SCALE <= float(projector["radius"]) <= MAX_SCALE:
        raise BadPayload(f"the projector's radius is {float(projector['radius'])}", "a finite one, above 0")


def described(
    context: DeviceContext,
    encoder: Tensors,
    projector: Tensors,
    parts: Sequence[str],
    classes: int,
    privacy: PrivacySettings,
    moments: Extract = describe,
) -> Descriptor:
    """The descriptor of these parts by `encoder`, released as `privacy` asks. classes: U, or 0.

    moments: how they are taken where no guarantee is asked.

    Raises Refused where the samples are too few, the owner's budget has no room, or the owner lets nothing
    leave without a guarantee; and what `shoal.core.device_kit.describe` raises.
    """
    samples = [context.samples(part) for part in parts]
    data = context.version(ALL, labels=False)
    if not privacy.calibrated:
        context.account.unprotected(OPEN[privacy.mode], data)
        # The papers do not consider repeated samples.
        distinct = context.distinct(parts, labels=classes > 0) if privacy.rules.exact else None
        found = moments(context.learner, context.load(encoder), samples, projector, classes, distinct)
        return release(found, privacy, digest(projector), context.noise)
    if "radius" not in projector:
        raise BadPayload(f"privacy mode {privacy.mode} needs a projector with a radius")
    check_classes(classes)
    agreed = terms(privacy, sum(map(len, samples)), classes)
    purpose = f"data described, with {agreed.classes} classes" if agreed.classes else "data described"
    order = Order(
        purpose,
        privacy,
        agreed,
        digest(encoder),
        digest(projector),
        data,
        context.version(parts, labels=agreed.classes > 0),
    )

    def exact() -> ExactSums:
        distinct = context.distinct(parts, labels=agreed.classes > 0)
        return sums(context.learner, context.load(encoder), samples, projector, agreed.classes, distinct)

    return context.account.release(order, exact)
