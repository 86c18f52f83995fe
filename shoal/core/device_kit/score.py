"""Which of several models fits: the loss of each."""

from collections.abc import Sequence

import numpy as np

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluate import Diverged, evaluate
from shoal.core.errors import DeviceFault
from shoal.core.exchange.parts import Scores
from shoal.core.types import Tensors

WORST = 1e38
"""The loss of a model that fits nobody, and the highest that is told."""


def score(context: DeviceContext, models: Sequence[Tensors]) -> Scores:
    """Mean loss of each of K models on the training part, in their order (IFCA; CORNFLQS).

    A model that diverged has `WORST`: it may be the work of one hostile device, and others have their own.
    Raises DeviceFault without labels, Diverged where all models did, and what `evaluate` and
    `DeviceContext.load` raise.
    """
    samples = context.samples("train")
    if samples.y is None:
        raise DeviceFault(
            f"which of {len(models)} models fits is told by their loss, and the data have no labels",
            "label some samples, or ask a run that places devices without labels, such as one of flux",
        )
    losses, diverged = [], list[Diverged]()
    for model in models:
        try:
            loss = evaluate(context.learner, context.load(model), samples)[1]
        except Diverged as fault:
            diverged.append(fault)
            loss = WORST
        losses.append(min(loss, WORST))
    if len(diverged) == len(models):
        raise diverged[0]
    return Scores(np.array(losses), len(samples))
