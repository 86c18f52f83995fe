"""The server half of pFedMe: one model, moved towards the mean of the devices' own."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from shoal.core.algorithm import Plan, Report
from shoal.core.algorithms.pfedme import Parameters
from shoal.core.algorithms.pfedme.messages import Measure, Settings, Train
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.exchange.tensors import weighted_mean
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustered import place_by_loss as place
from shoal.core.server_kit.robust import RULES
from shoal.core.server_kit.standard import check_parameters
from shoal.core.types import DeviceId, ModelKey, Tensors

__all__ = ["State", "measure", "place", "plan", "reduce", "start"]


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    check_parameters("pfedme", parameters, {"aggregation": RULES}, ("rounds",))
    if not 0.0 < parameters.mixing < float("inf"):
        raise ConfigError(f"pfedme parameter mixing is {parameters.mixing}", "above 0, usually 1 to 4")
    try:
        settings(parameters)
    except BadPayload as fault:
        raise ConfigError(f"pfedme parameter {fault.message}") from None
    return State(parameters=parameters, models={GLOBAL: model}, phase="train")


def settings(parameters: Parameters) -> Settings:
    return Settings(**{item.name: getattr(parameters, item.name) for item in fields(Settings)})


def plan(state: State, present: Sequence[DeviceId]) -> Plan | None:
    return clustered.plan(PHASES, state, present)


def reduce(state: State, reports: Sequence[Report]) -> State:
    return clustered.reduce(PHASES, state, reports)


def measure(state: State, cluster: ModelKey) -> Measure:
    return Measure(state.models[cluster])


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    return clustered.ask_all(state, present, Train(state.models[GLOBAL], settings(state.parameters)))


def _take_train(state: State, reports: Sequence[Report]) -> State:
    after, beta = clustered.counted_once(state, reports), state.parameters.mixing
    moved = weighted_mean([(state.models[GLOBAL], 1.0 - beta), (after.models[GLOBAL], beta)])
    return clustered.advanced(replace(after, models={GLOBAL: moved}))


def _ask_evaluate(state: State, present: Sequence[DeviceId]) -> Plan:
    return clustered.ask_evaluate(state, present, measure)


PHASES: clustered.Phases[State] = {
    "train": (_ask_train, _take_train),
    "evaluate": (_ask_evaluate, clustered.take_evaluate),
}
