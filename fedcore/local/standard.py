"""The answers to the standard messages. Most algorithms need no other device half.

A half of its own answers what is new, and passes the rest on:

    def perform(message, bench):
        return vote(message, bench) if isinstance(message, Vote) else standard.perform(message, bench)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fedcore.errors import BadPayload, near
from fedcore.local import private
from fedcore.local.bench import Bench
from fedcore.local.evaluate import evaluate
from fedcore.local.latents import bounds, latents, width
from fedcore.local.prototypes import prototypes
from fedcore.local.releases import ALL, described
from fedcore.local.score import score
from fedcore.local.train import train
from fedcore.local.weights import initial_weights, tensors_of
from fedcore.messages import (
    WIDTH,
    Build,
    Built,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Message,
    PrivateTraining,
    Protected,
    Represent,
    Represented,
    Score,
    Scored,
    Train,
    Trained,
    TrainingSettings,
)
from fedcore.privacy.account import Lesson
from fedcore.privacy.chance import Entropy
from fedcore.privacy.statement import OPEN
from fedcore.seeds import derive
from fedcore.types import Tensors


def perform(message: Message, bench: Bench) -> Message:
    """The answer to a standard message. Raises ShoalErrors only: BadPayload for a message of another kind."""
    answer = _ANSWERS.get(type(message))
    if answer is None:
        known = [kind.kind for kind in _ANSWERS]
        raise BadPayload(f"this device half does not answer {message.kind!r}", near(message.kind, known))
    return answer(message, bench)


def _build(message: Build, bench: Bench) -> Built:
    seeds = [derive(bench.seed, "model", number) for number in range(1, message.models or 1)]
    others = tuple(initial_weights(bench.learner, seed) for seed in seeds)
    return Built(initial_weights(bench.learner, bench.seed), others or None)


def _train(message: Train, bench: Bench) -> Trained:
    samples = bench.samples("train")
    descriptor = None
    if message.projector is not None:  # of the model as it came, so before it trains
        parts = _parts(bench, message.privacy.calibrated)
        descriptor = described(
            bench, message.model, message.projector, parts, message.classes, message.privacy
        )
    if message.private is not None:
        return replace(
            privately(bench, message.model, message.settings, message.private), descriptor=descriptor
        )
    model = bench.load(message.model)
    loss = train(bench.learner, model, samples, message.settings, bench.seed)
    return Trained(tensors_of(model), len(samples), loss, descriptor)


def privately(bench: Bench, weights: Tensors, settings: TrainingSettings, asked: PrivateTraining) -> Trained:
    """Trained by DP-SGD, which the bench's account pays.

    Raises OverBudget where the owner's budget has no room, LearnerFault for a network that cannot be trained
    so, DeviceFault where Opacus is not installed.
    """
    samples, model = bench.samples("train"), bench.load(weights)
    private.check(bench.learner, model)
    agreed = private.terms(asked, settings, len(samples))
    private.attempt(bench.learner, model, samples)

    def work(entropy: Entropy) -> Tensors:
        private.train(bench.learner, model, samples, settings, agreed, bench.seed, entropy)
        return tensors_of(model)

    trained = bench.account.train(Lesson("weights", agreed, bench.version(ALL, labels=False)), work)
    done = Protected(agreed.clip, agreed.noise, agreed.rate, agreed.steps)
    return Trained(trained, len(samples), 0.0, private=done, curve=agreed.cost.curve)


def _evaluate(message: Evaluate, bench: Bench) -> Evaluated:
    samples = bench.samples(message.part)
    model = bench.load(message.model)
    accuracy, loss = evaluate(bench.learner, model, samples)
    if not message.bounds:
        return Evaluated(accuracy, loss, len(samples))
    held_out = bench.samples("held_out")
    if message.bounds == WIDTH:
        return Evaluated(accuracy, loss, len(samples), None, width(bench.learner, model, held_out))
    bench.account.unprotected(OPEN["bounds"], bench.version(ALL, labels=False))
    found, number = bounds(latents(bench.learner, model, held_out), message.bounds)
    return Evaluated(accuracy, loss, len(samples), found, number)


def _describe(message: Describe, bench: Bench) -> Described:
    # Without classes nothing will be trained or measured here.
    parts = _parts(bench, message.privacy.calibrated or not message.classes)
    descriptor = described(bench, message.encoder, message.projector, parts, message.classes, message.privacy)
    return Described(descriptor, sum(len(bench.samples(part)) for part in parts))


def _parts(bench: Bench, everything: bool) -> Sequence[str]:
    """Which parts are described. What has a guarantee is paid for with the budget of all of the data, and the
    more samples, the less the noise: so it is of all of them. The papers' moments are of the training part.
    """
    return ALL if everything and len(bench.views.held_out) else ALL[:1]


def _score(message: Score, bench: Bench) -> Scored:
    return Scored(score(bench, message.models))


def _represent(message: Represent, bench: Bench) -> Represented:
    bench.account.unprotected(OPEN["prototypes"], bench.version(ALL, labels=False))
    return Represented(prototypes(bench, message.by_class), len(bench.samples("train")))


_ANSWERS: Mapping[type[Message], Callable[[Any, Bench], Message]] = {
    Build: _build,
    Train: _train,
    Evaluate: _evaluate,
    Describe: _describe,
    Score: _score,
    Represent: _represent,
}
