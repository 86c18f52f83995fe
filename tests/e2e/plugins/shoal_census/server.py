"""The server half of Census."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.core.algorithm import Plan, Report, TrainingParameters
from shoal.core.exchange.messages import Message
from shoal.core.exchange.parts import ClusterAssignment, Evidence
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.types import DeviceId, Tensors
from shoal_census.messages import Look, Seen


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: look, train, evaluate or done. samples: of all devices together."""

    parameters: TrainingParameters
    samples: float = 0.0


def start(model: Tensors, parameters: TrainingParameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="look")


def _ask_look(state: State, present: Sequence[DeviceId]) -> Plan:
    return Plan(dict.fromkeys(present, Look()), "devices are counted")


def _take_look(state: State, reports: Sequence[Report]) -> State:
    found = [each.message for each in reports if isinstance(each.message, Seen)]
    return replace(state, phase="train", samples=sum(float(each.scores.losses[0]) for each in found))


def place(state: State, evidence: Evidence | None) -> ClusterAssignment | Message:
    return Look() if evidence is None else ClusterAssignment(GLOBAL, reason="it was counted")


PHASES: clustered.Phases[State] = {
    "look": (_ask_look, _take_look),
    "train": (clustered.ask_train, clustered.take_train),
}
plan, reduce = clustered.phased(PHASES)
