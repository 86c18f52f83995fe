"""The server half of pFedMe: one model, which moves toward the mean of the devices' versions of it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from shoal.core.algorithm import Plan, Report
from shoal.core.algorithm.training import settings_of_training
from shoal.core.exchange.tensors import weighted_mean
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.types import DeviceId, ModelKey, Tensors
from shoal_lab.algorithms.pfedme import Parameters
from shoal_lab.algorithms.pfedme.messages import Measure, Settings, Train
from shoal_lab.server_parts import counted_once


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="train")


def settings(parameters: Parameters) -> Settings:
    given = {item.name: getattr(parameters, item.name) for item in fields(Settings)}
    common = settings_of_training(parameters)
    return Settings(**given | {"epochs": common.epochs, "batch_size": common.batch_size})


def measure(state: State, cluster: ModelKey) -> Measure:
    return Measure(state.models[cluster])


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    return clustered.ask_all(state, present, Train(state.models[GLOBAL], settings(state.parameters)))


def _take_train(state: State, reports: Sequence[Report]) -> State:
    after, beta = counted_once(state, reports), state.parameters.mixing
    moved = weighted_mean([(state.models[GLOBAL], 1.0 - beta), (after.models[GLOBAL], beta)])
    return clustered.advanced(replace(after, models={GLOBAL: moved}))


PHASES: clustered.Phases[State] = {
    "train": (_ask_train, _take_train),
}
plan, reduce = clustered.phased(PHASES, measure)
place = clustered.place_by_loss
