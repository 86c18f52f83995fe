"""What most server halves do with the standard messages."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from shoal.core.algorithm import Report, State
from shoal.core.exchange.messages import Ensemble, Evaluated, PrivateTraining, Trained, TrainingSettings
from shoal.core.types import DeviceId


def training(parameters: Any) -> TrainingSettings:
    """The training settings among an algorithm's parameters, by name, with defaults for those that it
    lacks."""
    names = [item.name for item in fields(TrainingSettings)]
    return TrainingSettings(
        **{name: getattr(parameters, name) for name in names if hasattr(parameters, name)}
    )


def private_training(parameters: Any, rounds: int = 0) -> PrivateTraining | None:
    """The DP-SGD settings among an algorithm's parameters, by name; None if they request no DP-SGD.

    An epsilon is for all `rounds` of training in the run; 0 stands for the parameter of that name. Raises
    BadPayload.
    """
    epsilon, noise = getattr(parameters, "dp_epsilon", 0.0), getattr(parameters, "dp_noise", 0.0)
    if not epsilon and not noise:
        return None
    return PrivateTraining(
        parameters.dp_clip, noise, epsilon, parameters.dp_delta, rounds or parameters.rounds
    )


def trained(reports: Sequence[Report]) -> dict[DeviceId, Trained]:
    """The reports of training, by device."""
    return {report.device: report.message for report in reports if isinstance(report.message, Trained)}


def metrics_of(reports: Sequence[Report]) -> dict[DeviceId, Evaluated]:
    """The reports of evaluation, by device."""
    return {report.device: report.message for report in reports if isinstance(report.message, Evaluated)}


def ensemble(state: State, part: str = "test") -> Ensemble:
    """The task to measure all models of a state together, each weighted by its devices.

    A newcomer of which nothing is known gets these odds of each cluster (FLUX, F.1). A model without devices
    counts only where no model has any.
    """
    devices = Counter(state.assignments.values())
    counted = tuple(float(devices[key]) for key in state.models)
    weights = counted if any(counted) else (1.0,) * len(counted)
    return Ensemble(tuple(state.models.values()), weights, part)


def mean_loss(reports: Sequence[Report]) -> float:
    """Mean of the measured losses, weighted by numbers of samples."""
    return _mean(metrics_of(reports), lambda measured: measured.loss)


def mean_accuracy(reports: Sequence[Report]) -> float:
    """Mean of the measured accuracies, weighted by numbers of samples."""
    return _mean(metrics_of(reports), lambda measured: measured.accuracy)


def _mean(measured: Mapping[DeviceId, Evaluated], value: Callable[[Evaluated], float]) -> float:
    total = sum(item.examples for item in measured.values())
    return sum(value(item) * item.examples for _, item in sorted(measured.items())) / total
