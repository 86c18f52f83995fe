"""A newcomer chooses among the clusters' models by its own samples. What it finds stays on the device."""

from collections.abc import Sequence

from shoal.core.errors import LearnerFault
from shoal.core.exchange.choosing import NO_CLASSIFIER, Choose, Chosen
from shoal.core.exchange.parts import ClusterAssignment, FloatArray
from shoal.core.inference.odds import Odds, odds
from shoal.core.types import Array, ModelKey

HELP = "more samples would help, and about ten labels of each class where clusters name classes differently"
HINT = "set placing to the paper's way, for example placing=likelihood for flux"


class NoClassifier(LearnerFault):
    """What a model says of a sample is no probability of classes: whatever the samples are, so that it tells
    nothing of them if the run is asked to decide instead."""

    code = NO_CLASSIFIER


def chosen(question: Choose, predictions: Sequence[FloatArray], labels: Array | None) -> Chosen:
    """Which model suits the samples best. predictions: (n, C) for each model, in the order of the question.

    labels: (n,), the classes of the samples, where all are known. Raises NoClassifier where the predictions
    are not of several classes: the run can decide then.
    """
    if predictions[0].shape[1] < 2:
        raise NoClassifier("the network has one output, so it tells no classes apart", HINT)
    found = odds(predictions, question.shares, labels)
    return Chosen(
        assignment(question.keys, found, "mutual information" if labels is None else "labels"),
        tuple(found.information.tolist()),
        tuple(found.errors.tolist()),
        (*found.odds.tolist(), 0.0),
        tuple(found.agreement.tolist()),
        len(predictions[0]),
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
