"""The device half of FedSoft: Algorithm 1. A device's own model and its shares are remembered."""

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedcore.algorithms.fedsoft.messages import Measure, SoftTrained, Train
from fedcore.local import standard
from fedcore.local.chance import seeded
from fedcore.local.faults import authors
from fedcore.local.losses import loss_of
from fedcore.local.mixture import labelled, sample_losses
from fedcore.local.personal import Personal, recall, remember
from fedcore.local.samples import Batches
from fedcore.local.train import descend
from fedcore.local.weights import tensors_of
from fedcore.messages import Evaluate, Message
from fedcore.parts import Vector
from fedcore.seeds import generator
from fedcore.tensors import weighted_mean
from fedcore.types import Tensors

if TYPE_CHECKING:
    from fedcore.local.bench import Bench


def perform(message: Message, bench: "Bench") -> Message:
    if isinstance(message, Train):
        return _train(message, bench)
    if isinstance(message, Measure):
        return _measure(message, bench)
    return standard.perform(message, bench)


def _train(message: Train, bench: "Bench") -> SoftTrained:
    samples, _ = labelled(bench, "train")
    own = recall(bench, message.models[0], shares=(len(message.models),))
    if own is None or message.count:
        shares = np.maximum(counted(message.models, bench), message.smoothing)
    else:
        shares = own.numbers["shares"]
    centre = weighted_mean(zip(message.models, shares, strict=True))
    network = bench.load(centre if own is None else own.model)
    towards = [
        torch.from_numpy(centre[name]).to(samples.x.device)
        for name, weight in network.named_parameters()
        if weight.requires_grad
    ]
    settings = replace(message.settings, proximal=message.settings.proximal * float(shares.sum()))
    batches = Batches(samples, settings.batch_size, bench.seed)
    network.train()
    with seeded(bench.seed, samples.x.device), authors("training"):
        loss = descend(network, batches, settings, loss_of(bench.learner, samples), towards)
    network.zero_grad(set_to_none=True)  # as large as the model: not to be kept until the next task
    model = tensors_of(network)
    remember(bench, Personal(model, {"shares": shares}))
    return SoftTrained(model, len(samples), loss, shares=tuple(shares.tolist()))


def counted(models: tuple[Tensors, ...], bench: "Bench") -> Vector:
    """n_ks / n_k, (S,): for which share of the training samples each centre's loss is the lowest."""
    samples, _ = labelled(bench, "train")
    losses, order = (
        sample_losses(bench, models, samples),
        generator(bench.seed, "ties").permutation(len(models)),
    )
    best = order[losses[:, order].argmin(axis=1)]
    found: Vector = np.bincount(best, minlength=len(models)) / len(samples)
    return found


def _measure(message: Measure, bench: "Bench") -> Message:
    own = recall(bench, message.model)
    model = message.model if own is None else own.model
    return standard.perform(Evaluate(model, message.part), bench)
