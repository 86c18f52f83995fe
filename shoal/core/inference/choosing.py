"""A newcomer chooses among the clusters' models by its own samples. What it finds stays on the device."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from shoal.core.errors import BadPayload, LearnerFault
from shoal.core.exchange.choosing import NO_CLASSIFIER, Choose, Chosen
from shoal.core.exchange.parts import ClusterAssignment, FloatArray
from shoal.core.inference.nearness import STRANGE, Nearness, nearness
from shoal.core.inference.odds import Odds, odds
from shoal.core.types import Array, ModelKey

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
    """What a model says of a sample is no probability of classes: whatever the samples are, so that it tells
    nothing of them if the run is asked to decide instead."""

    code = NO_CLASSIFIER


def chosen(
    question: Choose,
    predictions: Sequence[FloatArray],
    labels: Array | None,
    projected: FloatArray | None = None,
) -> Chosen:
    """Which model suits the samples best. predictions: (n, C) for each model, in the order of the question.

    labels: (n,), the classes of the samples, where all are known. projected: (n, l), the samples' latents by
    the question's encoder and projector, if it has densities. Raises NoClassifier where the predictions are
    not of several classes: the run can decide then.
    """
    if predictions[0].shape[1] < 2:
        raise NoClassifier(ONE_OUTPUT, HINT)
    near = None if projected is None else _nearness(question, projected)
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


def _nearness(question: Choose, projected: FloatArray) -> Nearness:
    described = question.described
    assert described is not None
    dims = described.clusters["means"].shape[2]
    if projected.shape[1] != dims:
        raise BadPayload(f"densities of {dims} dimensions came with a projector to {projected.shape[1]}")
    return nearness(projected, described.clusters, sum(question.shares) / len(question.shares))


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
