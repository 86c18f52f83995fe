"""What any newcomer may be asked: to choose among the clusters' models, to vote for one, to describe data.

    perform(message, context) -> Message

All of it is numpy. Of a network it needs `scores` and `latents`, which PyTorch or ONNX Runtime compute
(`shoal.core.inference.network`). What a choice finds stays on the device. Evidence that needs the author's
own code, such as losses or an encoder, is not here: it needs PyTorch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.core.errors import BadPayload, LearnerFault
from shoal.core.exchange.choosing import NO_CLASSIFIER, Choose, Chosen
from shoal.core.exchange.choosing.compact import ChooseCompact
from shoal.core.exchange.choosing.vote import Vote, Voted
from shoal.core.exchange.choosing.watching import Watch
from shoal.core.exchange.messages import Describe, Message, Represent
from shoal.core.exchange.parts import Ballot, ClusterAssignment, FloatArray, Integers
from shoal.core.exchange.tensors import Manifest, manifest_of
from shoal.core.inference.context import InferenceContext
from shoal.core.inference.describing import apart, describe, projected
from shoal.core.inference.nearness import STRANGE, Nearness, log_densities, nearness
from shoal.core.inference.network import class_scores, softmax
from shoal.core.inference.odds import Odds, odds
from shoal.core.inference.representing import represent
from shoal.core.inference.watching import watch
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.noise.vote import drawn, scores
from shoal.core.privacy.payment import voting
from shoal.core.types import Array, ModelKey, Tensors

HELP = "more samples would help, and about ten labels of each class where clusters name classes differently"
UNLIKE = (
    "these samples scatter {:.3g} times as much as those of the run's devices, so it may have no model for "
    "such data: tell its operator if that goes on"
)
NAMED = (
    "clusters with such samples name the classes differently, which only labels show: about ten of each "
    "class would help"
)
ONE_OUTPUT = "the network has one output, so it tells no classes apart"
HINT = "set placing to the paper's way, for example placing=likelihood for flux"


class NoClassifier(LearnerFault):
    """What a model says of a sample is no probability of classes.

    To do: nothing; the run is asked to decide. `placing=paper` decides so from the start.

    It does not depend on the samples, so that it tells nothing of them if the run is asked instead.
    """

    code = NO_CLASSIFIER


def perform(message: Message, context: InferenceContext) -> Message:
    """The answer to a question. Raises ShoalErrors only: BadPayload for one of another kind."""
    answer = _ANSWERS.get(type(message))
    if answer is None:
        raise BadPayload(
            f"a device without PyTorch cannot answer {message.kind!r}",
            "install PyTorch and the learner on it, or start the run with a placing that needs neither, such "
            "as own-models",
        )
    return answer(message, context)


def choose_compact(message: ChooseCompact, context: InferenceContext) -> Chosen:
    """As `choose`, of models that came in few bits; the answer has those to use."""
    question = message.opened(carrying(context.network.manifest, message.scale))
    return with_model(choose(question, context), question)


def carrying(manifest: Manifest, scale: Tensors | None) -> Manifest:
    """Of a model of this network that carries a scale of its inputs (`shoal.core.data.scale`)."""
    return (*manifest, *manifest_of(scale or {}))


def choose(question: Choose, context: InferenceContext) -> Chosen:
    """Which model suits all samples of the device but those of a test part; by labels, if it has them.

    Raises NoClassifier where the predictions are no probabilities of classes: the run can decide then.
    """
    network, parts = context.network, context.usable
    if not network.classifier or context.regression:
        raise NoClassifier(f"{network.name} has its own loss() or evaluate(), or predicts numbers", HINT)
    x, labels = context.inputs(parts), context.labels(parts)
    classes = 0 if labels is None else int(labels.max()) + 1
    # The run is asked to decide where this is no classifier, and a graph may have been made so that samples
    # decide about its shape: they must not be looked at for that.
    network.load(question.models[0])
    width = class_scores(network, np.zeros_like(x[:1]), 0).shape[1]
    if width < 2:
        raise NoClassifier(ONE_OUTPUT, HINT)

    def said(model: Tensors) -> FloatArray:
        network.load(model)
        found = class_scores(network, x, classes)
        if found.shape[1] != width:
            raise LearnerFault(
                f"the network gives shape {found.shape} for {len(x)} samples, and {width} scores for zeros",
                "tell the run's operator",
            )
        # A model that gives no numbers for a sample says nothing of it.
        return np.nan_to_num(softmax(found), nan=1.0 / width)

    predictions, described = [said(model) for model in question.models], question.described
    points = None if described is None else projected(context, described.encoder, described.projector, parts)
    return chosen(question, predictions, labels, points)


def vote(question: Vote, context: InferenceContext) -> Voted:
    """The cluster that a private vote of all samples but those of a test part names. Repeated samples count
    once. Raises OverBudget."""
    described = question.opened(carrying(context.network.manifest, question.scale))

    def exact() -> Integers:
        parts = context.usable
        first = np.unique(context.distinct(parts, labels=False), return_index=True)[1]
        points = np.concatenate([*apart(context, described.encoder, described.projector, parts, first)])
        _check_dims(points, described.clusters)
        return scores(log_densities(points, described.clusters))

    def noised(found: Integers, entropy: Entropy) -> int:
        return drawn(found, question.epsilon, entropy)

    choice = context.pay(voting(question.epsilon, question.digest, context.version()), exact, noised)
    return Voted(Ballot(question.keys[choice], question.epsilon))


def chosen(
    question: Choose,
    predictions: Sequence[FloatArray],
    labels: Array | None,
    points: FloatArray | None = None,
) -> Chosen:
    """Which model suits the samples best. predictions: (n, C) for each model, in the order of the question.

    labels: (n,), the classes of the samples, where all are known. points: (n, l), the samples' latents by the
    question's encoder and projector, if it has densities.
    """
    near = None if points is None else _nearness(question, points)
    kin = None if labels is not None or question.kin is None else np.array(question.kin)
    found = odds(predictions, labels, None if near is None else near.logarithms, kin, question.shares)
    by = ("mutual information" if labels is None else "labels") + (" and likelihood" if near else "")
    where = assignment(question.keys, found, by)
    if kin is not None and found.best < len(kin) and (kin == kin[found.best]).sum() > 1:
        where = replace(where, reason=f"{where.reason}; {NAMED}")
    if near is not None and near.spread >= STRANGE:
        where = replace(where, reason=f"{where.reason}; {UNLIKE.format(near.spread)}")
    mixture = tuple(found.mixture.tolist())
    return Chosen(
        where,
        tuple(found.information.tolist()),
        tuple(found.errors.tolist()),
        (*found.odds.tolist(), 0.0),
        tuple(found.agreement.tolist()),
        len(predictions[0]),
        None if near is None else tuple(near.likelihood.tolist()),
        None if near is None else near.spread,
        mixture=mixture if sum(share > 0.0 for share in mixture) > 1 else None,
    )


def with_model(found: Chosen, question: Choose) -> Chosen:
    """The answer together with the models to use, which are nowhere else: they came in few bits."""
    chosen = question.keys.index(found.assignment.cluster)
    others = [question.models[number] for number in members(found) if number != chosen]
    return replace(found, model=question.models[chosen], others=tuple(others) or None)


def members(found: Chosen) -> list[int]:
    """The numbers of the models in the mixture; none where only the chosen one predicts."""
    return [number for number, share in enumerate(found.mixture or ()) if share > 0.0]


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
    reason = f"these samples do not tell {likely} apart, and of single models the common one serves them best"
    return ClusterAssignment(
        keys[best],
        runner_up=keys[order[0]],
        confidence=float(found.agreement[best]),
        reason=f"{reason}; {HELP}",
    )


def _nearness(question: Choose, points: FloatArray) -> Nearness:
    described = question.described
    assert described is not None
    _check_dims(points, described.clusters)
    return nearness(points, described.clusters, sum(question.shares) / len(question.shares))


def _check_dims(points: FloatArray, clusters: Tensors) -> None:
    dims = clusters["means"].shape[2]
    if points.shape[1] != dims:
        raise BadPayload(f"densities of {dims} dimensions came with a projector to {points.shape[1]}")


_ANSWERS: Mapping[type[Message], Callable[[Any, InferenceContext], Message]] = {
    ChooseCompact: choose_compact,
    Vote: vote,
    Describe: describe,
    Watch: watch,
    Represent: represent,
}
QUESTIONS = tuple(_ANSWERS)
"""What a newcomer may be asked."""
