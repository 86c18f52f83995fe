"""How good a model is on some samples."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from shoal.core.device_kit.failures import authors
from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.losses import class_scores, loss_of
from shoal.core.device_kit.samples import Samples
from shoal.core.errors import LearnerFault


class Diverged(LearnerFault):
    """The model's loss is no finite number."""


def evaluate(learner: Learner, model: nn.Module, samples: Samples) -> tuple[float, float]:
    """Accuracy (0 to 1) and mean loss by sample, in evaluation mode: the author's own, or ours.

    Raises DeviceFault without labels, LearnerFault when the author's code fails, Diverged when the loss is
    no number.
    """
    model.eval()
    with torch.no_grad(), authors("evaluate()" if learner.evaluate else "network or loss()"):
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
