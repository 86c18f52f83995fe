"""The learner tried on the data before any work, so that a mistake shows here and not rounds later.

    quick   latent and loss of a few samples: what `fedclient run` does before its first task
    full    weights, latent, loss, one training step and evaluation of one batch: `fedclient check`

An error names the part of the learner that failed and its file. Needs PyTorch.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from fedclient.work.data import shown
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import (
    UnknownClass,
    are_probabilities,
    class_scores,
    evaluate,
    loss_of,
)
from shoal.core.device_kit.learner import authors, initial_weights
from shoal.core.device_kit.network import has_latent
from shoal.core.device_kit.samples import Samples, seeded
from shoal.core.device_kit.training.train import train
from shoal.core.errors import DataFault, DeviceFault, LearnerFault, WrongShape
from shoal.core.exchange.messages import TrainingSettings

QUICK_SAMPLES, FULL_SAMPLES = 8, 64
"""Samples of a quick and of a full self-check."""
WRITTEN = 20
"""The most classes that a hint writes out."""


def quick(context: DeviceContext, where: str) -> None:
    """Latent and loss. where: the learner's file. Raises LearnerFault, DataFault."""
    batch = _first(context, QUICK_SAMPLES)
    with seeded(0, context.device):
        _latent(context, batch, where)
        _loss(context, batch, where)


def full(context: DeviceContext, where: str) -> Mapping[str, Any]:
    """Everything that a task may ask for. Returns the findings, as JSON values. Raises LearnerFault,
    DataFault.
    """
    batch = _first(context, FULL_SAMPLES)
    with seeded(0, context.device):
        with _part("weights of build()", where):
            weights = initial_weights(context.learner, seed=1)
            context.load(weights)
        tried = {"latent": _latent(context, batch, where), "loss": _loss(context, batch, where)}
        tried["probabilities"] = are_probabilities(context.learner, context.model, batch)
        tried |= {"trained_loss": None, "accuracy": None, "evaluated_loss": None}
        if batch.y is not None:
            with _part("train()" if context.learner.train else "training", where):
                settings = TrainingSettings(epochs=1, batch_size=len(batch))
                tried["trained_loss"] = train(context.learner, context.model, batch, settings, seed=0)
            with _part("evaluate()" if context.learner.evaluate else "evaluation", where):
                found = evaluate(context.learner, context.model, batch)
                tried["accuracy"], tried["evaluated_loss"] = found
    parameters = sum(parameter.numel() for parameter in context.model.parameters())
    size = sum(array.nbytes for array in weights.values())
    network = {"parameters": parameters, "bytes": size, "device": context.device.type}
    seen = shown(context.views, context.inputs(["train"]))
    return {**seen, **network, "tried_on": len(batch), **tried}


def _first(context: DeviceContext, most: int) -> Samples:
    """The first samples, with the number of classes of all, so that a label that is too high shows.

    Of all parts: a run measures the others at its end, when it is too late.
    """
    samples = context.samples("train")
    y, targets = (None if part is None else part[:most] for part in (samples.y, samples.targets))
    classes = samples.classes if y is None or targets is not None else 1 + _extremes(context)[1]
    return Samples(samples.copied(slice(most)), y, classes, targets)


def _extremes(context: DeviceContext) -> tuple[int, int]:
    """The lowest and the highest label of all parts."""
    views = context.views
    parts = [part.y for part in (views.train, views.held_out, views.test) if part and part.y is not None]
    return min(int(labels.min()) for labels in parts), max(int(labels.max()) for labels in parts)


@contextmanager
def _from_one(context: DeviceContext) -> Iterator[None]:
    """Around the first use of the labels: those that begin at 1 have one that the network does not know."""
    try:
        yield
    except UnknownClass as fault:
        low, high = _extremes(context)
        if low < 1 or high != fault.outputs:
            raise
        some = ", ".join(map(str, range(1, min(high, WRITTEN) + 1)))
        raise DataFault(
            f"the labels go from {low} to {high}, and the network knows {fault.outputs} classes, from 0 on",
            "if they begin at 1, list them, on every device the same: "
            f"data.classes: [{some}{f', and so on to {high}' if high > WRITTEN else ''}]",
        ) from None


def _latent(context: DeviceContext, batch: Samples, where: str) -> list[int] | None:
    """The latent's shape; None if the learner has no latent, since not every algorithm needs one."""
    if not has_latent(context.learner, context.model, batch.x):
        return None
    with _part("latent", where):
        value = context.network.latents(context.inputs(["train"])[: len(batch)])
        if not np.isfinite(value).all():
            raise LearnerFault(
                "some values are NaN or infinite", "check the latent, and the scale of the data"
            )
        return list(value.shape)


def _loss(context: DeviceContext, batch: Samples, where: str) -> float | None:
    """The loss before any training; None if it is not needed: without labels, or with an own train()."""
    learner, model = context.learner, context.model
    model.eval()
    if batch.y is None:
        if learner.loss is None:  # a classifier, whose scores `fedclient predict` takes
            with _part("network", where, model, batch.x), torch.no_grad():
                class_scores(model, batch.x, 0)
        return None
    if learner.loss is None and learner.train is not None:
        if learner.evaluate is None:  # the author's training is for a task; what measures it is ours
            with _from_one(context), _part("evaluation", where, model, batch.x):
                evaluate(learner, model, batch)
        return None
    what = "loss()" if learner.loss else "network"
    with _from_one(context), _part(what, where, model, batch.x), torch.no_grad():
        value = float(loss_of(learner, batch)(model, batch.x, batch.goals))
        if not math.isfinite(value):
            raise LearnerFault(f"the loss of {len(batch)} samples is {value}", "check the scale of the data")
    return value


@contextmanager
def _part(what: str, where: str, *batch: Any) -> Iterator[None]:
    """Around the check of one part of the learner: a fault names the part, and the file that it is in."""
    try:
        with authors(what, *batch):
            yield
    except WrongShape as error:
        if error.values is None:  # images: the settings are to blame, not the learner
            raise
        raise WrongShape(f"{where}: {error.message}", error.hint, error.values) from error
    except LearnerFault as error:
        named = error.message if error.details else f"{what}: {error.message}"
        raise LearnerFault(f"{where}: {named}", error.hint, error.details) from error
    except DeviceFault as error:
        raise LearnerFault(f"{where}: {what}: {error.message}", error.hint) from error
