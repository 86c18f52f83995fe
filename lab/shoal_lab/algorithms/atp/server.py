"""The server half of ATP: FedAvg for the model, then the mean of the devices' rates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from shoal.core.algorithm import Plan, Report
from shoal.core.data.scale import without_scale
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.averaging import combined_models
from shoal.core.server_kit.aggregation.robust import Update
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.types import DeviceId, ModelKey, Tensors
from shoal_lab.algorithms.atp import Parameters
from shoal_lab.algorithms.atp.messages import Learn, Learned, Measure

RATES = "rates"


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, rates, evaluate or done. rates: alpha, for each tensor of the model. learned: the number
    of completed rounds of learning them."""

    parameters: Parameters
    rates: tuple[float, ...]
    learned: int = 0


def start(model: Tensors, parameters: Parameters) -> State:
    rates = (0.0,) * len(without_scale(model))
    return State(parameters=parameters, models={GLOBAL: model}, phase="train", rates=rates)


def measure(state: State, cluster: ModelKey) -> Measure:
    parameters = state.parameters
    return Measure(state.models[cluster], state.rates, parameters.rate_batch, parameters.online)


def _take_train(state: State, reports: Sequence[Report]) -> State:
    state = clustered.averaged(state, reports)
    progress = state.progress + 1
    return replace(state, progress=progress, phase=RATES if progress >= state.rounds else "train")


def _ask_rates(state: State, present: Sequence[DeviceId]) -> Plan:
    parameters = state.parameters
    task = Learn(state.models[GLOBAL], state.rates, parameters.rate_step, parameters.rate_batch)
    title = f"adaptation rates, round {state.learned + 1} of {parameters.rate_rounds}"
    return Plan(dict.fromkeys(present, task), title)


def _take_rates(state: State, reports: Sequence[Report]) -> State:
    learned = {each.device: each.message.rates for each in reports if isinstance(each.message, Learned)}
    updates = {device: Update({RATES: np.array(rates)}, 1.0) for device, rates in learned.items()}
    rule, before = state.parameters.aggregation, {RATES: {RATES: np.array(state.rates)}}
    after, guard = combined_models(before, {RATES: updates}, rule, state.guard)
    rates, rounds = tuple(after[RATES][RATES].tolist()), state.learned + 1
    assignments = {**state.assignments, **dict.fromkeys(learned, GLOBAL)}
    phase = RATES if rounds < state.parameters.rate_rounds else clustered.end(state)
    return replace(state, rates=rates, learned=rounds, guard=guard, assignments=assignments, phase=phase)


PHASES: clustered.Phases[State] = {
    "train": (clustered.ask_train, _take_train),
    RATES: (_ask_rates, _take_rates),
}
plan, reduce = clustered.phased(PHASES, measure)
place = clustered.place_by_loss
