"""The device half of FedSoft: Algorithm 1. A device remembers its own model and its shares."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from shoal.core.data.seeds import generator
from shoal.core.device_kit import standard
from shoal.core.device_kit.evaluation.evaluate import loss_of
from shoal.core.device_kit.learner import authors, tensors_of
from shoal.core.device_kit.mixture import labelled, sample_losses
from shoal.core.device_kit.samples import Batches, seeded
from shoal.core.device_kit.training.fit import fitted
from shoal.core.device_kit.training.train import descend
from shoal.core.exchange.messages import Evaluate, Message
from shoal.core.exchange.parts import FloatArray
from shoal.core.exchange.tensors import weighted_mean
from shoal.core.types import Tensors
from shoal_lab.algorithms.fedsoft.messages import Measure, SoftTrained, Train
from shoal_lab.personal import Personal, recall, remember

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext


def perform(message: Message, context: "DeviceContext") -> Message:
    if isinstance(message, Train):
        return _train(message, context)
    if isinstance(message, Measure):
        return _measure(message, context)
    return standard.perform(message, context)


def _train(message: Train, context: "DeviceContext") -> SoftTrained:
    samples, _ = labelled(context, "train")
    own = recall(context, message.models[0], shares=(len(message.models),))
    if own is None or message.count:
        shares = np.maximum(counted(message.models, context), message.smoothing)
    else:
        shares = own.numbers["shares"]
    center = weighted_mean(zip(message.models, shares, strict=True))
    network = context.load(center if own is None else own.model)
    anchors = [
        torch.from_numpy(center[name]).to(samples.x.device)
        for name, weight in network.named_parameters()
        if weight.requires_grad
    ]
    settings = fitted(message.settings, len(samples))
    settings = replace(settings, proximal=settings.proximal * float(shares.sum()))
    batches = Batches(samples, settings.batch_size, context.seed, network)
    network.train()
    with seeded(context.seed, samples.x.device), authors("training"):
        loss = descend(network, batches, settings, loss_of(context.learner, samples), anchors)
    network.zero_grad(set_to_none=True)  # as large as the model, so not kept until the next task
    model = tensors_of(network)
    remember(context, Personal(model, {"shares": shares}))
    return SoftTrained(model, len(samples), loss, shares=tuple(shares.tolist()))


def counted(models: tuple[Tensors, ...], context: "DeviceContext") -> FloatArray:
    """n_ks / n_k, (S,): the share of the training samples for which each center's loss is the lowest."""
    samples, _ = labelled(context, "train")
    losses, order = (
        sample_losses(context, models, samples),
        generator(context.seed, "ties").permutation(len(models)),
    )
    best = order[losses[:, order].argmin(axis=1)]
    found: FloatArray = np.bincount(best, minlength=len(models)) / len(samples)
    return found


def _measure(message: Measure, context: "DeviceContext") -> Message:
    own = recall(context, message.model)
    model = message.model if own is None else own.model
    return standard.perform(Evaluate(model, message.part), context)
