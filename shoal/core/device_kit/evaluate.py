"""How good a model is on some samples."""

import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, Loss, authors
from shoal.core.device_kit.samples import PASS, Samples
from shoal.core.errors import DataFault, DeviceFault, LearnerFault
from shoal.core.exchange.parts import Scores
from shoal.core.types import Tensors


def loss_of(learner: Learner, samples: Samples) -> Loss:
    """The loss to train with on these samples: (model, x, y) -> mean over the batch, shape ()."""

    def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(class_scores(model, x, samples.classes), y)

    return cross_entropy if learner.loss is None else _scalar(learner.loss)


def class_scores(model: nn.Module, x: Tensor, classes: int) -> Tensor:
    """model(x), (B, C). Raises LearnerFault for another shape, DataFault when `classes` is more than C.

    A label that is too high would else be an obscure error, and on a GPU one that ends the process.
    """
    scores: object = model(x)
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != len(x):
        raise LearnerFault(
            f"the network gives {shape_of(scores)} for {len(x)} samples, not class scores ({len(x)}, C)",
            "bring a loss() and an evaluate() if it is no classifier",
        )
    if classes > scores.shape[1]:
        raise DataFault(
            f"the data have the label {classes - 1}, and the network knows {scores.shape[1]} classes",
            f"number the classes from 0 to {scores.shape[1] - 1}, or build a network with {classes} outputs",
        )
    return scores


def shape_of(value: object) -> str:
    """For messages: what an author's function returned."""
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _scalar(loss: Loss) -> Loss:
    def checked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        value: object = loss(model, x, y)
        if not isinstance(value, Tensor) or value.ndim:
            raise LearnerFault(
                f"loss() returned {shape_of(value)}, not a scalar tensor", "return the mean over the batch"
            )
        return value

    return checked


class Diverged(LearnerFault):
    """The model's loss is no finite number."""


def evaluate(learner: Learner, model: nn.Module, samples: Samples) -> tuple[float, float]:
    """Accuracy (0 to 1) and mean loss by sample, in evaluation mode: the author's own, or ours.

    Raises DeviceFault without labels, LearnerFault when the author's code fails, Diverged when the loss is
    no number.
    """
    model.eval()
    what = "evaluate()" if learner.evaluate else "network or loss()"
    with torch.no_grad(), authors(what, model, samples.x[:PASS]):
        if learner.evaluate:
            return _checked(learner.evaluate(model, samples))
        return _checked(_measure(learner, model, samples))


def _measure(learner: Learner, model: nn.Module, samples: Samples) -> tuple[float, float]:
    labels, loss = samples.labels, loss_of(learner, samples)
    # Sums stay where the network is: reading a number makes a GPU wait.
    total = torch.zeros((), device=samples.x.device, dtype=torch.float64)
    correct = torch.zeros((), device=samples.x.device, dtype=torch.int64)
    for rows in samples.passes():
        x, y = samples.x[rows], labels[rows]
        scores = class_scores(model, x, samples.classes)
        correct += (scores.argmax(1) == y).sum()
        total += len(x) * (loss(model, x, y) if learner.loss else F.cross_entropy(scores, y))
    return correct.item() / len(samples), total.item() / len(samples)


def _checked(result: object) -> tuple[float, float]:
    if not isinstance(result, Sequence) or len(result) != 2:
        raise LearnerFault(f"evaluate() returned {result!r}", "return (accuracy, mean loss)")
    accuracy, loss = float(result[0]), float(result[1])
    if not 0.0 <= accuracy <= 1.0:
        raise LearnerFault(f"evaluate() returned the accuracy {accuracy}", "give a share between 0 and 1")
    if not math.isfinite(loss):
        raise Diverged(f"the loss is {loss}", "the model has diverged: lower the learning rate")
    return accuracy, loss


WORST = 1e38
"""The loss of a model that fits nobody, and the highest that is told."""


def score(context: DeviceContext, models: Sequence[Tensors]) -> Scores:
    """Mean loss of each of K models on the training part, in their order (IFCA; CORNFLQS).

    A model that diverged has `WORST`: it may be the work of one hostile device, and others have their own.
    Raises DeviceFault without labels, Diverged where all models did, and what `evaluate` and
    `DeviceContext.load` raise.
    """
    samples = context.samples("train")
    if samples.y is None:
        raise DeviceFault(
            f"which of {len(models)} models fits is told by their loss, and the data have no labels",
            "label some samples, or ask a run that places devices without labels, such as one of flux",
        )
    losses, diverged = [], list[Diverged]()
    for model in models:
        try:
            loss = evaluate(context.learner, context.load(model), samples)[1]
        except Diverged as fault:
            diverged.append(fault)
            loss = WORST
        losses.append(min(loss, WORST))
    if len(diverged) == len(models):
        raise diverged[0]
    return Scores(np.array(losses), len(samples))
