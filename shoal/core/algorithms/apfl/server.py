"""The server half of APFL: FedAvg's, of what the devices' common models became."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.algorithm import Plan, Report
from shoal.core.algorithms.apfl import Parameters
from shoal.core.algorithms.apfl.messages import Measure, Train
from shoal.core.errors import ConfigError
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustered import place_by_loss as place
from shoal.core.server_kit.robust import RULES
from shoal.core.server_kit.standard import check_parameters, training
from shoal.core.types import DeviceId, ModelKey, Tensors

__all__ = ["State", "measure", "place", "plan", "reduce", "start"]


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    check_parameters("apfl", parameters, {"aggregation": RULES}, ("rounds",))
    if not 0.0 <= parameters.alpha <= 1.0:
        raise ConfigError(f"apfl parameter alpha is {parameters.alpha}", "it is a share, 0 to 1")
    return State(parameters=parameters, models={GLOBAL: model}, phase="train")


def plan(state: State, present: Sequence[DeviceId]) -> Plan | None:
    return clustered.plan(PHASES, state, present)


def reduce(state: State, reports: Sequence[Report]) -> State:
    return clustered.reduce(PHASES, state, reports)


def measure(state: State, cluster: ModelKey) -> Measure:
    return Measure(state.models[cluster])


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    parameters = state.parameters
    settings = training(parameters)
    task = Train(state.models[GLOBAL], settings, parameters.alpha, parameters.adaptive)
    return clustered.ask_all(state, present, task)


def _take_train(state: State, reports: Sequence[Report]) -> State:
    return clustered.advanced(clustered.counted_once(state, reports))


def _ask_evaluate(state: State, present: Sequence[DeviceId]) -> Plan:
    return clustered.ask_evaluate(state, present, measure)


PHASES: clustered.Phases[State] = {
    "train": (_ask_train, _take_train),
    "evaluate": (_ask_evaluate, clustered.take_evaluate),
}
