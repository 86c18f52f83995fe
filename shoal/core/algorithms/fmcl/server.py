"""The server half of FMCL. Read `PHASES` first: what each phase asks for, and what it does with answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from shoal.core.algorithm import Plan, Report
from shoal.core.algorithms.fmcl import Parameters, clustering
from shoal.core.errors import Refused
from shoal.core.exchange.messages import INPUTS, Message, Represent, Represented
from shoal.core.exchange.parts import ClusterAssignment, Evidence, Prototypes
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.frozen_encoder import of_one_encoder
from shoal.core.types import DeviceId, Tensors


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: represent, clustered, evaluate or done.

    prototypes: what each device sent. far: D_big, the distance of devices that share no class. encoder: the
    frozen encoder as a graph, where the devices that made the first weights gave one; else empty.
    """

    GOES_ON_IN: ClassVar[str] = "clustered"

    parameters: Parameters
    prototypes: Mapping[DeviceId, Prototypes] = field(default_factory=dict)
    far: float = 1.0
    encoder: Tensors = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """SHA-256 of the encoder by which the devices have embedded; "" where none has said."""
        return next((each.encoder for each in self.prototypes.values() if each.encoder), "")

    @property
    def remarks(self) -> Sequence[str]:
        own = "no frozen encoder was given: devices are grouped by how near their inputs are themselves"
        return (*([own] if self.digest == INPUTS else []), *super().remarks)


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="represent")


def place(state: State, evidence: Evidence | None) -> ClusterAssignment | Message:
    if not state.prototypes:
        raise Refused("the run has not formed its clusters yet", "try again after its first round")
    if evidence is None:
        return _question(state)
    assert isinstance(evidence, Prototypes)
    return clustering.place(state.parameters, state.prototypes, state.assignments, state.far, evidence)


def _ask_represent(state: State, present: Sequence[DeviceId]) -> Plan:
    question, title = _question(state), "devices send mean embeddings of their classes"
    return Plan(dict.fromkeys(present, question), title, others=question)


def _question(state: State) -> Represent:
    return Represent(by_class=True, encoder=state.encoder or None, digest=state.digest or None)


def _take_represent(state: State, reports: Sequence[Report]) -> State:
    held = of_one_encoder(dict(sorted(_represented(reports).items())))
    apart = clustering.distances(state.parameters, list(held.values()))
    far = clustering.beyond(state.parameters, list(held.values()), apart)
    labels = clustering.group(state.parameters, np.where(np.isfinite(apart), apart, far))
    groups = dict(zip(held, labels.tolist(), strict=True))
    return clustered.formed(replace(state, prototypes=held, far=far), groups, "clustered")


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    return clustered.ask_train(state, present, late=_question(state))


def _take_train(state: State, reports: Sequence[Report]) -> State:
    for device, prototypes in _represented(reports).items():
        answer = clustering.place(
            state.parameters, state.prototypes, state.assignments, state.far, prototypes
        )
        state = replace(
            state,
            prototypes={**state.prototypes, device: prototypes},
            assignments={**state.assignments, device: answer.cluster},
        )
    return clustered.take_train(state, reports)


def _represented(reports: Sequence[Report]) -> dict[DeviceId, Prototypes]:
    return {
        report.device: report.message.prototypes
        for report in reports
        if isinstance(report.message, Represented)
    }


PHASES: clustered.Phases[State] = {
    "represent": (_ask_represent, _take_represent),
    "clustered": (_ask_train, _take_train),
}
plan, reduce = clustered.phased(PHASES, forming=("represent",))
