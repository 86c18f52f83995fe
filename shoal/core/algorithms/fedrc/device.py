"""The device half of FedRC: E-step, M-step, and prediction by the mixture. Sections are those of the
paper."""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

from shoal.core.algorithms.fedrc.messages import Measure, Measured, Mix, Mixed, Mixing, Weigh
from shoal.core.algorithms.fedrc.weights import (
    Mixture,
    as_one,
    begun,
    class_counts,
    log_shares,
    mean_costs,
    recalled,
    weighed,
)
from shoal.core.device_kit import standard
from shoal.core.device_kit.evaluation.evaluate import evaluated
from shoal.core.device_kit.mixture import Labels, labelled, predicted, sample_losses, train_share
from shoal.core.device_kit.samples import Samples
from shoal.core.errors import BadPayload, DataFault
from shoal.core.exchange.messages import Message, Scored, TrainingSettings
from shoal.core.exchange.parts import FloatArray, MixtureCounts, Scores
from shoal.core.privacy.noise.chance import Chance
from shoal.core.privacy.noise.discrete_gaussian import draw
from shoal.core.types import Tensors

if TYPE_CHECKING:
    from shoal.core.device_kit.context import DeviceContext

ITERATIONS = 50
"""E-steps with unchanged models: after this many, the weights are accurate enough."""
TINIEST = 1e-300
"""The smallest weight that is reported: the logarithm of 0 is not a number."""
GRID = 1 << 20
"""Steps of the noise per sample."""


def perform(message: Message, context: "DeviceContext") -> Message:
    if isinstance(message, Mix):
        return _mix(message, context)
    if isinstance(message, Measure):
        return _measure(message, context)
    if isinstance(message, Weigh):
        mixture, samples = _settled(message, context)
        return Scored(Scores(-np.log(np.clip(mixture.omega, TINIEST, 1.0)), len(samples)))
    return standard.perform(message, context)


def _mix(task: Mix, context: "DeviceContext") -> Mixed:
    keys, (samples, labels) = task.keys.split(), _training_part(task, context)
    before = recalled(context.memory, keys, len(samples)) or begun(keys, task.mixing.first, context.seed)
    losses, shares = sample_losses(context, task.models, samples), log_shares(task.table, labels)
    mixture = (as_one if task.mixing.as_one else weighed)(before, losses, shares, task.mixing)
    context.remember(mixture.tensors())
    trained = _trained(task.models, mixture, samples, task.mixing, task.settings, context)
    assert mixture.gamma is not None
    counts = class_counts(mixture.gamma, labels, task.mixing.classes)
    return Mixed(
        tuple(trained.values()),
        " ".join(keys[number] for number in trained),
        MixtureCounts(_noised(counts, task.mixing.noise, context)),
        len(samples),
        float((mixture.gamma * losses).sum(axis=1).mean()),
        Scores(mean_costs(losses, shares), len(samples)) if task.mixing.scored else None,
    )


def _measure(task: Measure, context: "DeviceContext") -> Measured:
    mixture, samples = _settled(task, context)
    part, _ = labelled(context, task.part)
    trained = _trained(task.models, mixture, samples, task.mixing, task.settings, context)
    tuned = [trained.get(number, model) for number, model in enumerate(task.models)]
    heaviest = np.eye(len(task.models))[int(np.argmax(mixture.omega))]
    found = {
        "ensemble": predicted(context, task.models, mixture.omega, part),
        "hard": predicted(context, task.models, heaviest, part),
        "tuned": predicted(context, tuned, mixture.omega, part),
    }
    if task.predict not in found:
        raise BadPayload(f"there is no prediction {task.predict!r}", f"use {' or '.join(found)}")
    accuracy, loss = found[task.predict]
    return Measured(
        **vars(evaluated(context, part, accuracy, loss)),
        ensemble=found["ensemble"][0],
        hard=found["hard"][0],
        tuned=found["tuned"][0],
    )


def _training_part(task: Mix | Measure | Weigh, context: "DeviceContext") -> tuple[Samples, Labels]:
    if not task.models or len(task.models) != len(task.keys.split()):
        raise BadPayload(f"{len(task.models)} models came under the names {task.keys!r}")
    samples, labels = labelled(context, "train")
    if labels.max() >= task.mixing.classes:
        hint = f"this run has the classes 0 to {task.mixing.classes - 1}"
        raise DataFault(f"the data have the label {labels.max()}", hint)
    return samples, labels


def _settled(task: Measure | Weigh, context: "DeviceContext") -> tuple[Mixture, Samples]:
    """The mixture that the training part converges to with unchanged models. It starts from what is
    remembered, or from equal weights if nothing is, as for a newcomer (H.2)."""
    keys, (samples, labels) = task.keys.split(), _training_part(task, context)
    remembered = recalled(context.memory, keys, len(samples))
    mixture = remembered or begun(keys, "equal", context.seed)
    table = task.table if remembered is not None or task.mixing.newcomers_by_class else None
    losses, shares = sample_losses(context, task.models, samples), log_shares(table, labels)
    for _ in range(ITERATIONS):
        mixture = weighed(mixture, losses, shares, replace(task.mixing, adam=False))
    return mixture, samples


def _trained(
    models: Sequence[Tensors],
    mixture: Mixture,
    samples: Samples,
    mixing: Mixing,
    settings: TrainingSettings,
    context: "DeviceContext",
) -> dict[int, Tensors]:
    """The M-step (eq. 5), for the models that explain enough data here."""
    assert mixture.gamma is not None
    found: dict[int, Tensors] = {}
    for number, model in enumerate(models):
        share = mixture.gamma[:, number]
        if mixture.omega[number] > mixing.skip and share.any():
            share = share / share.mean() if mixing.weighting == "mass" else share
            found[number], _ = train_share(context, model, samples, share, settings)
    return found


def _noised(counts: FloatArray, deviation: float, context: "DeviceContext") -> FloatArray:
    """The counts plus a discrete Gaussian of this standard deviation, in samples, on the grid (section E)."""
    if not deviation:
        return counts
    drawn = draw(Fraction(deviation * GRID) ** 2, counts.size, Chance(context.noise.bytes))
    found: FloatArray = (np.rint(counts * GRID) + np.reshape(drawn, counts.shape)) / GRID
    return found
