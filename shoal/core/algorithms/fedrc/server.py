"""The server half of FedRC. Sections, equations and algorithms are those of the paper."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from shoal.core.algorithm import Plan, Report
from shoal.core.algorithms.fedrc import Parameters
from shoal.core.algorithms.fedrc.messages import Measure, Measured, Mix, Mixed, Mixing, Weigh
from shoal.core.algorithms.fedrc.removal import without_idle_models, without_spare_models
from shoal.core.algorithms.fedrc.state import State, heaviest, table
from shoal.core.errors import BadPayload, Refused
from shoal.core.exchange.messages import Evaluated, Message
from shoal.core.exchange.parts import ClusterAssignment, Evidence, Scores
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.averaging import combined_models
from shoal.core.server_kit.aggregation.robust import Update
from shoal.core.server_kit.initial import begun, cluster_names, several
from shoal.core.server_kit.standard import mean_of, training, trusts
from shoal.core.types import DeviceId, ModelKey, Tensors

FIGURES = ("ensemble", "hard", "tuned")


def start(model: Tensors, parameters: Parameters, *others: Tensors) -> State:
    given, names = (model, *others), cluster_names(parameters.clusters)
    # Equal weights of equal models stay equal forever; those of a module are given equal.
    models = several(given, names) if parameters.first == "equal" else begun(parameters.clusters, given)
    return State(parameters=parameters, models=models)


def place(state: State, evidence: Evidence | None) -> ClusterAssignment | Message:
    """The E-step on the newcomer's own labeled samples (H.2). The distance is 1 minus a model's weight."""
    keys, parameters = list(state.models), state.parameters
    if not state.progress:
        raise Refused("the run has not trained its models yet", "try again in a few rounds")
    if len(keys) == 1:
        return ClusterAssignment(keys[0], reason="the run has one cluster")
    if evidence is None:
        shares = table(state) if parameters.newcomers_by_class else None
        return Weigh(tuple(state.models.values()), " ".join(keys), mixing(state), shares)
    if not isinstance(evidence, Scores):
        raise BadPayload("expected the weights of the models", "answer the message that was sent")
    weights = np.exp(evidence.losses.min() - evidence.losses)
    weights /= weights.sum()
    first, second = np.argsort(-weights, kind="stable")[:2].tolist()
    return ClusterAssignment(
        keys[first],
        1.0 - float(weights[first]),
        keys[second],
        1.0 - float(weights[second]),
        float(1.0 - weights[second] / weights[first]),
    )


def measure(state: State, cluster: ModelKey) -> Measure:
    """Every device measures its mixture, whatever its cluster; a device without a memory computes one
    first."""
    parameters, models = state.parameters, tuple(state.models.values())
    known = " ".join(state.models), mixing(state), training(parameters, state.progress), table(state)
    return Measure(models, *known, parameters.predict)


def mixing(state: State) -> Mixing:
    """The parameters that a device needs, by name. A device that begins late starts from equal weights,
    because the models already differ by then."""
    given = {item.name for item in fields(Mixing)} & {item.name for item in fields(Parameters)} - {"as_one"}
    known = {name: getattr(state.parameters, name) for name in given}
    return Mixing(**{**known, "first": state.parameters.first if state.progress == 0 else "equal"})


def _trained(state: State, mixed: Mapping[DeviceId, Mixed]) -> State:
    parameters, keys = state.parameters, list(state.models)
    tables = {device: update.counts.counts for device, update in mixed.items()}
    scores = {device: update.scores.losses for device, update in mixed.items() if update.scores is not None}
    updates: dict[ModelKey, dict[DeviceId, Update]] = {key: {} for key in keys}
    by_mass = parameters.weighting == "mass"
    for device, update in mixed.items():
        for key, model in zip(update.keys.split(), update.models, strict=True):
            mass = float(tables[device][keys.index(key)].sum())
            updates[key][device] = Update(model, mass if by_mass else float(update.examples))
    models, guard = combined_models(state.models, updates, parameters.aggregation, state.guard)
    after = replace(
        state,
        models=models,
        guard=guard,
        tables={**state.tables, **tables},
        scores={**state.scores, **scores},
        assignments={**state.assignments, **heaviest(tables, keys)},
    )
    return clustered.advanced(after)


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    parameters, models = state.parameters, tuple(state.models.values())
    how = replace(
        mixing(state), as_one=state.progress < parameters.as_one, scored=parameters.replaceable > 0.0
    )
    mix = Mix(models, " ".join(state.models), how, training(parameters, state.progress), table(state))
    return clustered.ask_all(state, present, mix, f"{len(models)} models, weighed by each device")


def _take_train(state: State, reports: Sequence[Report]) -> State:
    mixed = {report.device: report.message for report in reports if isinstance(report.message, Mixed)}
    return without_spare_models(without_idle_models(_trained(state, mixed)))


def _ask_evaluate(state: State, present: Sequence[DeviceId]) -> Plan:
    return Plan(dict.fromkeys(present, measure(state, "")), "final evaluation")


def _take_evaluate(state: State, reports: Sequence[Report]) -> State:
    measured = {report.device: report.message for report in reports if isinstance(report.message, Measured)}
    figures = {name: mean_of(measured, name, trusts(state.parameters)) for name in FIGURES}
    metrics = {
        device: Evaluated(
            each.accuracy, each.loss, each.examples, baseline=each.baseline, classes=each.classes
        )
        for device, each in measured.items()
    }
    return replace(state, metrics={**state.metrics, **metrics}, figures=figures, phase="done")


PHASES: clustered.Phases[State] = {
    "train": (_ask_train, _take_train),
    "evaluate": (_ask_evaluate, _take_evaluate),
}
plan, reduce = clustered.phased(PHASES)
