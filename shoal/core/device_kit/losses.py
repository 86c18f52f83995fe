"""The loss of a batch: the author's, or cross-entropy. Both are checked without making a GPU wait."""

import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.device_kit.learner import Learner, Loss
from shoal.core.device_kit.samples import Samples
from shoal.core.errors import DataFault, LearnerFault


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
