"""The moments of projected latents (FLUX, appendix C.1.1, step S3; eq. 7), in numpy.

The projector is a tensor set of "mean" (v,) and "components" (l, v), float64, the same on every device. In
the calibrated privacy modes it has a "radius" () too, and takes standardized latents, (n, v + 2).
"""

from collections.abc import Iterable

import numpy as np

from shoal.core.data.version import Numbers
from shoal.core.errors import BadPayload, DataFault, diverged
from shoal.core.exchange.parts import MAX_ROWS, MAX_SCALE, MIN_SCALE, FloatArray
from shoal.core.exchange.tensors import Manifest, TensorSpec, check_manifest, manifest_of
from shoal.core.privacy.release import ExactMoments
from shoal.core.types import Array, Tensors

TURN = 2.0
"""Radians on the circle of lengths for a factor of e."""
ROUNDING = 1e-12
"""Relative: what is left of latents that are all the same, less their mean, is not more."""


def project(batches: Iterable[Array], projector: Tensors) -> FloatArray:
    """Latents (B, v), batch by batch -> (z - mean) components^T for all of them, (n, l) float64.

    What PyTorch makes of the same latents (`shoal.core.device_kit.describe.project`) differs at most in the
    last bits.
    """
    projected, checked = [], False
    for batch in batches:
        values = batch.astype(np.float64)
        if "radius" in projector:
            values = standardized(values)
        if not checked:
            check_projector(projector, values.shape[1])
            checked = True
        projected.append((values - projector["mean"]) @ projector["components"].T)
    return np.concatenate(projected)


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
