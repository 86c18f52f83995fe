"""The server half of FedEM: FedAvg of each of K models. It knows nothing about the mixtures."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.core.algorithm import Plan, Report
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.averaging import combined_models
from shoal.core.server_kit.aggregation.robust import Update
from shoal.core.server_kit.clustered import Clustered
from shoal.core.server_kit.initial import begun, cluster_names, several
from shoal.core.server_kit.standard import training
from shoal.core.types import DeviceId, ModelKey, Tensors
from shoal_lab.algorithms.fedem import Parameters
from shoal_lab.algorithms.fedem.messages import Measure, Mix, Mixed


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done. assignments: the heaviest model of each device."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters, *others: Tensors) -> State:
    given, names = (model, *others), cluster_names(parameters.clusters)
    # Equal weights of equal models stay equal forever; those of a module are given equal.
    models = several(given, names) if parameters.first == "equal" else begun(parameters.clusters, given)
    return State(parameters=parameters, models=models, phase="train")


def measure(state: State, cluster: ModelKey) -> Measure:
    weights = tuple(float(key == cluster) for key in state.models)
    return Measure(tuple(state.models.values()), weights)


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    parameters = state.parameters
    task = Mix(tuple(state.models.values()), training(parameters, state.progress), parameters.first)
    return clustered.ask_all(state, present, task, "each device mixes all models")


def _take_train(state: State, reports: Sequence[Report]) -> State:
    mixed = {report.device: report.message for report in reports if isinstance(report.message, Mixed)}
    names = list(state.models)
    updates = {
        key: {device: Update(each.models[number], float(each.examples)) for device, each in mixed.items()}
        for number, key in enumerate(names)
    }
    models, guard = combined_models(state.models, updates, state.parameters.aggregation, state.guard)
    heaviest = {device: names[each.heaviest] for device, each in mixed.items()}
    return clustered.advanced(
        replace(state, models=models, guard=guard, assignments={**state.assignments, **heaviest})
    )


PHASES: clustered.Phases[State] = {
    "train": (_ask_train, _take_train),
}
plan, reduce = clustered.phased(PHASES, measure)
place = clustered.place_by_loss
