"""Which of several models fits: the loss of each."""

from collections.abc import Sequence

import numpy as np

from fedcore.errors import DeviceFault
from fedcore.local.bench import Bench
from fedcore.local.evaluate import evaluate
from fedcore.parts import Scores
from fedcore.types import Tensors


def score(bench: Bench, models: Sequence[Tensors]) -> Scores:
    """Mean loss of each of K models on the training part, in their order (IFCA; CORNFLQS).

    Raises DeviceFault without labels, and what `evaluate` and `Bench.load` raise.
    """
    samples = bench.samples("train")
    if samples.y is None:
        raise DeviceFault(
            f"which of {len(models)} models fits is told by their loss, and the data have no labels",
            "label some samples, or ask a run that places devices without labels, such as one of flux",
        )
    losses = [evaluate(bench.learner, bench.load(model), samples)[1] for model in models]
    return Scores(np.array(losses), len(samples))
