"""The device half of ATP: it learns the rates, and measures the adapted model."""

import math
from typing import TYPE_CHECKING

from torch import Tensor

from shoal.core.device_kit import standard
from shoal.core.device_kit.evaluation.evaluate import evaluate, evaluated, loss_of
from shoal.core.device_kit.evaluation.regression import refuse_targets
from shoal.core.device_kit.learner import authors
from shoal.core.device_kit.samples import Batches, Samples, seeded
from shoal.core.device_kit.training.train import walk
from shoal.core.exchange.messages import Evaluated, Message
from shoal_lab.algorithms.atp.adapting import adapting
from shoal_lab.algorithms.atp.messages import Learn, Learned, Measure

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext


def perform(message: Message, context: "DeviceContext") -> Message:
    if isinstance(message, Learn):
        return _learn(message, context)
    if isinstance(message, Measure):
        return _measure(message, context)
    return standard.perform(message, context)


def _learn(message: Learn, context: "DeviceContext") -> Learned:
    # The model was trained on the training part, and is more certain about it than about any new sample.
    samples = context.samples("held_out" if len(context.views.held_out) else "train")
    refuse_targets(samples, "atp")
    model, rates = context.load(message.model), list(message.rates)
    loss_at = loss_of(context.learner, samples)
    with seeded(context.seed, samples.x.device), authors("network or loss()"), adapting(model) as network:

        def step(x: Tensor, y: Tensor) -> Tensor:
            directions = network.directions(x)
            network.move(rates, directions)
            loss = loss_at(model, x, y)
            for place, gradient, h in zip(network.places, network.gradients(loss), directions, strict=True):
                along = (gradient * h).sum().item()
                rates[place] += message.step * along / math.sqrt(max(h.numel(), 1))
            return loss

        batches = Batches(samples, message.batch_size, context.seed, model)
        loss = walk(batches, 1, step, message.step)
    return Learned(tuple(rates), len(samples), loss)


def _measure(message: Measure, context: "DeviceContext") -> Evaluated:
    samples = context.samples(message.part)
    refuse_targets(samples, "atp")
    labels, model = samples.labels, context.load(message.model)
    right, lost, mean = 0.0, 0.0, list[Tensor]()
    with authors("network"), adapting(model) as network:
        for number, start in enumerate(range(0, len(samples), message.batch_size)):
            rows = slice(start, start + message.batch_size)
            batch = Samples(samples.copied(rows), labels[rows], samples.classes)
            directions = network.directions(batch.x)
            if message.online and mean:
                mean = [old + (new - old) / (number + 1) for old, new in zip(mean, directions, strict=True)]
            else:
                mean = directions
            network.move(message.rates, mean)
            accuracy, loss = evaluate(context.learner, model, batch)
            right, lost = right + accuracy * len(batch), lost + loss * len(batch)
    return evaluated(context, samples, right / len(samples), lost / len(samples))
