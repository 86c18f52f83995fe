"""The server half of IFCA."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from shoal.core.algorithm import Report
from shoal.core.algorithms.ifca import Parameters
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import Clustered
from shoal.core.server_kit.initial import cluster_names, several
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: choose, train, last_choice, evaluate or done."""

    GOES_ON_IN: ClassVar[str] = "choose"
    CHOOSES_AT_LAST: ClassVar[bool] = True

    parameters: Parameters


def start(model: Tensors, parameters: Parameters, *others: Tensors) -> State:
    models = several((model, *others), cluster_names(parameters.clusters))
    return State(parameters=parameters, models=models, phase="choose")


def _take_choice(state: State, reports: Sequence[Report]) -> State:
    return replace(clustered.choose(state, reports), phase="train")


def _take_train(state: State, reports: Sequence[Report]) -> State:
    after = clustered.take_train(state, reports)
    return replace(after, phase="choose") if after.phase == "train" else after


PHASES: clustered.Phases[State] = {
    "choose": (clustered.ask_scores, _take_choice),
    "train": (clustered.ask_train, _take_train),
}
plan, reduce = clustered.phased(PHASES)
place = clustered.place_by_loss
