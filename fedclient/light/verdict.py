"""Whether a new model may replace the one that is used: it is tried on the device's own data first."""

from dataclasses import dataclass

import numpy as np

from shoal.core.data.arrays import network_input
from shoal.core.data.dataset import Dataset
from shoal.core.errors import LearnerFault
from shoal.core.inference.network import Scorer, class_scores, numbers, softmax
from shoal.core.inference.odds import gain
from shoal.core.types import Array

TRIED = 256
"""Samples of the device that a model is tried on."""
LEAST = 0.5
"""What share of the earlier model's information a new one needs. A model that improves has more of it, and
one that has collapsed to a few classes, or was made to, much less."""
STAYS = "the earlier model stays"
SLACK = 0.1
"""How much less of the samples with labels a new model may classify rightly: less may be chance."""


@dataclass(frozen=True)
class Checked:
    """What was found. information: mutual information of samples and predictions, in nats; 0 of regression.
    accuracy: on samples with labels; None without."""

    information: float
    accuracy: float | None


def check(network: Scorer, data: Dataset, regression: bool, before: Checked | None) -> Checked:
    """Try a model on the device's data. before: what was found of the model that it would replace.

    Raises LearnerFault, with the reason, for a model that is not to be used.
    """
    x, y = network_input(data.x[:TRIED]), None if data.y is None else data.y[:TRIED]
    if regression:
        values = numbers(network, x)
        found = of_probabilities(np.ones((len(values), 1)), values, None)
    else:
        said = softmax(class_scores(network, x, 0))
        known = y is not None and y.dtype.kind == "i"
        found = of_probabilities(said, None, float((said.argmax(axis=1) == y).mean()) if known else None)
    compare(found, before)
    return found


def of_probabilities(said: Array, values: Array | None, accuracy: float | None) -> Checked:
    """What is found of predictions: probabilities (n, C), or values (n,). Raises LearnerFault where some are
    no numbers."""
    if not np.isfinite(said if values is None else values).all():
        raise LearnerFault("the new model gives no numbers for some samples", STAYS)
    if values is not None:
        return Checked(0.0, None)
    return Checked(float(gain(said.astype(np.float64)).mean()), accuracy)


def compare(found: Checked, before: Checked | None) -> None:
    """Raise LearnerFault for a model that is worse than the earlier one, beyond chance."""
    if before is None:
        return
    if found.accuracy is not None and before.accuracy is not None:
        if found.accuracy < before.accuracy - SLACK:
            raise LearnerFault(
                f"it classifies {found.accuracy:.2f} of the labeled samples rightly, and the earlier model "
                f"{before.accuracy:.2f}",
                STAYS,
            )
    elif found.information < LEAST * before.information:
        raise LearnerFault(
            f"its predictions have {found.information:.3f} nats of information on these samples, and those "
            f"of the earlier model {before.information:.3f}",
            STAYS,
        )
