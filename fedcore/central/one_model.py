"""A run with one model that all devices help to train, and a measurement at its end: what FedAvg's relatives
share. Each says only what its devices are asked, and what becomes of their mean."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from fedcore.algorithm import Plan, Report
from fedcore.central.averaging import Guard, next_models
from fedcore.central.standard import metrics_of
from fedcore.messages import Evaluated, Message
from fedcore.parts import ClusterAssignment, Evidence
from fedcore.types import DeviceId, ModelKey, Scalar, Tensors

GLOBAL = "global"
TRAIN, EVALUATE, DONE = "train", "evaluate", "done"


@dataclass(frozen=True, eq=False, kw_only=True)
class OneModel:
    """The least that such a state has. parameters: with rounds, evaluate and aggregation.

    phase: train, evaluate, done, or one of the algorithm's own. progress: rounds of training done.
    """

    parameters: Any
    models: Mapping[ModelKey, Tensors]
    phase: str = TRAIN
    progress: int = 0
    assignments: Mapping[DeviceId, ModelKey] = field(default_factory=dict)
    metrics: Mapping[DeviceId, Evaluated] = field(default_factory=dict)
    guard: Guard = field(default_factory=Guard)

    @property
    def model(self) -> Tensors:
        return self.models[GLOBAL]

    @property
    def facts(self) -> Mapping[str, Scalar]:
        return {}

    @property
    def remarks(self) -> Sequence[str]:
        return self.guard.remarks


S = TypeVar("S", bound=OneModel)


def plan(state: OneModel, present: Sequence[DeviceId], train: Message, measure: Message) -> Plan | None:
    """Everybody who is there gets the same task: `train` in rounds of training, `measure` at the end."""
    if state.phase == DONE:
        return None
    if state.phase == EVALUATE:
        return Plan(dict.fromkeys(present, measure), "final evaluation")
    rounds = state.parameters.rounds
    return Plan(dict.fromkeys(present, train), f"training round {state.progress + 1} of {rounds}")


def reduce(state: S, reports: Sequence[Report]) -> S:
    """After training the mean of the devices' models, by their samples; at the end what they measured."""
    if state.phase == EVALUATE:
        return measured(state, reports)
    models, guard = next_models(state.models, reports, state.parameters.aggregation, state.guard)
    return advanced(replace(state, models=models, guard=guard), reports)


def advanced(state: S, reports: Sequence[Report], after: str = "") -> S:
    """After a round of training: the next one, or once there were enough the phase `after` ("": the end)."""
    assignments = {**state.assignments, **{report.device: GLOBAL for report in reports}}
    state = replace(state, progress=state.progress + 1, assignments=assignments)
    return state if state.progress < state.parameters.rounds else replace(state, phase=after or end(state))


def end(state: OneModel) -> str:
    """The phase after the last round."""
    return EVALUATE if state.parameters.evaluate else DONE


def measured(state: S, reports: Sequence[Report]) -> S:
    return replace(state, metrics={**state.metrics, **metrics_of(reports)}, phase=DONE)


def place(state: OneModel, evidence: Evidence | None) -> ClusterAssignment:
    return ClusterAssignment(GLOBAL, reason="the run has one model")
