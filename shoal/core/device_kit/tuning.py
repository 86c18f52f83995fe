"""A device fine-tunes its cluster's model on its own data, where that pays.

Whether it pays is asked of the mean of the cluster's model and of what training makes of it on the device's
training part: a cluster's model has learned from more samples, the device's own from such as the device will
have, and the held-out part tells whether these differ. If they do, the device trains the cluster's model
again, on all of its samples, since the held-out part has been asked, and few samples are worth much. A pull
to the cluster's model keeps it from forgetting what others knew.

Sources: Yu, Bagdasaryan and Shmatikov, Salvaging federated learning by local adaptation, 2020; Wortsman et
al., Robust fine-tuning of zero-shot models, CVPR 2022; Li et al., Ditto, ICML 2021, for the pull.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import evaluate
from shoal.core.device_kit.learner import tensors_of
from shoal.core.device_kit.samples import Samples
from shoal.core.device_kit.training.train import train
from shoal.core.errors import BadPayload
from shoal.core.exchange.choosing.tuning import MAX_LOSS_LEFT, PULL, STEP_SHARE, Tune, Tuned
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import FloatArray
from shoal.core.types import Array, Tensors

PIECES, MIN_PIECES = 10, 5
"""Into how many pieces the held-out part is cut, to see how sure its loss is, and the fewest of them."""
ERRORS = 2.0
"""How many standard errors the gain has to have at least."""


def perform(message: Message, context: DeviceContext) -> Message:
    """The device half of `Tune`. Raises what `tune` raises."""
    if not isinstance(message, Tune):
        raise BadPayload(f"fine-tuning does not answer {message.kind!r}")
    return tune(message, context)


def tune(task: Tune, context: DeviceContext) -> Tuned:
    """The model that serves this device, if it is another one than its cluster's.

    Raises DeviceFault without labels or a held-out part, LearnerFault where training diverges.
    """
    samples, held_out = context.samples("train"), context.samples("held_out")
    pieces = list(_pieces(held_out))
    before, model = _losses(context, task.model, pieces), context.load(task.model)
    train(context.learner, model, samples, task.settings, context.seed)
    between = halfway(task.model, tensors_of(model))
    after = _losses(context, between, pieces)
    sizes = [len(piece) for piece in pieces]
    first, last = float(np.average(before, weights=sizes)), float(np.average(after, weights=sizes))
    if last > MAX_LOSS_LEFT * first or not sure(before - after):
        return Tuned(first, last, len(held_out))
    settings = replace(task.settings, proximal=max(task.settings.proximal, PULL))
    train(context.learner, context.load(task.model), together(samples, held_out), settings, context.seed)
    return Tuned(first, last, len(held_out), tensors_of(context.model))


def together(first: Samples, second: Samples) -> Samples:
    """Both parts of a device's labeled data, as one."""
    targets = None
    if first.targets is not None and second.targets is not None:
        targets = torch.cat([first.targets, second.targets])
    labels = torch.cat([first.labels, second.labels])
    return Samples(torch.cat([first.x, second.x]), labels, max(first.classes, second.classes), targets)


def sure(gains: FloatArray) -> bool:
    """Whether a gain is more than the choice of samples explains. gains: (P,), of P pieces of them."""
    if len(gains) < MIN_PIECES:
        return False
    error = float(gains.std(ddof=1)) / math.sqrt(len(gains))
    return float(gains.mean()) >= ERRORS * error


def halfway(first: Tensors, second: Tensors) -> Tensors:
    """`STEP_SHARE` of the way from one model to another; what is no floating-point number is the second's."""

    def between(own: Array, other: Array) -> Array:
        if own.dtype.kind != "f":
            return other
        middle: Array = (own + own.dtype.type(STEP_SHARE) * (other - own)).astype(own.dtype)
        return middle

    return {name: between(own, second[name]) for name, own in first.items()}


def _pieces(samples: Samples) -> Iterator[Samples]:
    """The samples in up to `PIECES` pieces: a learner tells the loss of many samples, and not of each."""
    bounds = np.linspace(0, len(samples), min(PIECES, len(samples)) + 1).astype(int)
    for start, end in pairwise(bounds.tolist()):
        rows = slice(start, end)
        labels = None if samples.y is None else samples.y[rows]
        targets = None if samples.targets is None else samples.targets[rows]
        yield Samples(samples.x[rows], labels, samples.classes, targets)


def _losses(context: DeviceContext, model: Tensors, pieces: list[Samples]) -> FloatArray:
    """(P,): the mean loss of each piece."""
    network = context.load(model)
    return np.array([evaluate(context.learner, network, piece)[1] for piece in pieces])
