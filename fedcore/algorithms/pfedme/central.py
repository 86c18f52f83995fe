"""The server half of pFedMe: one model, moved towards the mean of the devices' own."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from fedcore.algorithm import Plan, Report
from fedcore.algorithms.pfedme import Parameters
from fedcore.algorithms.pfedme.messages import Measure, Settings, Train
from fedcore.central import one_model
from fedcore.central.averaging import combined_models
from fedcore.central.one_model import EVALUATE, GLOBAL, OneModel, place
from fedcore.central.robust import RULES, Update
from fedcore.central.standard import check_parameters, trained
from fedcore.errors import BadPayload, ConfigError
from fedcore.tensors import weighted_mean
from fedcore.types import DeviceId, ModelKey, Tensors

__all__ = ["State", "measure", "place", "plan", "reduce", "start"]


@dataclass(frozen=True, eq=False, kw_only=True)
class State(OneModel):
    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    check_parameters("pfedme", parameters, {"aggregation": RULES}, ("rounds",))
    if not 0.0 < parameters.mixing < float("inf"):
        raise ConfigError(f"pfedme parameter mixing is {parameters.mixing}", "above 0, usually 1 to 4")
    try:
        settings(parameters)
    except BadPayload as fault:
        raise ConfigError(f"pfedme parameter {fault.message}") from None
    return State(parameters=parameters, models={GLOBAL: model})


def settings(parameters: Parameters) -> Settings:
    return Settings(**{item.name: getattr(parameters, item.name) for item in fields(Settings)})


def plan(state: State, present: Sequence[DeviceId]) -> Plan | None:
    train = Train(state.model, settings(state.parameters))
    return one_model.plan(state, present, train, measure(state, GLOBAL))


def reduce(state: State, reports: Sequence[Report]) -> State:
    if state.phase == EVALUATE:
        return one_model.measured(state, reports)
    updates = {device: Update(report.model, 1.0) for device, report in trained(reports).items()}
    models, guard = combined_models(
        state.models, lambda key: updates, state.parameters.aggregation, state.guard
    )
    beta = state.parameters.mixing
    mixed = weighted_mean([(state.model, 1.0 - beta), (models[GLOBAL], beta)])
    return one_model.advanced(replace(state, models={GLOBAL: mixed}, guard=guard), reports)


def measure(state: State, cluster: ModelKey) -> Measure:
    return Measure(state.model)
