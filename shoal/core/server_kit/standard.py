"""What most server halves do with the standard messages."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.core.algorithm import Report, State, most_rounds
from shoal.core.algorithm.parameters import RHO_OF_ACCURACY
from shoal.core.algorithm.settings import AUTO
from shoal.core.algorithm.training import settings_of_training
from shoal.core.data.trimmed import trimmed_mean
from shoal.core.exchange.messages import (
    Ensemble,
    Evaluated,
    HeldOut,
    Trained,
    TrainingSettings,
)
from shoal.core.types import DeviceId

FALLING, REST = 0.7, 0.1
"""After this share of the rounds the rate falls, by default, to this share of itself."""


def training(
    parameters: Any, progress: int = 0, rate: float = 1.0, formed: int = 0, rounds: int = 0
) -> TrainingSettings:
    """The training settings among an algorithm's parameters, by name, with defaults for those that it lacks.

    progress: the completed rounds of training, on which the learning rate depends if it has a schedule. rate:
    the share of it that is left after training has fallen (`shoal.core.server_kit.aggregation.divergence`).
    formed: after how many rounds the clusters were formed, or for any other reason the rate may fall. rounds:
    how many the run has in all; 0: as many as it may have.
    """
    settings = settings_of_training(parameters)
    schedule = getattr(parameters, "schedule", "constant")
    if schedule == AUTO and getattr(parameters, "private", False):
        schedule = "constant"
    share = rate * share_of_rate(schedule, progress, rounds or most_rounds(parameters), formed)
    return replace(settings, learning_rate=share * settings.learning_rate)


def share_of_rate(schedule: str, progress: int, rounds: int, formed: int = 0) -> float:
    """What is left of the learning rate after this many of the run's rounds: above 0, up to 1.

    Example:
        >>> [share_of_rate("linear", progress, 4) for progress in range(4)]
        [1.0, 0.75, 0.5, 0.25]
    """
    if schedule == AUTO:
        first = max(FALLING * rounds, formed)
        past = max(0.0, progress - first) / max(rounds - 1 - first, 1.0)
        return 1.0 - (1.0 - REST) * min(past, 1.0)
    done = min(progress, rounds - 1) / rounds
    if schedule == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    if schedule == "linear":
        return 1.0 - done
    if schedule == "step":
        return 1.0 if done < 0.5 else 0.1 if done < 0.75 else 0.01
    return 1.0


def accuracy_cost(parameters: Any) -> float | None:
    """rho of each accuracy that a run measures, among its parameters; None if it measures without noise."""
    return RHO_OF_ACCURACY if getattr(parameters, "private", False) else None


def trained(reports: Sequence[Report]) -> dict[DeviceId, Trained]:
    """The reports of training, by device."""
    return {report.device: report.message for report in reports if isinstance(report.message, Trained)}


def metrics_of(reports: Sequence[Report]) -> dict[DeviceId, Evaluated]:
    """The reports of evaluation, by device."""
    return {report.device: report.message for report in reports if isinstance(report.message, Evaluated)}


def measured(reports: Sequence[Report]) -> dict[DeviceId, Evaluated | HeldOut]:
    """The figures of the models that a round began with, by device: of its evaluation, or, of devices that
    trained, on their held-out parts."""
    held_out = {
        device: update.held_out for device, update in trained(reports).items() if update.held_out is not None
    }
    return {**metrics_of(reports), **held_out}


def ensemble(state: State) -> Ensemble:
    """The task to measure all models of a state together, each weighted by its devices.

    A newcomer of which nothing is known gets these odds of each cluster (FLUX, F.1). A model without devices
    counts only where no model has any.
    """
    devices = Counter(state.assignments.values())
    counted = tuple(float(devices[key]) for key in state.models)
    weights = counted if any(counted) else (1.0,) * len(counted)
    return Ensemble(tuple(state.models.values()), weights, "test")


def mean_loss(reports: Sequence[Report], trusted: bool = False) -> float:
    """The mean of the measured losses. trusted: weighted by samples, as papers do; otherwise trimmed, and
    each device counts once."""
    return mean_of(measured(reports), "loss", trusted)


def mean_accuracy(reports: Sequence[Report], trusted: bool = False) -> float:
    """The same of the measured accuracies."""
    return mean_of(measured(reports), "accuracy", trusted)


def mean_of(figures: Mapping[DeviceId, Any], name: str, trusted: bool) -> float:
    """The same of a figure of this name, of what devices have measured on `examples` samples each."""
    found = [(getattr(each, name), each.examples) for _, each in sorted(figures.items())]
    if trusted:
        return float(sum(value * samples for value, samples in found) / sum(samples for _, samples in found))
    return float(trimmed_mean(np.array([value for value, _ in found])))


def trusts(parameters: Any) -> bool:
    """Whether a run takes devices at their word: its updates are averaged by what they claim, too."""
    return getattr(parameters, "aggregation", "") == "mean"
