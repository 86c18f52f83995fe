"""The answers to the standard messages. Most algorithms need no other device half.

A half of its own answers what is new, and passes the rest on:

    def perform(message, bench):
        return vote(message, bench) if isinstance(message, Vote) else standard.perform(message, bench)
"""

from collections.abc import Callable, Mapping
from typing import Any

from fedcore.errors import BadPayload, near
from fedcore.local.bench import Bench
from fedcore.local.describe import describe
from fedcore.local.evaluate import evaluate
from fedcore.local.latents import bounds, latents
from fedcore.local.score import score
from fedcore.local.train import train
from fedcore.local.weights import initial_weights, tensors_of
from fedcore.messages import (
    Build,
    Built,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Message,
    Score,
    Scored,
    Train,
    Trained,
)
from fedcore.privacy.release import release
from fedcore.tensors import digest


def perform(message: Message, bench: Bench) -> Message:
    """The answer to a standard message. Raises ShoalErrors only: BadPayload for a message of another kind."""
    answer = _ANSWERS.get(type(message))
    if answer is None:
        known = [kind.kind for kind in _ANSWERS]
        raise BadPayload(f"this device half does not answer {message.kind!r}", near(message.kind, known))
    return answer(message, bench)


def _build(message: Build, bench: Bench) -> Built:
    return Built(initial_weights(bench.learner, bench.seed))


def _train(message: Train, bench: Bench) -> Trained:
    samples = bench.samples("train")
    model = bench.load(message.model)
    descriptor = None
    if message.projector is not None:  # of the model as it came, so before it trains
        moments = describe(bench.learner, model, [samples], message.projector, message.classes)
        descriptor = release(moments, message.privacy, digest(message.projector), bench.noise)
    loss = train(bench.learner, model, samples, message.settings, bench.seed)
    return Trained(tensors_of(model), len(samples), loss, descriptor)


def _evaluate(message: Evaluate, bench: Bench) -> Evaluated:
    samples = bench.samples(message.part)
    model = bench.load(message.model)
    accuracy, loss = evaluate(bench.learner, model, samples)
    if not message.bounds:
        return Evaluated(accuracy, loss, len(samples))
    found, width = bounds(latents(bench.learner, model, bench.samples("held_out")), message.bounds)
    return Evaluated(accuracy, loss, len(samples), found, width)


def _describe(message: Describe, bench: Bench) -> Described:
    parts = [bench.samples("train")]
    if not message.classes and len(bench.views.held_out):
        # Nothing will be trained or measured here, so all that the device has may speak for it.
        parts.append(bench.samples("held_out"))
    model = bench.load(message.encoder)
    moments = describe(bench.learner, model, parts, message.projector, message.classes)
    descriptor = release(moments, message.privacy, digest(message.projector), bench.noise)
    return Described(descriptor, sum(map(len, parts)))


def _score(message: Score, bench: Bench) -> Scored:
    return Scored(score(bench, message.models))


_ANSWERS: Mapping[type[Message], Callable[[Any, Bench], Message]] = {
    Build: _build,
    Train: _train,
    Evaluate: _evaluate,
    Describe: _describe,
    Score: _score,
}
