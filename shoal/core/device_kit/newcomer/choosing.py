"""A newcomer chooses among the clusters' models by its own samples. What it finds stays on the device."""

from dataclasses import replace

import numpy as np
import torch

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.describe import ALL, project
from shoal.core.device_kit.latents import latents
from shoal.core.device_kit.mixture import probabilities
from shoal.core.device_kit.newcomer.nearness import STRANGE, Nearness, nearness
from shoal.core.device_kit.newcomer.odds import Odds, odds
from shoal.core.device_kit.samples import Samples
from shoal.core.errors import BadPayload, LearnerFault
from shoal.core.exchange.choosing import NO_CLASSIFIER, Choose, Chosen, ClusterDensities
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import ClusterAssignment, FloatArray
from shoal.core.types import ModelKey, Tensors

HELP = "more samples would help, and about ten labels of each class where clusters name classes differently"
UNLIKE = (
    "these samples scatter {:.3g} times as much as those of the run's devices, so it may have no model for "
    "such data: tell its operator if that goes on"
)
HINT = "set placing to the paper's way, for example placing=likelihood for flux"


class NoClassifier(LearnerFault):
    """What a model says of a sample is no probability of classes: whatever the samples are, so that it tells
    nothing of them if the run is asked to decide instead."""

    code = NO_CLASSIFIER


def perform(message: Message, context: DeviceContext) -> Message:
    """The device half of `Choose`. Raises what `choose` raises."""
    if not isinstance(message, Choose):
        raise BadPayload(f"a newcomer does not answer {message.kind!r}")
    return choose(message, context)


def choose(question: Choose, context: DeviceContext) -> Chosen:
    """Which model suits all samples of the device but those of a test part; by labels, if it has them, and by
    where the clusters' data lie, if the run knows that.

    Raises NoClassifier where the predictions are no probabilities of classes: the run can decide then.
    """
    if context.learner.loss or context.learner.evaluate:
        raise NoClassifier(f"{context.learner.name} has its own loss() or evaluate()", HINT)
    parts = [context.samples(part) for part in (ALL if len(context.views.held_out) else ALL[:1])]
    predictions = [_predictions(context, model, parts) for model in question.models]
    if predictions[0].shape[1] < 2:
        raise NoClassifier("the network has one output, so it tells no classes apart", HINT)
    labels = [part.y.cpu().numpy() for part in parts if part.y is not None]
    known = np.concatenate(labels) if len(labels) == len(parts) else None
    near = None if question.described is None else _nearness(context, question, question.described, parts)
    found = odds(predictions, question.shares, known, None if near is None else near.logarithms)
    by = ("labels" if known is not None else "mutual information") + (" and likelihood" if near else "")
    where = assignment(question.keys, found, by)
    if near is not None and near.spread >= STRANGE:
        where = replace(where, reason=f"{where.reason}; {UNLIKE.format(near.spread)}")
    return Chosen(
        where,
        tuple(found.information.tolist()),
        tuple(found.errors.tolist()),
        (*found.odds.tolist(), 0.0),
        tuple(found.agreement.tolist()),
        len(predictions[0]),
        None if near is None else tuple(near.likelihood.tolist()),
        None if near is None else near.spread,
    )


def assignment(keys: tuple[ModelKey, ...], found: Odds, evidence: str) -> ClusterAssignment:
    """The choice, in the words of every placement; there is no distance.

    The runner-up is the likeliest of the other clusters. The confidence is the probability that the cluster
    is the right one, or, of the common model, the share of samples on which it is expected to be as good.
    """
    best, order = found.best, found.order
    if best < len(order):
        others = [keys[index] for index in order if index != best]
        return ClusterAssignment(
            keys[best],
            runner_up=others[0] if others else "",
            confidence=float(found.odds[best]),
            reason=f"chosen on this device by {evidence}",
        )
    likely = " and ".join(keys[index] for index in order[:2])
    reason = f"these samples do not tell {likely} apart, so the common model serves them best; {HELP}"
    return ClusterAssignment(
        keys[best], runner_up=keys[order[0]], confidence=float(found.agreement[best]), reason=reason
    )


def _nearness(
    context: DeviceContext, question: Choose, densities: ClusterDensities, parts: list[Samples]
) -> Nearness:
    """Where the samples lie among the clusters. Raises LearnerFault for a learner that has no latent."""
    encoder = context.load(densities.encoder)
    batches = (batch for part in parts for batch in latents(context.learner, encoder, part))
    projected = project(batches, densities.projector)
    dims = densities.clusters["means"].shape[2]
    if projected.shape[1] != dims:
        raise BadPayload(f"densities of {dims} dimensions came with a projector to {projected.shape[1]}")
    return nearness(projected, densities.clusters, sum(question.shares) / len(question.shares))


def _predictions(context: DeviceContext, model: Tensors, parts: list[Samples]) -> FloatArray:
    """p(class | sample), (n, C). A model that gives no numbers for a sample says nothing of it."""
    said = torch.cat([probabilities(context, model, part) for part in parts]).exp()
    found: FloatArray = said.nan_to_num(nan=1.0 / said.shape[1]).cpu().numpy()
    return found
