"""The server half of FedProx: that of FedAvg, with a proximal term in the training settings."""

from dataclasses import dataclass

from shoal.core.algorithms.fedprox import Parameters
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="train")


PHASES: clustered.Phases[State] = {
    "train": (clustered.ask_train, clustered.take_train),
}
plan, reduce = clustered.phased(PHASES)
place = clustered.place_by_loss
