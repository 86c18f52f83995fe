"""From a device's data to the moments of its projected latents, with PyTorch (FLUX, appendix C.1.1, step S3).

`shoal.core.inference.moments` has the same in numpy, and what both share.

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
from shoal.core.exchange.parts import Descriptor, FloatArray, PrivacySettings
from shoal.core.inference.moments import ROUNDING, TURN, check_classes, check_projector, moments_of
from shoal.core.inference.releases import released
from shoal.core.privacy.release import ExactMoments
from shoal.core.privacy.sums import ExactSums, sums_of
from shoal.core.types import Array, Tensors

Extract = Callable[[Learner, nn.Module, Sequence[Samples], Tensors, int, Numbers | None], ExactMoments]
"""The arguments of `describe`: learner, its network, the samples of the parts, the projector, U (the number
of classes), and which samples are identical.
"""


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
        for found, rows in projected_apart(learner, model, samples, projector, first):
            yield found, None if labels is None else labels[rows].cpu().numpy()

    return sums_of(batches(), float(projector["radius"]), len(projector["components"]), classes)


def projected_apart(
    learner: Learner, model: nn.Module, samples: Samples, projector: Tensors, rows: Array
) -> Iterator[tuple[FloatArray, Tensor]]:
    """Projected latents (B, l) of the samples with these numbers, and which they are (B,), in any order. For
    what has a guarantee: no sample changes the latents of another."""
    for values, numbers in latents_apart(learner, model, samples, rows):
        filled = numbers >= 0
        yield project([values], projector)[filled.cpu().numpy()], numbers[filled]


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

    def taken(distinct: Numbers | None) -> ExactMoments:
        return moments(context.learner, context.load(encoder), samples, projector, classes, distinct)

    def summed(classes: int, distinct: Numbers) -> ExactSums:
        return sums(context.learner, context.load(encoder), samples, projector, classes, distinct)

    return released(context, encoder, projector, parts, classes, privacy, taken, summed)
