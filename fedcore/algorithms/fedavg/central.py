"""The server half of FedAvg."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fedcore.algorithm import LASTING, Plan, Report
from fedcore.algorithms.fedavg import Parameters
from fedcore.central.averaging import Guard, next_models
from fedcore.central.noised import NOISED, charged, check_noise, rule_of
from fedcore.central.robust import RULES
from fedcore.central.standard import check_parameters, mean_loss, metrics_of, private_training, training
from fedcore.errors import ConfigError
from fedcore.messages import Evaluate, Evaluated, Message, Train
from fedcore.parts import ClusterAssignment, Evidence
from fedcore.types import DeviceId, ModelKey, Scalar, Tensors

GLOBAL = "global"


@dataclass(frozen=True)
class State:
    """phase: train, measure (held-out loss of this round's model), evaluate (test parts), done.

    spent: by device, see `fedcore.central.noised.charged`.
    """

    parameters: Parameters
    models: Mapping[ModelKey, Tensors]
    phase: str = "train"
    progress: int = 0
    assignments: Mapping[DeviceId, ModelKey] = field(default_factory=dict)
    metrics: Mapping[DeviceId, Evaluated] = field(default_factory=dict)
    best: Tensors | None = None
    best_loss: float = float("inf")
    guard: Guard = field(default_factory=Guard)
    spent: Mapping[DeviceId, float] = field(default_factory=dict, metadata=LASTING)

    @property
    def facts(self) -> Mapping[str, Scalar]:
        return {}

    @property
    def remarks(self) -> Sequence[str]:
        return self.guard.remarks


def start(model: Tensors, parameters: Parameters) -> State:
    choices = {"select": ("last", "lowest_loss"), "aggregation": (*RULES, NOISED)}
    check_parameters("fedavg", parameters, choices, ("rounds",))
    check_noise("fedavg", parameters)
    if parameters.aggregation == NOISED and parameters.select != "last":
        raise ConfigError(
            "fedavg cannot choose a noised model by losses, which have no noise", "set select=last"
        )
    return State(parameters, {GLOBAL: model})


def plan(state: State, present: Sequence[DeviceId]) -> Plan | None:
    parameters, model = state.parameters, state.models[GLOBAL]
    if state.phase == "train":
        task = Train(model, training(parameters), GLOBAL, private=private_training(parameters))
        return Plan(
            dict.fromkeys(present, task), f"training round {state.progress + 1} of {parameters.rounds}"
        )
    if state.phase == "measure":
        return Plan(dict.fromkeys(present, Evaluate(model)), f"held-out loss after round {state.progress}")
    if state.phase == "evaluate":
        return Plan(dict.fromkeys(present, Evaluate(model, part="test", cluster=GLOBAL)), "final evaluation")
    return None


def reduce(state: State, reports: Sequence[Report]) -> State:
    if state.phase == "train":
        assigned = {**state.assignments, **{report.device: GLOBAL for report in reports}}
        rule = rule_of(state.parameters)
        models, guard = next_models(state.models, reports, rule, state.guard)
        spent = charged(state.spent, reports, rule)
        state = replace(state, models=models, guard=guard, spent=spent, assignments=assigned)
        state = replace(state, progress=state.progress + 1)
        return replace(state, phase="measure" if state.parameters.select == "lowest_loss" else _next(state))
    if state.phase == "measure":
        if (loss := mean_loss(reports)) < state.best_loss:
            state = replace(state, best=state.models[GLOBAL], best_loss=loss)
        if _next(state) != "train" and state.best is not None:
            state = replace(state, models={GLOBAL: state.best})
        return replace(state, phase=_next(state))
    return replace(state, metrics={**state.metrics, **metrics_of(reports)}, phase="done")


def place(state: State, evidence: Evidence | None) -> ClusterAssignment | Message:
    return ClusterAssignment(GLOBAL, reason="the run has one model")


def _next(state: State) -> str:
    if state.progress < state.parameters.rounds:
        return "train"
    return "evaluate" if state.parameters.evaluate else "done"
