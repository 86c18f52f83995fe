"""The server half of FedProx: FedAvg's, with a proximal term in what the devices are asked."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.algorithm import Plan, Report
from shoal.core.algorithms.fedprox import Parameters
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustered import place_by_loss as place
from shoal.core.server_kit.robust import RULES
from shoal.core.server_kit.standard import check_parameters
from shoal.core.types import DeviceId, Tensors

__all__ = ["State", "place", "plan", "reduce", "start"]


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    check_parameters("fedprox", parameters, {"aggregation": RULES}, ("rounds",))
    return State(parameters=parameters, models={GLOBAL: model}, phase="train")


def plan(state: State, present: Sequence[DeviceId]) -> Plan | None:
    return clustered.plan(PHASES, state, present)


def reduce(state: State, reports: Sequence[Report]) -> State:
    return clustered.reduce(PHASES, state, reports)


PHASES: clustered.Phases[State] = {
    "train": (clustered.ask_train, clustered.take_train),
    "evaluate": (clustered.ask_evaluate, clustered.take_evaluate),
}
