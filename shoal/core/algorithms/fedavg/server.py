"""The server half of FedAvg."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from shoal.core.algorithm import LASTING, Plan, Report
from shoal.core.algorithms.fedavg import Parameters
from shoal.core.exchange.messages import Evaluate
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.noised import charged, rule_of
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.standard import mean_loss, trusts
from shoal.core.types import DeviceId, ModelKey, Tensors


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, measure (held-out loss of this round's model), evaluate (test parts) or done.

    best: the model with the lowest held-out loss so far. spent: by device, see
    `shoal.core.server_kit.aggregation.noised.charged`.
    """

    GOES_ON_IN: ClassVar[str] = "train"

    parameters: Parameters
    phase: str = "train"
    best: Tensors | None = None
    best_loss: float = float("inf")
    spent: Mapping[DeviceId, float] = field(default_factory=dict, metadata=LASTING)

    def with_model_of(self, earlier: Any, key: ModelKey) -> "State":
        """See `Clustered`. The best model may be one of the rounds that are taken back."""
        found = super().with_model_of(earlier, key)
        return replace(found, best=earlier.best, best_loss=earlier.best_loss)

    def again(self, parameters: Parameters) -> "State":
        """See `Clustered`. The lowest loss was on the data of then, and the noise is that of one run."""
        return replace(super().again(parameters), best=None, best_loss=float("inf"), spent={})


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model})


def _take_train(state: State, reports: Sequence[Report]) -> State:
    spent = charged(state.spent, reports, rule_of(state.parameters))
    after = clustered.take_train(replace(state, spent=spent), reports)
    return replace(after, phase="measure") if state.parameters.select == "lowest_loss" else after


def _ask_measure(state: State, present: Sequence[DeviceId]) -> Plan:
    task = Evaluate(state.models[GLOBAL])
    return Plan(dict.fromkeys(present, task), f"held-out loss after round {state.progress}")


def _take_measure(state: State, reports: Sequence[Report]) -> State:
    if (loss := mean_loss(reports, trusts(state.parameters))) < state.best_loss:
        state = replace(state, best=state.models[GLOBAL], best_loss=loss)
    if state.progress < state.rounds:
        return replace(state, phase="train")
    models = state.models if state.best is None else {GLOBAL: state.best}
    return replace(state, models=models, phase=clustered.end(state))


PHASES: clustered.Phases[State] = {
    "train": (clustered.ask_train, _take_train),
    "measure": (_ask_measure, _take_measure),
}
plan, reduce = clustered.phased(PHASES)
place = clustered.place_by_loss
