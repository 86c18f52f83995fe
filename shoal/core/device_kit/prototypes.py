"""Mean embeddings of a device's data under the learner's frozen encoder (FMCL section 3.2, eq. 1).

Where a learner has none, the inputs are their own embedding: images in at most 32 x 32 pixels, and whatever
is wider than `WIDEST` averaged to that. It needs nothing that was trained, and is the same on all devices.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import authors, shape_of
from shoal.core.device_kit.samples import Samples
from shoal.core.errors import LearnerFault
from shoal.core.exchange.parts import Prototypes

SIDE, WIDEST = 32, 4096
"""Of inputs that are their own embedding: pixels of a side, and numbers in all."""


def prototypes(context: DeviceContext, by_class: bool) -> Prototypes:
    """Of the training part: the mean of each class that is there, or of all samples, under class 0.

    Raises LearnerFault where inputs are tokens and the learner has no encoder, or where its output is not
    (B, d) and finite; DeviceFault where classes are asked for and there are no labels.
    """
    samples = context.samples_as_they_are("train")  # as the encoder's author knows them
    one = samples.x.new_zeros(len(samples)).long()
    labels = samples.labels_for("the mean embedding of each class") if by_class else one
    classes, rows, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums: Tensor | None = None
    for part in samples.passes():
        values = _embedded(context, samples, part).double()
        if sums is None:
            sums = torch.zeros(len(classes), values.shape[1], dtype=torch.float64, device=values.device)
        sums.index_add_(0, rows[part], values)
    assert sums is not None
    if not torch.isfinite(sums).all():
        raise LearnerFault("some embeddings are NaN or infinite", "look at the learner's encoder")
    means = sums / counts[:, None]
    return Prototypes(*(each.double().cpu().numpy() for each in (classes, means, counts)))


def _embedded(context: DeviceContext, samples: Samples, part: slice) -> Tensor:
    """(B, d) embeddings, by an encoder that is in evaluation mode, where it has one."""
    encoder, x = context.learner.encoder, samples.x[part]
    if encoder is None:
        return _itself(x, context.learner.name)
    if isinstance(encoder, nn.Module):
        encoder = encoder.to(x.device).eval()
    with torch.no_grad(), authors("encoder()"):
        value: object = encoder(x)
    if not isinstance(value, Tensor) or value.ndim != 2 or len(value) != len(x):
        raise LearnerFault(
            f"the encoder gives {shape_of(value)} for {len(x)} samples, not ({len(x)}, d)",
            "end encoder() with .flatten(1)",
        )
    return value


def _itself(x: Tensor, name: str) -> Tensor:
    """(B, d) of inputs (B, ...), where no encoder says what they show."""
    if not x.is_floating_point():
        raise LearnerFault(
            f"{name} has no encoder, by which this algorithm groups devices, and the inputs are tokens",
            "add def encoder(x), which gives (B, d) and is the same on all devices, or a frozen module",
        )
    if x.ndim == 4 and max(x.shape[2:]) > SIDE:
        x = F.adaptive_avg_pool2d(x, (min(x.shape[2], SIDE), min(x.shape[3], SIDE)))
    flat = x.flatten(1)
    return flat if flat.shape[1] <= WIDEST else F.adaptive_avg_pool1d(flat[:, None], WIDEST)[:, 0]
