"""The device half of APFL: Algorithm 1. The device's own model and alpha are remembered, and never sent."""

import copy
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from shoal.core.device_kit import standard
from shoal.core.device_kit.evaluation.evaluate import loss_of
from shoal.core.device_kit.learner import authors, load_weights, tensors_of
from shoal.core.device_kit.samples import Batches, seeded
from shoal.core.device_kit.training.fit import fitted
from shoal.core.device_kit.training.train import walk, weights_of
from shoal.core.exchange.messages import Evaluate, Message, Trained
from shoal.core.types import Tensors
from shoal_lab.algorithms.apfl.messages import Measure, Train
from shoal_lab.own_steps import gradients, refuse_own_training
from shoal_lab.personal import Personal, number, recall, remember

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext


def perform(message: Message, context: "DeviceContext") -> Message:
    if isinstance(message, Train):
        return _train(message, context)
    if isinstance(message, Measure):
        return _measure(message, context)
    return standard.perform(message, context)


def _train(message: Train, context: "DeviceContext") -> Trained:
    refuse_own_training(context.learner, "APFL")
    samples = context.samples("train")
    settings = fitted(message.settings, len(samples))
    kept = recall(context, message.model, alpha=())
    kept = kept or Personal(message.model, {"alpha": number(message.alpha)})
    common = context.load(message.model)
    mixed = copy.deepcopy(common)
    load_weights(mixed, kept.model)
    own = [weight.detach().clone().requires_grad_() for weight in weights_of(mixed)]
    share = float(kept.numbers["alpha"]) if message.adaptive else message.alpha
    alpha = torch.tensor(share, device=samples.x.device)
    trained = weights_of(common)
    optimizer = torch.optim.SGD(
        [*trained, *own],
        lr=settings.learning_rate,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )
    loss_at = loss_of(context.learner, samples)
    batches = Batches(samples, settings.batch_size, context.seed, common)

    def step(x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            for v_bar, v, w in zip(weights_of(mixed), own, trained, strict=True):
                v_bar.copy_(alpha * v + (1.0 - alpha) * w)
        of_mixed, loss = gradients(mixed, loss_at(mixed, x, y)), loss_at(common, x, y)
        along = torch.zeros((), device=x.device)  # the derivative of the loss at v_bar with respect to alpha
        for v, w, at_mixed, at_common in zip(own, trained, of_mixed, gradients(common, loss), strict=True):
            along += ((v.detach() - w.detach()) * at_mixed).sum()
            v.grad, w.grad = alpha * at_mixed, at_common
        optimizer.step()
        if message.adaptive:
            alpha.sub_(along, alpha=settings.learning_rate).clamp_(0.0, 1.0)
        return loss

    common.train()
    mixed.train()
    with seeded(context.seed, samples.x.device), authors("network or loss()"):
        loss = walk(batches, settings.epochs, step, settings.learning_rate)
    common.zero_grad(set_to_none=True)  # as large as the model, so not kept until the next task
    with torch.no_grad():
        for v_bar, v in zip(weights_of(mixed), own, strict=True):
            v_bar.copy_(v)
    remember(context, Personal(tensors_of(mixed), {"alpha": number(alpha.item())}))
    return Trained(tensors_of(common), len(samples), loss)


def _measure(message: Measure, context: "DeviceContext") -> Message:
    kept, model = recall(context, message.model, alpha=()), message.model
    if kept is not None:
        trained = {name for name, weight in context.model.named_parameters() if weight.requires_grad}
        model = _mixture(kept, message.model, trained)
    return standard.perform(Evaluate(model, message.part), context)


def _mixture(kept: Personal, common: Tensors, trained: set[str]) -> Tensors:
    """v_bar: alpha v + (1 - alpha) w for trained tensors; the other tensors are those of v."""
    alpha = np.float32(kept.numbers["alpha"])
    return {
        name: (alpha * own + (1 - alpha) * common[name]).astype(own.dtype) if name in trained else own
        for name, own in kept.model.items()
    }
