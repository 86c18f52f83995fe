"""The server half of FedAvgM."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.algorithm import Report
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.types import Tensors
from shoal_fedavgm import Parameters


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done. velocity: v, by tensor."""

    parameters: Parameters
    velocity: Tensors


def start(model: Tensors, parameters: Parameters) -> State:
    still = {name: np.zeros_like(array) for name, array in model.items() if array.dtype.kind == "f"}
    return State(parameters=parameters, models={GLOBAL: model}, phase="train", velocity=still)


def _take_train(state: State, reports: Sequence[Report]) -> State:
    after, before = clustered.take_train(state, reports), state.models[GLOBAL]
    beta = state.parameters.server_momentum
    velocity = {
        name: beta * old + (after.models[GLOBAL][name] - before[name]) for name, old in state.velocity.items()
    }
    moved = {name: before[name] + step for name, step in velocity.items()}
    # Whole numbers, such as the counter of a batch norm, have no velocity.
    return replace(after, models={GLOBAL: {**after.models[GLOBAL], **moved}}, velocity=velocity)


PHASES: clustered.Phases[State] = {"train": (clustered.ask_train, _take_train)}
plan, reduce = clustered.phased(PHASES)
place = clustered.place_by_loss
