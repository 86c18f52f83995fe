"""The answers to the standard messages. Most algorithms need no other device half.

A device half of an algorithm's own answers the new messages, and passes the others on:

    def perform(message, context):
        return vote(message, context) if isinstance(message, Vote) else standard.perform(message, context)
"""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.core.data.histogram import is_histogram
from shoal.core.data.scale import Summary, summary_of
from shoal.core.data.seeds import derive
from shoal.core.device_kit import histograms, summing
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import correct, detailed, evaluate, evaluated, score
from shoal.core.device_kit.learner import initial_weights, tensors_of
from shoal.core.device_kit.mixture import predicted
from shoal.core.device_kit.prototypes import represent
from shoal.core.device_kit.scaling import may_need_scale, weighs_evenly
from shoal.core.device_kit.training import encoded, private
from shoal.core.device_kit.training.train import train
from shoal.core.errors import BadPayload, Diverged, TooFewSamples, near
from shoal.core.exchange.encoding.messages import TrainedEncoded, TrainEncoded
from shoal.core.exchange.messages import (
    Build,
    Built,
    CountLatents,
    Describe,
    Ensemble,
    Evaluate,
    Evaluated,
    HeldOut,
    LatentsCounted,
    Message,
    PrivateTraining,
    Represent,
    Score,
    Scored,
    Summarize,
    Summarized,
    Train,
    Trained,
    TrainingSettings,
)
from shoal.core.exchange.summing import SECURE
from shoal.core.exchange.tensors import digest
from shoal.core.inference.describing import describe, described, latent_bounds
from shoal.core.inference.network import batches
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import counting
from shoal.core.privacy.release import noisy_count
from shoal.core.privacy.report import OPEN
from shoal.core.types import Tensors


def perform(message: Message, context: DeviceContext) -> Message:
    """The answer to a standard message. Raises ShoalErrors only: BadPayload for a message of another kind."""
    if isinstance(message, SECURE):
        return summing.perform(message, context, _trained)
    answer = _ANSWERS.get(type(message))
    if answer is None:
        known = [kind.kind for kind in _ANSWERS]
        raise BadPayload(f"this device half does not answer {message.kind!r}", near(message.kind, known))
    return answer(message, context)


def _build(message: Build, context: DeviceContext) -> Built:
    seeds = [derive(context.seed, "model", number) for number in range(1, message.models or 1)]
    others = tuple(initial_weights(context.learner, seed) for seed in seeds)
    return Built(initial_weights(context.learner, context.seed), others or None)


def _train(message: Train, context: DeviceContext) -> Trained:
    none = message.private is not None or is_histogram(message.model)
    held_out = None if none else measured(context, message.model)
    return replace(_trained(message, context), held_out=held_out)


def measured(context: DeviceContext, weights: Tensors) -> HeldOut | None:
    """How good a model is on the held-out part; None where nothing is held out, or its loss is no number.

    Nothing that is random about training depends on whether this was called.
    """
    if not len(context.views.held_out):
        return None
    samples = context.samples("held_out")
    try:
        return HeldOut(*evaluate(context.learner, context.load(weights), samples), len(samples))
    except Diverged:
        return None


def _trained(message: Train, context: DeviceContext) -> Trained:
    """Without a figure of the held-out part, which sums and guarantees would not protect."""
    if is_histogram(message.model):
        return histograms.counted(message, context)
    samples = context.samples("train")
    descriptor = None
    if message.projector is not None:  # of the model as it came, so before it trains
        parts = context.usable if message.privacy.calibrated else context.usable[:1]
        with suppress(TooFewSamples):  # it trains without one
            descriptor = described(
                context, message.model, message.projector, parts, message.classes, message.privacy
            )
    if message.private is not None:
        return replace(
            privately(context, message.model, message.settings, message.private), descriptor=descriptor
        )
    model = context.load(message.model)
    loss = train(context.learner, model, samples, message.settings, context.seed)
    return Trained(tensors_of(model), len(samples), loss, descriptor)


def _train_encoded(message: TrainEncoded, context: DeviceContext) -> TrainedEncoded:
    return encoded.train(message, context, _train)


