"""The server half of FedSoft: each center is the mean of the devices' models, weighted by their shares in
it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.core.algorithm import Plan, Report
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.averaging import next_models
from shoal.core.server_kit.clustered import Clustered
from shoal.core.server_kit.initial import begun
from shoal.core.server_kit.standard import training
from shoal.core.types import DeviceId, ModelKey, Tensors
from shoal_lab.algorithms.fedsoft import Parameters
from shoal_lab.algorithms.fedsoft.messages import Measure, SoftTrained, Train


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done. assignments: the center in which a device has its largest share."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters, *others: Tensors) -> State:
    models = begun(parameters.clusters, (model, *others))
    return State(parameters=parameters, models=models, phase="train")


def measure(state: State, cluster: ModelKey) -> Measure:
    return Measure(state.models[cluster])


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    parameters = state.parameters
    count = state.progress % parameters.interval == 0
    models = tuple(state.models.values())
    task = Train(models, training(parameters, state.progress), count, parameters.smoothing)
    return clustered.ask_all(state, present, task, "each device trains near its mixture of models")


def _take_train(state: State, reports: Sequence[Report]) -> State:
    names = list(state.models)
    shares = {
        report.device: dict(zip(names, report.message.shares, strict=True))
        for report in reports
        if isinstance(report.message, SoftTrained)
    }
    models, guard = next_models(state.models, reports, state.parameters.aggregation, state.guard, shares)
    most = {device: max(names, key=own.__getitem__) for device, own in shares.items()}
    return clustered.advanced(
        replace(state, models=models, guard=guard, assignments={**state.assignments, **most})
    )


PHASES: clustered.Phases[State] = {
    "train": (_ask_train, _take_train),
}
plan, reduce = clustered.phased(PHASES, measure)
place = clustered.place_by_loss
