"""The server half of FedProx: FedAvg's, with a proximal term in what the devices are asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedcore.algorithm import Plan
from fedcore.algorithms.fedprox import Parameters
from fedcore.central import one_model
from fedcore.central.one_model import GLOBAL, OneModel, place, reduce
from fedcore.central.robust import RULES
from fedcore.central.standard import check_parameters, training
from fedcore.messages import Evaluate, Train
from fedcore.types import DeviceId, Tensors

__all__ = ["State", "place", "plan", "reduce", "start"]


@dataclass(frozen=True, eq=False, kw_only=True)
class State(OneModel):
    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    check_parameters("fedprox", parameters, {"aggregation": RULES}, ("rounds",))
    return State(parameters=parameters, models={GLOBAL: model})


def plan(state: State, present: Sequence[DeviceId]) -> Plan | None:
    train = Train(state.model, training(state.parameters), GLOBAL)
    return one_model.plan(state, present, train, Evaluate(state.model, "test", GLOBAL))
