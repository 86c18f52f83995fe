"""The device half of FedEM: E-step, M-step, and prediction by the mixture. Its weights are remembered."""

from typing import TYPE_CHECKING

import numpy as np

from shoal.core.data.seeds import generator
from shoal.core.device_kit import standard
from shoal.core.device_kit.evaluation.evaluate import evaluated
from shoal.core.device_kit.mixture import labelled, predicted, responsibilities, sample_losses, train_share
from shoal.core.exchange.messages import Evaluated, Message
from shoal.core.exchange.parts import FloatArray
from shoal_lab.algorithms.fedem.messages import Measure, Mix, Mixed

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext

WEIGHTS = "weights"


def perform(message: Message, context: "DeviceContext") -> Message:
    if isinstance(message, Mix):
        return _mix(message, context)
    if isinstance(message, Measure):
        return _measure(message, context)
    return standard.perform(message, context)


def _mix(task: Mix, context: "DeviceContext") -> Mixed:
    samples, _ = labelled(context, "train")
    count = len(task.models)
    weights = recalled(context, count)
    if weights is None:
        weights = np.full(count, 1.0 / count)
        if task.first == "random":
            weights = generator(context.seed, "mixture").dirichlet(np.ones(count))
    losses = sample_losses(context, task.models, samples)
    explained = responsibilities(losses, weights)
    weights = explained.mean(axis=0)
    context.remember({WEIGHTS: weights})
    shares = zip(task.models, explained.T, strict=True)
    trained = tuple(train_share(context, model, samples, share, task.settings)[0] for model, share in shares)
    loss = float((explained * losses).sum(axis=1).mean())
    return Mixed(trained, int(weights.argmax()), len(samples), loss)


def _measure(task: Measure, context: "DeviceContext") -> Evaluated:
    weights = recalled(context, len(task.models))
    samples, _ = labelled(context, task.part)
    mixture = np.array(task.weights) / sum(task.weights) if weights is None else weights
    return evaluated(context, samples, *predicted(context, task.models, mixture, samples))


def recalled(context: "DeviceContext", count: int) -> FloatArray | None:
    """The remembered weights of this many models: none below 0, with sum 1. None if there are no such
    weights."""
    found = (context.memory or {}).get(WEIGHTS)
    if found is None or found.shape != (count,) or not (found >= 0.0).all():
        return None
    return found if abs(float(found.sum()) - 1.0) < 1e-6 else None
