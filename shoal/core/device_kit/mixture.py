"""A device's share in several models: how well each explains each sample, and training each on its part.

Arrays are (n, K): a row for each sample of the training part, a column for each model.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import WORST, class_scores
from shoal.core.device_kit.evaluation.regression import refuse_targets
from shoal.core.device_kit.learner import authors, tensors_of
from shoal.core.device_kit.samples import Batches, Samples, seeded
from shoal.core.device_kit.training.fit import fitted
from shoal.core.device_kit.training.train import descend
from shoal.core.errors import LearnerFault, diverged
from shoal.core.exchange.messages import TrainingSettings
from shoal.core.exchange.parts import FloatArray
from shoal.core.types import Array, Tensors

Labels = npt.NDArray[np.int64]


def labelled(context: DeviceContext, part: str) -> tuple[Samples, Labels]:
    """Samples on which models can be compared by the loss of each sample: labeled, for a plain classifier.

    Raises DeviceFault without labels, LearnerFault for a learner with a loss or training of its own.
    """
    samples = context.samples(part)
    labels = samples.labels_for("this algorithm")
    refuse_targets(samples, "a mixture of models")
    if context.learner.loss or context.learner.train:
        raise LearnerFault(
            "a mixture of models weighs each sample's cross-entropy, and the learner has its own "
            + ("loss()" if context.learner.loss else "train()"),
            "remove it, or use an algorithm with one model for each device, such as flux",
        )
    return samples, labels.cpu().numpy()


def probabilities(context: DeviceContext, model: Tensors, samples: Samples) -> Tensor:
    """log p(class | sample) by a model in evaluation mode, (n, C) float64."""
    network = context.load(model)
    network.eval()
    with torch.no_grad(), authors("network"):
        found = [class_scores(network, samples.copied(rows), samples.classes) for rows in samples.passes()]
    return torch.log_softmax(torch.cat(found).double(), dim=1)


def sample_losses(context: DeviceContext, models: Sequence[Tensors], samples: Samples) -> FloatArray:
    """(n, K): cross-entropy of each sample under each model, at most `WORST`.

    Raises Diverged for a sample that no model gives a number for.
    """
    rows = torch.arange(len(samples), device=samples.x.device)
    columns = [-probabilities(context, model, samples)[rows, samples.labels] for model in models]
    found: FloatArray = torch.stack(columns, dim=1).cpu().numpy()
    if not np.isfinite(found).any(axis=1).all():
        raise diverged("the loss of a sample is no number under any model")
    return np.minimum(np.nan_to_num(found, nan=WORST), WORST)


def responsibilities(
    losses: FloatArray, weights: FloatArray, log_shares: FloatArray | None = None
) -> FloatArray:
    """(n, K), rows that sum to 1: which model explains each sample, by Bayes' rule.

    weights: (K,), the prior. log_shares: (n, K), how usual the sample's class is with each model; what is
    usual explains nothing.
    """
    with np.errstate(divide="ignore"):  # a weight of 0 stays one
        scores = np.log(weights) - losses
    if log_shares is not None:
        scores = scores - log_shares
    scores = np.exp(scores - scores.max(axis=1, keepdims=True))
    found: FloatArray = scores / scores.sum(axis=1, keepdims=True)
    return found


def predicted(
    context: DeviceContext, models: Sequence[Tensors], weights: FloatArray, samples: Samples
) -> tuple[float, float]:
    """Accuracy, and mean loss, of the weighted sum of the models' probabilities. weights: (K,), sum 1.

    Raises DeviceFault where the labels are numbers.
    """
    refuse_targets(samples, "a mixture of models")
    mixed = sum(
        weight * probabilities(context, model, samples).exp().nan_to_num(nan=0.0)
        for weight, model in zip(weights.tolist(), models, strict=True)
        if weight > 0.0
    )
    assert isinstance(mixed, Tensor)
    accuracy = (mixed.argmax(1) == samples.labels).double().mean()
    loss = F.nll_loss(mixed.clamp_min(torch.finfo(mixed.dtype).tiny).log(), samples.labels)
    return accuracy.item(), loss.item()


def train_share(
    context: DeviceContext, model: Tensors, samples: Samples, share: FloatArray, settings: TrainingSettings
) -> tuple[dict[str, Array], float]:
    """The model after training with each sample's loss times its `share`, (n,), and that loss.

    One with no share in any sample stays as it is. Raises what `shoal.core.device_kit.training.train` raises.
    """
    if not share.any():
        return dict(model), 0.0
    network, settings = context.load(model), fitted(settings, len(samples))
    weight = torch.from_numpy(share.astype(np.float32)).to(samples.x.device)
    labels, classes = samples.labels, samples.classes
    # What is shuffled are the rows, so that each batch knows its samples' shares.
    rows = Samples(samples.x, torch.arange(len(samples), device=samples.x.device), 0)

    def shared(network: nn.Module, x: Tensor, row: Tensor) -> Tensor:
        losses = F.cross_entropy(class_scores(network, x, classes), labels[row], reduction="none")
        return (weight[row] * losses).mean()

    network.train()
    with seeded(context.seed, samples.x.device), authors("training"):
        batches = Batches(rows, settings.batch_size, context.seed, network)
        loss = descend(network, batches, settings, shared)
    return tensors_of(network), loss
