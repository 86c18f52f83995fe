"""The server half of FedDrift."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from shoal.core.algorithm import Plan, Report
from shoal.core.errors import ConfigError
from shoal.core.exchange.parts import MAX_MODELS, FloatArray
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustering.cluster import agglomerated
from shoal.core.types import DeviceId, ModelKey, Tensors
from shoal_lab.algorithms.feddrift import Parameters


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: first, train, score, last_choice, evaluate or done.

    initial: the weights of a new model. losses: of each device under its model, in the last time step.
    made: how many clusters there have been, so that no name is used twice.
    """

    CHOOSES_AT_LAST: ClassVar[bool] = True

    parameters: Parameters
    initial: Tensors
    losses: Mapping[DeviceId, float] = field(default_factory=dict)
    made: int = 0


def start(model: Tensors, parameters: Parameters) -> State:
    first = "first" if parameters.first == "apart" else "train"
    return State(parameters=parameters, models={GLOBAL: model}, phase=first, initial=model)


def _ask_first(state: State, present: Sequence[DeviceId]) -> Plan:
    if len(present) > MAX_MODELS:
        raise ConfigError(
            f"feddrift cannot begin with {len(present)} models; at most {MAX_MODELS}", "set first=together"
        )
    task = clustered.train_task(state, state.initial)
    return Plan(dict.fromkeys(present, task), clustered.title(state, "one model for each device"))


def _take_first(state: State, reports: Sequence[Report]) -> State:
    groups = {report.device: f"c{number}" for number, report in enumerate(reports)}
    after = replace(clustered.regrouped(state, reports, groups), made=len(groups))
    return clustered.advanced(after, _next(state.parameters, 1))


def _take_train(state: State, reports: Sequence[Report]) -> State:
    after = clustered.take_train(state, reports)
    return replace(after, phase=_next(state.parameters, after.progress)) if after.phase == "train" else after


def _next(parameters: Parameters, progress: int) -> str:
    return "train" if progress % parameters.every else "score"


def _take_scores(state: State, reports: Sequence[Report]) -> State:
    """Algorithm 2: detect drift first, then merge."""
    scores = {device: one.losses for device, one in sorted(clustered.scores_of(reports).items())}
    drifted = [
        device
        for device, losses in scores.items()
        if float(losses.min()) > state.losses.get(device, np.inf) + state.parameters.drift
    ]
    after = clustered.choose(state, [report for report in reports if report.device not in drifted])
    steady = {device: losses for device, losses in scores.items() if device not in drifted}
    apart = distances(list(state.models), after.assignments, steady, state.parameters.against)
    labels = agglomerated(apart, "complete", below=state.parameters.drift)
    names = list(state.models)
    firsts = {label: names[labels.tolist().index(label)] for label in labels.tolist()}
    after = clustered.merged(after, {name: firsts[label] for name, label in zip(names, labels, strict=True)})
    own = {device: f"c{state.made + number}" for number, device in enumerate(drifted)}
    return replace(
        after,
        models={**after.models, **dict.fromkeys(own.values(), state.initial)},
        assignments={**after.assignments, **own},
        losses={
            **{device: loss for device, loss in state.losses.items() if device not in own},
            **{device: float(losses.min()) for device, losses in steady.items()},
        },
        made=state.made + len(own),
        phase="train",
    )


def distances(
    names: Sequence[ModelKey],
    assignments: Mapping[DeviceId, ModelKey],
    losses: Mapping[DeviceId, FloatArray],
    against: str = "home",
) -> FloatArray:
    """(K, K): by how much either of two models is worse on the other's devices than the other's own model is
    there ("home"), or than it is itself on its own devices ("itself"); never below 0. The distance to a
    cluster without any reported loss is practically infinite."""
    table = np.full((len(names), len(names)), np.inf)
    for column, name in enumerate(names):
        own = [row for device, row in losses.items() if assignments.get(device) == name]
        if own:
            table[:, column] = np.mean(own, axis=0)
    home = np.diagonal(table)
    best = home[None] if against == "home" else home[:, None]
    with np.errstate(invalid="ignore"):  # infinity minus infinity, for a cluster without devices
        worse = np.where(np.isfinite(table), table - best, np.inf)
    found = np.maximum(np.maximum(worse, worse.T), 0.0)
    found[~np.isfinite(found)] = np.finfo(np.float64).max / 4
    np.fill_diagonal(found, 0.0)
    return found


PHASES: clustered.Phases[State] = {
    "first": (_ask_first, _take_first),
    "train": (clustered.ask_train, _take_train),
    "score": (clustered.ask_scores, _take_scores),
}
plan, reduce = clustered.phased(PHASES, forming=("first",))
place = clustered.place_by_loss
