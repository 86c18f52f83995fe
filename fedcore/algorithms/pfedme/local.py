"""The device half of pFedMe: the local rounds of Algorithm 1. The personal model never leaves the device."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedcore.algorithms.pfedme.messages import Measure, Train
from fedcore.local import standard
from fedcore.local.chance import seeded
from fedcore.local.faults import authors
from fedcore.local.losses import loss_of
from fedcore.local.personal import Personal, recall, remember
from fedcore.local.samples import Batches
from fedcore.local.steps import gradients, refuse_own_training, walk, weights_of
from fedcore.local.weights import tensors_of
from fedcore.messages import Evaluate, Message, Trained

if TYPE_CHECKING:
    from fedcore.local.bench import Bench


def perform(message: Message, bench: "Bench") -> Message:
    if isinstance(message, Train):
        return _train(message, bench)
    if isinstance(message, Measure):
        return _measure(message, bench)
    return standard.perform(message, bench)


def _train(message: Train, bench: "Bench") -> Trained:
    refuse_own_training(bench.learner, "pFedMe")
    settings, samples = message.settings, bench.samples("train")
    model, loss_at = bench.load(message.model), loss_of(bench.learner, samples)
    personal = weights_of(model)  # theta lives in the network, w beside it
    local = [weight.detach().clone() for weight in personal]
    batches = Batches(samples, settings.batch_size, bench.seed)

    def local_round(x: Tensor, y: Tensor) -> Tensor:
        first = None
        for _ in range(settings.personal_steps):
            loss = loss_at(model, x, y)
            first = loss if first is None else first
            found = gradients(model, loss)
            with torch.no_grad():
                for theta, gradient, w in zip(personal, found, local, strict=True):
                    pull = settings.attraction * (theta - w)
                    theta.sub_(gradient + pull, alpha=settings.personal_rate)
        with torch.no_grad():
            for theta, w in zip(personal, local, strict=True):
                w.sub_(w - theta, alpha=settings.learning_rate * settings.attraction)
        assert first is not None
        return first

    model.train()
    with seeded(bench.seed, samples.x.device), authors("network or loss()"):
        loss = walk(batches, settings.epochs, local_round, settings.personal_rate, settings.local_rounds)
    remember(bench, Personal(tensors_of(model)))
    with torch.no_grad():
        for theta, w in zip(personal, local, strict=True):
            theta.copy_(w)
    return Trained(tensors_of(model), len(samples), loss)


def _measure(message: Measure, bench: "Bench") -> Message:
    own = recall(bench, message.model)
    model = message.model if own is None else own.model
    return standard.perform(Evaluate(model, message.part), bench)