def privately(
    context: DeviceContext, weights: Tensors, settings: TrainingSettings, asked: PrivateTraining
) -> Trained:
    """Trained by DP-SGD, which the context's account pays for.

    Raises OverBudget if the owner's budget does not suffice, LearnerFault for a network that cannot be
    trained so, DeviceFault where Opacus is not installed.
    """
    samples, model = context.samples("train"), context.load(weights)
    private.check(context.learner, model)
    agreed = private.terms(asked, settings, len(samples))
    private.attempt(context.learner, model, samples)

    def work(_: None, entropy: Entropy) -> Tensors:
        private.train(context.learner, model, samples, settings, agreed, context.seed, entropy)
        return tensors_of(model)

    return private.paid(context, agreed, len(samples), work, "weights")


def _evaluate(message: Evaluate, context: DeviceContext) -> Evaluated:
    if is_histogram(message.model):
        return Evaluated(*_overlap(message, context))
    if message.rho is not None:
        return _accuracy(message, message.rho, context)
    samples = context.samples(message.part)
    model = context.load(message.model)
    accuracy, loss = evaluate(context.learner, model, samples)
    f1, auc = detailed(context.learner, model, samples) if message.detailed else (None, None)
    if not message.bounds:
        return evaluated(context, samples, accuracy, loss, f1=f1, auc=auc)
    network, x = context.network, context.inputs(["held_out"])
    network.load(message.model)
    context.unprotected(OPEN["bounds"])
    found, number = latent_bounds(map(network.latents, batches(network, x)))
    return evaluated(context, samples, accuracy, loss, bounds=found, latents=number, f1=f1, auc=auc)


def _overlap(message: Evaluate, context: DeviceContext) -> tuple[float, float, int]:
    if message.rho is not None or message.bounds:
        raise BadPayload("of a histogram only what data have in common with it can be measured")
    shared, samples = histograms.overlap(message.model, message.part, context)
    return shared, 0.0, samples


def _ensemble(message: Ensemble, context: DeviceContext) -> Evaluated:
    samples = context.samples(message.part)
    weights = np.array(message.weights) / sum(message.weights)
    return evaluated(context, samples, *predicted(context, message.models, weights, samples))


def _accuracy(message: Evaluate, rho: float, context: DeviceContext) -> Evaluated:
    """With a guarantee: how many samples are classified rightly, with noise, of a number that is public."""
    samples = context.samples(message.part)
    asked = counting(rho, digest(message.model), message.part, context.version())

    def exact() -> int:
        return correct(context.learner, context.load(message.model), samples)

    def noised(count: int, entropy: Entropy) -> int:
        return noisy_count(count, rho, entropy)

    share = context.pay(asked, exact, noised) / len(samples)
    return Evaluated(min(max(share, 0.0), 1.0), 0.0, len(samples), rho=rho)


def _count_latents(message: CountLatents, context: DeviceContext) -> LatentsCounted:
    if is_histogram(message.model):
        return LatentsCounted(histograms.features(context))
    nothing = np.zeros_like(context.inputs(["train"])[:1])  # the answer must not depend on any record
    context.network.load(message.model)
    return LatentsCounted(context.network.latents(nothing).shape[1])


def _score(message: Score, context: DeviceContext) -> Scored:
    return Scored(score(context, message.models))


def _summarize(message: Summarize, context: DeviceContext) -> Summarized:
    samples, learner = context.samples("train"), context.learner
    # What an author measures or minimizes may mean something in the targets' own units.
    own = learner.loss or learner.evaluate or learner.train
    targets = None if samples.targets is None or own else samples.targets.cpu().numpy()
    needs = may_need_scale(samples.x)
    if needs or targets is not None:  # that they need none tells of the data, too, unless their shape says it
        context.unprotected(OPEN["summary"])
    if needs and not weighs_evenly(learner, samples.x):
        found = summary_of(samples.x.cpu().numpy(), targets)
    else:
        found = Summary((), (), summary_of(np.zeros(len(samples)), targets).target)
    return Summarized(found.means, found.deviations, found.target)


_ANSWERS: Mapping[type[Message], Callable[[Any, DeviceContext], Message]] = {
    Build: _build,
    Train: _train,
    TrainEncoded: _train_encoded,
    Evaluate: _evaluate,
    CountLatents: _count_latents,
    Ensemble: _ensemble,
    Describe: describe,
    Score: _score,
    Summarize: _summarize,
    Represent: represent,
}
