"""A device describes its data: the moments of its projected latents (FLUX, appendix C.1.1, step S3; eq. 7),
released as a privacy mode asks.

The projector is a tensor set of "mean" (v,) and "components" (l, v), float64, the same on every device. In
the calibrated privacy modes it has a "radius" () too, and takes standardized latents, (n, v + 2). Only the
projected ones, (n, l), are kept at once, never the latents (n, v).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np

from shoal.core.data.scale import scale_of
from shoal.core.data.version import Numbers
from shoal.core.errors import BadPayload, DataFault, DeviceFault, TooFewSamples, diverged
from shoal.core.exchange.messages import Describe, Described
from shoal.core.exchange.parts import (
    MAX_ROWS,
    MAX_SCALE,
    MIN_SCALE,
    Descriptor,
    FloatArray,
    LatentBounds,
    PrivacySettings,
)
from shoal.core.exchange.tensors import Manifest, TensorSpec, check_manifest, digest, manifest_of
from shoal.core.inference.context import InferenceContext
from shoal.core.inference.network import batches
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import description
from shoal.core.privacy.release import ExactMoments, release, release_sums
from shoal.core.privacy.report import OPEN
from shoal.core.privacy.sums import ExactSums, sums_of
from shoal.core.privacy.terms import terms
from shoal.core.types import Array, Tensors

TURN = 2.0
"""Radians on the circle of lengths for a factor of e."""
ROUNDING = 1e-12
"""Relative: what is left of latents that are all the same, less their mean, is not more."""
Extract = Callable[[FloatArray, Array | None, int, Numbers | None], ExactMoments]
"""The arguments of `moments_of`."""


def describe(message: Describe, context: InferenceContext) -> Described:
    """The answer to `Describe`. Raises what `described` raises, but a device that trains, and has too few
    samples, says so: it has no descriptor."""
    # What has a guarantee is paid for with the budget of all of the data, and the more samples, the less the
    # noise: so it is of all of them. Without classes nothing will be trained or measured here.
    everything = message.privacy.calibrated or not message.classes
    parts = context.usable if everything else context.usable[:1]
    descriptor = None
    try:
        descriptor = described(
            context, message.encoder, message.projector, parts, message.classes, message.privacy
        )
    except TooFewSamples:
        if not message.classes:
            raise
    return Described(descriptor, sum(len(context.part(part)) for part in parts))


def described(
    context: InferenceContext,
    encoder: Tensors,
    projector: Tensors,
    parts: Sequence[str],
    classes: int,
    privacy: PrivacySettings,
    moments: Extract | None = None,
) -> Descriptor:
    """The descriptor of these parts by `encoder`. classes: U, or 0. moments: how they are taken where no
    guarantee is asked; by default of all samples.

    Raises Refused where the samples are too few, the owner's budget has no room, or the owner lets nothing
    leave without a guarantee; DeviceFault if labels are needed and missing, LearnerFault if the author's code
    fails, and BadPayload for a projector that does not fit the latents.
    """
    if not privacy.calibrated:
        labels = _labels(context, encoder, parts) if classes else None
        context.unprotected(OPEN[privacy.mode])
        # The papers do not consider repeated samples.
        distinct = context.distinct(parts, labels=classes > 0) if privacy.rules.exact else None
        found = (moments or moments_of)(
            projected(context, encoder, projector, parts), labels, classes, distinct
        )
        return release(found, privacy, digest(projector), context.noise)
    if "radius" not in projector:
        raise BadPayload(f"privacy mode {privacy.mode} needs a projector with a radius")
    check_classes(classes)
    agreed = terms(privacy, sum(len(context.part(part)) for part in parts), classes)
    hashed = digest(projector)

    def exact() -> ExactSums:
        return exact_sums(context, encoder, projector, parts, agreed.classes)

    def noised(found: ExactSums, entropy: Entropy) -> Descriptor:
        return release_sums(found, privacy, agreed, hashed, entropy)

    asked = description(privacy, agreed, digest(encoder), hashed, context.version())
    return context.pay(asked, exact, noised)


def exact_sums(
    context: InferenceContext, encoder: Tensors, projector: Tensors, parts: Sequence[str], classes: int
) -> ExactSums:
    """What a calibrated privacy mode makes its release of: for `classes` above 0, of each class too.

    Repeated samples count once. One more sample is then at most one more distinct sample, so repetition does
    not increase what one sample can change. The projector has a radius. Raises as `described` does.
    """
    check_classes(classes)
    labels = _labels(context, encoder, parts) if classes else None
    first = np.unique(context.distinct(parts, labels=classes > 0), return_index=True)[1]
    points = apart(context, encoder, projector, parts, first)
    known = (None if labels is None else labels[row : row + 1] for row in first.tolist())
    found = zip(points, known, strict=True)
    return sums_of(found, float(projector["radius"]), len(projector["components"]), classes)


def projected(
    context: InferenceContext, encoder: Tensors, projector: Tensors, parts: Sequence[str]
) -> FloatArray:
    """(n, l) float64: the projected latents of all samples of these parts."""
    network = context.network
    network.load(encoder)
    return project(map(network.latents, batches(network, context.inputs(parts))), projector)


def apart(
    context: InferenceContext, encoder: Tensors, projector: Tensors, parts: Sequence[str], rows: Array
) -> Iterator[FloatArray]:
    """(1, l) projected latents of each of the samples with these numbers, computed by itself.

    For what has a guarantee. A network can come from a server, which can make one in which a sample of a
    batch changes the latents of the others; and with weights that amplify rounding, the number of samples in
    a batch does. In a batch of one there are no others. All samples pass through the same memory, since the
    last bits of a result may depend on how its input is aligned.
    """
    network, x = context.network, context.inputs(parts)
    network.load(encoder)
    single = np.empty_like(x[:1])
    for row in rows.tolist():
        single[...] = x[row]
        yield project([network.latents(single)], projector)


def latent_bounds(latents: Iterable[Array]) -> tuple[LatentBounds, int]:
    """Lowest and highest latent value over all coordinates, and v, the number of these.

    latents: (B, v) each, at least one. The bounds are raw: they reveal values of real records.
    FLUX appendix C.1.1, step S1, has one pair for each coordinate.

    Raises Diverged for latents that are NaN or infinite.
    """
    extremes = [(batch.min(axis=0), batch.max(axis=0)) for batch in latents]
    low, high = (np.array(each, np.float64) for each in zip(*extremes, strict=True))
    low, high = low.min(axis=0), high.max(axis=0)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):  # NaN goes through every minimum
        raise diverged("some latents are NaN or infinite")
    return LatentBounds(low.min(keepdims=True), high.max(keepdims=True), "raw"), len(low)


def project(latents: Iterable[Array], projector: Tensors) -> FloatArray:
    """Latents (B, v), batch by batch -> (z - mean) components^T for all of them, (n, l) float64."""
    found, checked = list[FloatArray](), False
    for batch in latents:
        values = batch.astype(np.float64)
        if "radius" in projector:
            values = standardized(values)
        if not checked:
            check_projector(projector, values.shape[1])
            checked = True
        # Not by a matrix product, whose last bits depend on how many threads and samples there are.
        found.append(np.einsum("nv,lv->nl", values - projector["mean"], projector["components"]))
    return np.concatenate(found)


def standardized(latents: FloatArray) -> FloatArray:
    """(B, v) latents as (B, v + 2) numbers: each less its own mean over the v values, at length 1; and the
    length that it had, as a point on a circle of radius 1. All are 0 where the v values are the same.

    How far such numbers lie from 0 is known without looking at any, whatever the encoder is. The lengths of
    its latents differ by factors, with the brightness of images, for example: so once around the circle is a
    factor, e^pi, which is 23. NaN and infinity give NaN.
    """
    with np.errstate(all="ignore"):
        centered = latents - latents.mean(axis=1, keepdims=True)
        lengths = np.linalg.norm(centered, axis=1, keepdims=True)
        turned = TURN * np.log(lengths)
        numbers = np.concatenate([centered / lengths, np.cos(turned), np.sin(turned)], axis=1)
        none = lengths <= ROUNDING * np.linalg.norm(latents, axis=1, keepdims=True)
    found: FloatArray = np.where(none, 0.0, numbers)
    return found


def moments_of(
    projected: FloatArray, labels: Array | None, classes: int, distinct: Numbers | None = None
) -> ExactMoments:
    """Mean and population standard deviation of (n, l) projected latents, n at least 1.

    distinct: (n,), which samples are the same one. Counts are then of as many samples drawn once each as the
    moments are worth: n^2 / (sum of the squared number of times that each is there) (Kish 1965).

    Raises Diverged when some are NaN or infinite, DataFault for a label that is not below `classes`,
    BadPayload for a number of classes that no descriptor can have.
    """
    check_classes(classes)
    if not np.isfinite(projected).all():
        raise diverged("some latents are NaN or infinite")
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


def _labels(context: InferenceContext, encoder: Tensors, parts: Sequence[str]) -> Array:
    """(n,) the classes of these parts; of numbers to predict, their levels in the scale of the encoder."""
    labels = context.labels(parts, scale_of(encoder))
    if labels is None:
        raise DeviceFault("this needs labels, and the device's data have none", "give the data a y")
    return labels
