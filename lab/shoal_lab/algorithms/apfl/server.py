"""The server half of APFL: FedAvg of the common models that the devices trained."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.algorithm import Plan, Report
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.standard import training
from shoal.core.types import DeviceId, ModelKey, Tensors
from shoal_lab.algorithms.apfl import Parameters
from shoal_lab.algorithms.apfl.messages import Measure, Train
from shoal_lab.server_parts import counted_once


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="train")


def measure(state: State, cluster: ModelKey) -> Measure:
    return Measure(state.models[cluster])


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    parameters = state.parameters
    settings = training(parameters)
    task = Train(state.models[GLOBAL], settings, parameters.alpha, parameters.adaptive)
    return clustered.ask_all(state, present, task)


def _take_train(state: State, reports: Sequence[Report]) -> State:
    return clustered.advanced(counted_once(state, reports))


PHASES: clustered.Phases[State] = {
    "train": (_ask_train, _take_train),
}
plan, reduce = clustered.phased(PHASES, measure)
place = clustered.place_by_loss
