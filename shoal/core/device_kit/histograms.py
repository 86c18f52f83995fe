"""The answers to tasks whose model is a histogram of data (`shoal.core.data.histogram`), with PyTorch."""

import math

import numpy as np

from shoal.core.data import histogram
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.training import private
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import Train, Trained, TrainingSettings
from shoal.core.privacy.dpsgd import noisy
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.types import Array, Tensors


def features(context: DeviceContext) -> int:
    """How many features a sample has: a fact about the shape of the data."""
    x = context.samples_as_they_are("train").x
    return x.shape[1] if x.ndim > 1 else 1


def counted(message: Train, context: DeviceContext) -> Trained:
    """All data but a test part, counted into the task's bins. With a guarantee that is one step of DP-SGD
    over all samples, each of which moves the counts of F features by at most the root of F.

    Raises BadPayload for a histogram that cannot be, OverBudget if the owner's budget does not suffice,
    DeviceFault where Opacus is not installed.
    """
    if message.projector is not None:
        raise BadPayload("data are not described by a histogram", "ask for one without a projector")
    edges = histogram.check(message.model)[:-1]
    x = np.concatenate([_part(context, part) for part in context.usable])
    exact, samples = histogram.counts(x, edges), len(x)
    if message.private is None:
        return Trained(histogram.counted(message.model, exact, samples), samples, 0.0)
    whole = TrainingSettings(epochs=1, batch_size=samples)
    agreed = private.terms(message.private, whole, samples)

    def work(_: None, entropy: Entropy) -> Tensors:
        noised = noisy(exact, agreed.noise * math.sqrt(len(edges)) / private.WITHIN, entropy)
        return histogram.counted(message.model, noised, samples)

    return private.paid(context, agreed, samples, work, "histograms")


def overlap(model: Tensors, part: str, context: DeviceContext) -> tuple[float, int]:
    """What a histogram and a part of the data have in common, 0 to 1, and the samples of that part. Raises
    BadPayload for a histogram that cannot be."""
    edges, x = histogram.check(model)[:-1], _part(context, part)
    return histogram.overlap(model, histogram.counts(x, edges), len(x)), len(x)


def _part(context: DeviceContext, name: str) -> Array:
    found: Array = context.samples_as_they_are(name).x.cpu().numpy()
    return found
