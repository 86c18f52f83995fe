"""The device half of pFedMe: the local rounds of Algorithm 1. The personal model never leaves the device."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shoal.core.device_kit import standard
from shoal.core.device_kit.evaluation.evaluate import loss_of
from shoal.core.device_kit.learner import authors, tensors_of
from shoal.core.device_kit.samples import Batches, seeded
from shoal.core.device_kit.training.fit import fitted
from shoal.core.device_kit.training.train import walk, weights_of
from shoal.core.exchange.messages import Evaluate, Message, Trained, TrainingSettings
from shoal_lab.algorithms.pfedme.messages import Measure, Train
from shoal_lab.own_steps import gradients, refuse_own_training
from shoal_lab.personal import Personal, recall, remember

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext


def perform(message: Message, context: "DeviceContext") -> Message:
    if isinstance(message, Train):
        return _train(message, context)
    if isinstance(message, Measure):
        return _measure(message, context)
    return standard.perform(message, context)


def _train(message: Train, context: "DeviceContext") -> Trained:
    refuse_own_training(context.learner, "pFedMe")
    settings, samples = message.settings, context.samples("train")
    model, loss_at = context.load(message.model), loss_of(context.learner, samples)
    personal = weights_of(model)  # theta lives in the network, w beside it
    local = [weight.detach().clone() for weight in personal]
    fit = fitted(TrainingSettings(settings.epochs, settings.batch_size), len(samples))
    batches = Batches(samples, fit.batch_size, context.seed, model)

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
    with seeded(context.seed, samples.x.device), authors("network or loss()"):
        loss = walk(batches, fit.epochs, local_round, settings.personal_rate, settings.local_rounds)
    remember(context, Personal(tensors_of(model)))
    with torch.no_grad():
        for theta, w in zip(personal, local, strict=True):
            theta.copy_(w)
    return Trained(tensors_of(model), len(samples), loss)


def _measure(message: Measure, context: "DeviceContext") -> Message:
    own = recall(context, message.model)
    model = message.model if own is None else own.model
    return standard.perform(Evaluate(model, message.part), context)
