"""The device half of FedEM: E-step, M-step, and prediction by the mixture. Its weights are remembered."""

from typing import TYPE_CHECKING

import numpy as np

from fedcore.algorithms.fedem.messages import Measure, Mix, Mixed
from fedcore.local import standard
from fedcore.local.mixture import labelled, predicted, responsibilities, sample_losses, train_share
from fedcore.messages import Evaluated, Message
from fedcore.parts import Vector
from fedcore.seeds import generator

if TYPE_CHECKING:
    from fedcore.local.bench import Bench

WEIGHTS = "weights"


def perform(message: Message, bench: "Bench") -> Message:
    if isinstance(message, Mix):
        return _mix(message, bench)
    if isinstance(message, Measure):
        return _measure(message, bench)
    return standard.perform(message, bench)


def _mix(task: Mix, bench: "Bench") -> Mixed:
    samples, _ = labelled(bench, "train")
    count = len(task.models)
    weights = recalled(bench, count)
    if weights is None:
        weights = np.full(count, 1.0 / count)
        if task.first == "random":
            weights = generator(bench.seed, "mixture").dirichlet(np.ones(count))
    losses = sample_losses(bench, task.models, samples)
    explained = responsibilities(losses, weights)
    weights = explained.mean(axis=0)
    bench.remember({WEIGHTS: weights})
    shares = zip(task.models, explained.T, strict=True)
    trained = tuple(train_share(bench, model, samples, share, task.settings)[0] for model, share in shares)
    loss = float((explained * losses).sum(axis=1).mean())
    return Mixed(trained, int(weights.argmax()), len(samples), loss)


def _measure(task: Measure, bench: "Bench") -> Evaluated:
    weights = recalled(bench, len(task.models))
    samples, _ = labelled(bench, task.part)
    mixture = np.array(task.weights) / sum(task.weights) if weights is None else weights
    return Evaluated(*predicted(bench, task.models, mixture, samples), len(samples))


def recalled(bench: "Bench", count: int) -> Vector | None:
    """The remembered weights of so many models: none below 0, their sum 1. None where there are none such."""
    found = (bench.memory or {}).get(WEIGHTS)
    if found is None or found.shape != (count,) or not (found >= 0.0).all():
        return None
    return found if abs(float(found.sum()) - 1.0) < 1e-6 else None
