"""Measuring models on samples: loss, accuracy, and the losses of several models."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.metrics import macro_auc, macro_f1
from shoal.core.device_kit.evaluation.regression import explained, predictions, refuse_targets, squared_error
from shoal.core.device_kit.learner import Learner, Loss, authors, shape_of
from shoal.core.device_kit.samples import PASS, Samples
from shoal.core.device_kit.training.slots import blocks, slots_of
from shoal.core.errors import DataFault, Diverged, LearnerFault, diverged
from shoal.core.exchange.messages import Evaluated
from shoal.core.exchange.parts import Scores
from shoal.core.types import Tensors


def loss_of(learner: Learner, samples: Samples) -> Loss:
    """The loss to train with on these samples: (model, x, y) -> mean over the batch, shape ()."""

    def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(class_scores(model, x, samples.classes), y)

    if learner.loss is not None:
        return _scalar(learner.loss)
    return cross_entropy if samples.targets is None else squared_error


class UnknownClass(DataFault):
    """The data have a label for which the network has no output. outputs: how many it has."""

    def __init__(self, message: str, hint: str, outputs: int) -> None:
        super().__init__(message, hint)
        self.outputs = outputs


def class_scores(model: nn.Module, x: Tensor, classes: int) -> Tensor:
    """model(x), (B, C). Raises LearnerFault for another shape, UnknownClass when `classes` is more than C.

    Otherwise a label that is too high would be an obscure error, and on a GPU one that ends the process.
    """
    scores: object = model(x)
    if not isinstance(scores, Tensor) or scores.ndim != 2 or len(scores) != len(x):
        raise LearnerFault(
            f"the network gives {shape_of(scores)} for {len(x)} samples, not class scores ({len(x)}, C)",
            "provide a loss() and an evaluate() if it is not a classifier",
        )
    if classes > scores.shape[1] == 1:  # as with an own loss() of one score for two classes
        raise UnknownClass(
            f"the network has one output, and the data have {classes} classes: no score is the highest",
            f"build it with {classes} outputs, or provide an evaluate() that measures by this one; for "
            "numbers to predict: regression",
            1,
        )
    if classes > scores.shape[1]:
        raise UnknownClass(
            f"the data have the label {classes - 1}, and the network knows {scores.shape[1]} classes",
            f"number the classes from 0 to {scores.shape[1] - 1}, or build a network with {classes} outputs",
            scores.shape[1],
        )
    return scores


def are_probabilities(learner: Learner, model: nn.Module, samples: Samples) -> bool:
    """Whether the network ends with a softmax, by which it learns slowly, and less. False where the learner
    trains in a way of its own. samples: a few that the network takes."""
    own = learner.loss or learner.train or learner.evaluate
    if own is not None or samples.targets is not None:
        return False
    model.eval()
    with torch.no_grad(), authors("network", model, samples.x):
        scores = class_scores(model, samples.copied(), 0)
    sums = scores.double().sum(dim=1)
    return scores.shape[1] > 1 and bool((scores >= 0.0).all() and ((sums - 1.0).abs() < 1e-4).all())


def _scalar(loss: Loss) -> Loss:
    def checked(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        value: object = loss(model, x, y)
        if not isinstance(value, Tensor) or value.ndim:
            raise LearnerFault(
                f"loss() returned {shape_of(value)}, not a scalar tensor", "return the mean over the batch"
            )
        return value

    return checked


def evaluate(learner: Learner, model: nn.Module, samples: Samples) -> tuple[float, float]:
    """Accuracy (0 to 1) and mean loss by sample, in evaluation mode: the author's own, or ours. Of
    regression, the accuracy is the share of variance that is explained (`evaluation.regression`).

    Raises DeviceFault without labels, LearnerFault when the author's code fails, Diverged when the loss is
    no number.
    """
    model.eval()
    what = "evaluate()" if learner.evaluate else "network or loss()"
    with torch.no_grad(), authors(what, model, samples.x[:PASS]):
        if learner.evaluate:
            return _checked(learner.evaluate(model, replace(samples, x=samples.copied())))
        if samples.targets is not None:
            return _checked(_measure_targets(learner, model, samples, samples.targets))
        return _checked(_measure(learner, model, samples))


def evaluated(
    context: DeviceContext, samples: Samples, accuracy: float, loss: float, **more: Any
) -> Evaluated:
    """The answer that says how good a model is on these samples, beside one that ignores them.

    more: the other fields of `Evaluated`. The context's network is one of the models, or the only one.
    """
    if context.learner.evaluate is not None:
        return Evaluated(accuracy, loss, len(samples), **more)
    if samples.targets is not None:
        return Evaluated(accuracy, loss, len(samples), baseline=0.0, **more)
    context.model.eval()
    with torch.no_grad(), authors("network", context.model, samples.x[:1]):
        classes = class_scores(context.model, samples.copied(slice(1)), samples.classes).shape[1]
    share = int(torch.bincount(samples.labels).max()) / len(samples)
    return Evaluated(accuracy, loss, len(samples), baseline=share, classes=classes, **more)


def _measure(learner: Learner, model: nn.Module, samples: Samples) -> tuple[float, float]:
    labels, loss = samples.labels, loss_of(learner, samples)
    # Sums stay where the network is: reading a number makes a GPU wait.
    total = torch.zeros((), device=samples.x.device, dtype=torch.float64)
    correct = torch.zeros((), device=samples.x.device, dtype=torch.int64)
    for rows in samples.passes():
        y = labels[rows]
        scores = class_scores(model, samples.copied(rows), samples.classes)
        correct += (scores.argmax(1) == y).sum()
        own = loss(model, samples.copied(rows), y) if learner.loss else F.cross_entropy(scores, y)
        total += len(y) * own
    return correct.item() / len(samples), total.item() / len(samples)


def _measure_targets(
    learner: Learner, model: nn.Module, samples: Samples, targets: Tensor
) -> tuple[float, float]:
    loss = loss_of(learner, samples)
    error, total = (torch.zeros((), device=samples.x.device, dtype=torch.float64) for _ in range(2))
    for rows in samples.passes():
        y = targets[rows]
        error += (predictions(model, samples.copied(rows)) - y).double().square().sum()
        if learner.loss:
            total += len(y) * loss(model, samples.copied(rows), y)
    mean = error.item() / len(samples)
    return explained(mean, targets), total.item() / len(samples) if learner.loss else mean


def correct(learner: Learner, model: nn.Module, samples: Samples) -> int:
    """How many samples get the highest score for their class, each computed without regard to the others.

    For what has a guarantee: one sample more changes this by at most 1, whatever the weights are (see
    `shoal.core.device_kit.training.slots`). Raises LearnerFault for a learner that measures in its own way.
    """
    if learner.evaluate is not None:
        raise LearnerFault(
            f"{learner.name} has its own evaluate(), for which no privacy guarantee can be given",
            "remove it, or ask for a run that measures nothing: evaluate=false",
        )
    _ = samples.labels
    refuse_targets(samples, "a released accuracy")
    found = 0
    for block in blocks(samples, slots_of(samples), np.arange(len(samples))):
        model.eval()
        with torch.no_grad(), authors("network", model, block.x):
            right = class_scores(model, block.x, samples.classes).argmax(1) == block.y
        found += int((right & block.filled).sum())
    return found


def detailed(learner: Learner, model: nn.Module, samples: Samples) -> tuple[float | None, float | None]:
    """Macro F1 and AUC (`evaluation.metrics`); None where the learner has an evaluate()."""
    if learner.evaluate is not None or samples.targets is not None:
        return None, None
    model.eval()
    with torch.no_grad(), authors("network", model, samples.x[:PASS]):
        scores = [class_scores(model, samples.copied(rows), samples.classes) for rows in samples.passes()]
    chances = torch.softmax(torch.cat(scores).double(), 1).nan_to_num(nan=0.0).cpu().numpy()
    labels = samples.labels.cpu().numpy()
    return macro_f1(labels, chances.argmax(1)), macro_auc(labels, chances)


def _checked(result: object) -> tuple[float, float]:
    if not isinstance(result, Sequence) or len(result) != 2:
        raise LearnerFault(f"evaluate() returned {result!r}", "return (accuracy, mean loss)")
    accuracy, loss = float(result[0]), float(result[1])
    if not 0.0 <= accuracy <= 1.0:
        raise LearnerFault(f"evaluate() returned the accuracy {accuracy}", "give a share between 0 and 1")
    if not math.isfinite(loss):
        raise diverged(f"the loss is {loss}")
    return accuracy, loss


WORST = 1e38
"""The loss of a model that fits no device, and the highest one that is reported."""


def score(context: DeviceContext, models: Sequence[Tensors]) -> Scores:
    """Mean loss of each of K models on the training part, in their order (IFCA; CORNFLQS).

    A model that diverged has the loss `WORST`: it may be the work of one hostile device.
    Raises DeviceFault without labels, Diverged if all models did, and what `evaluate` and
    `DeviceContext.load` raise.
    """
    context.samples("train").labels_for(f"choosing one of {len(models)} models by their loss")
    losses, faults = [], list[Diverged]()
    for model in models:
        context.in_scale(model)
        samples = context.samples("train")
        try:
            loss = evaluate(context.learner, context.load(model), samples)[1]
        except Diverged as fault:
            faults.append(fault)
            loss = WORST
        losses.append(min(loss, WORST))
    if len(faults) == len(models):
        raise faults[0]
    return Scores(np.array(losses), len(samples))
