"""The server half of FECFL."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from shoal.core.algorithm import Plan, Report
from shoal.core.errors import Refused
from shoal.core.exchange.messages import Message, Represent, Represented
from shoal.core.exchange.parts import ClusterAssignment, Evidence, FloatArray, Prototypes
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.assign import nearest_of
from shoal.core.server_kit.clustering.cluster import agglomerated
from shoal.core.server_kit.frozen_encoder import of_one_encoder
from shoal.core.types import DeviceId, Tensors
from shoal_lab.algorithms.fecfl import Parameters


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: represent, clustered, last_choice, evaluate or done. embeddings: (d,), each device's mean.

    encoder: as in FMCL's state. digest: SHA-256 of the one by which devices have embedded; "" if unknown.
    """

    CHOOSES_AT_LAST: ClassVar[bool] = True

    parameters: Parameters
    embeddings: Mapping[DeviceId, FloatArray] = field(default_factory=dict)
    encoder: Tensors = field(default_factory=dict)
    digest: str = ""

    @property
    def question(self) -> Represent:
        return Represent(by_class=False, encoder=self.encoder or None, digest=self.digest or None)


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="represent")


def place(state: State, evidence: Evidence | None) -> ClusterAssignment | Message:
    if not state.embeddings:
        raise Refused("the run has not formed its clusters yet", "try again after its first round")
    if evidence is None:
        return state.question
    assert isinstance(evidence, Prototypes)
    return nearest(state, evidence.means[0])


def nearest(state: State, embedding: FloatArray) -> ClusterAssignment:
    """The cluster with the smallest mean cosine distance to its members."""
    members = sorted(state.embeddings)
    apart = cosine_distances([embedding, *(state.embeddings[device] for device in members)])[0, 1:]
    homes = np.array([state.assignments[device] for device in members])
    names = list(state.models)
    return nearest_of(names, [float(apart[homes == name].mean()) for name in names])


def cosine_distances(embeddings: Sequence[FloatArray]) -> FloatArray:
    """(n, n) 1 - cosine, 0 to 2. Embeddings whose width differs from that of most are orthogonal to all
    others."""
    width = Counter(len(one) for one in embeddings).most_common(1)[0][0]
    rows = np.stack([one if len(one) == width else np.zeros(width) for one in embeddings])
    return 1.0 - distances.cosines(rows @ rows.T)


def _ask_represent(state: State, present: Sequence[DeviceId]) -> Plan:
    return Plan(dict.fromkeys(present, state.question), "devices send mean embeddings")


def _take_represent(state: State, reports: Sequence[Report]) -> State:
    held = of_one_encoder(dict(sorted(_represented(reports).items())))
    embeddings = {device: each.means[0] for device, each in held.items()}
    state = replace(state, digest=next((each.encoder for each in held.values() if each.encoder), ""))
    chosen = state.parameters
    labels = agglomerated(
        cosine_distances(list(embeddings.values())),
        "average",
        clusters=chosen.clusters,
        below=chosen.distance,
    )
    groups = dict(zip(embeddings, labels.tolist(), strict=True))
    return clustered.formed(replace(state, embeddings=embeddings), groups, "clustered")


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    return clustered.ask_train(state, present, late=state.question)


def _take_train(state: State, reports: Sequence[Report]) -> State:
    new = {device: each.means[0] for device, each in _represented(reports).items()}
    joined = {device: nearest(state, one).cluster for device, one in new.items()}
    state = replace(
        state,
        embeddings={**state.embeddings, **new},
        assignments={**state.assignments, **joined},
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
