"""Whether a new model may replace the one that is used: it is tried on the device's own data first."""

from dataclasses import dataclass

import numpy as np

from shoal.core.data.arrays import network_input
from shoal.core.data.dataset import Dataset
from shoal.core.errors import LearnerFault
from shoal.core.inference.network import Scorer, class_scores, numbers, softmax
from shoal.core.inference.odds import gain

MAX_SAMPLES = 256
"""Samples of the device that a model is tried on."""
MIN_INFORMATION = 0.5
"""What share of the earlier model's information a new one needs. A model that improves has more of it, and
one that has collapsed to a few classes, or was made to, much less."""
STAYS = "the earlier model stays"
ACCURACY_SLACK = 0.1
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
    x, y = network_input(data.x[:MAX_SAMPLES]), None if data.y is None else data.y[:MAX_SAMPLES]
    said = numbers(network, x) if regression else softmax(class_scores(network, x, 0))
    if not np.isfinite(said).all():
        raise LearnerFault("the new model gives no numbers for some samples", STAYS)
    if regression:
        return Checked(0.0, None)
    known = y is not None and y.dtype.kind == "i"
    accuracy = float((said.argmax(axis=1) == y).mean()) if known else None
    found = Checked(float(gain(said.astype(np.float64)).mean()), accuracy)
    if before is not None:
        _compare(found, before)
    return found


def _compare(found: Checked, before: Checked) -> None:
    """Raise LearnerFault for a model that is worse than the earlier one, beyond chance."""
    if found.accuracy is not None and before.accuracy is not None:
        if found.accuracy < before.accuracy - ACCURACY_SLACK:
            raise LearnerFault(
                f"it classifies {found.accuracy:.2f} of the labeled samples rightly, and the earlier model "
                f"{before.accuracy:.2f}",
                STAYS,
            )
    elif found.information < MIN_INFORMATION * before.information:
        raise LearnerFault(
            f"its predictions have {found.information:.3f} nats of information on these samples, and those "
            f"of the earlier model {before.information:.3f}",
            STAYS,
        )
