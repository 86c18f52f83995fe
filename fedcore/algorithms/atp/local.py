"""The device half of ATP: it learns the rates, and measures what the model adapts to."""

import math
from typing import TYPE_CHECKING

from torch import Tensor

from fedcore.algorithms.atp.adapting import adapting
from fedcore.algorithms.atp.messages import Learn, Learned, Measure
from fedcore.local import standard
from fedcore.local.chance import seeded
from fedcore.local.evaluate import evaluate
from fedcore.local.faults import authors
from fedcore.local.losses import loss_of
from fedcore.local.samples import Batches, Samples
from fedcore.local.steps import walk
from fedcore.messages import Evaluated, Message

if TYPE_CHECKING:
    from fedcore.local.bench import Bench


def perform(message: Message, bench: "Bench") -> Message:
    if isinstance(message, Learn):
        return _learn(message, bench)
    if isinstance(message, Measure):
        return _measure(message, bench)
    return standard.perform(message, bench)


def _learn(message: Learn, bench: "Bench") -> Learned:
    # The model has seen the training part, and is surer of it than of anything that it will meet.
    samples = bench.samples("held_out" if len(bench.views.held_out) else "train")
    model, rates = bench.load(message.model), list(message.rates)
    loss_at = loss_of(bench.learner, samples)
    with seeded(bench.seed, samples.x.device), authors("network or loss()"), adapting(model) as network:

        def step(x: Tensor, y: Tensor) -> Tensor:
            directions = network.directions(x)
            network.move(rates, directions)
            loss = loss_at(model, x, y)
            for place, gradient, h in zip(network.places, network.gradients(loss), directions, strict=True):
                along = (gradient * h).sum().item()
                rates[place] += message.step * along / math.sqrt(max(h.numel(), 1))
            return loss

        loss = walk(Batches(samples, message.batch_size, bench.seed), 1, step, message.step)
    return Learned(tuple(rates), len(samples), loss)


def _measure(message: Measure, bench: "Bench") -> Evaluated:
    samples = bench.samples(message.part)
    labels, model = samples.labels, bench.load(message.model)
    right, lost, mean = 0.0, 0.0, list[Tensor]()
    with authors("network"), adapting(model) as network:
        for number, start in enumerate(range(0, len(samples), message.batch_size)):
            rows = slice(start, start + message.batch_size)
            batch = Samples(samples.x[rows], labels[rows], samples.classes)
            directions = network.directions(batch.x)
            if message.online and mean:
                mean = [old + (new - old) / (number + 1) for old, new in zip(mean, directions, strict=True)]
            else:
                mean = directions
            network.move(message.rates, mean)
            accuracy, loss = evaluate(bench.learner, model, batch)
            right, lost = right + accuracy * len(batch), lost + loss * len(batch)
    return Evaluated(right / len(samples), lost / len(samples), len(samples))
