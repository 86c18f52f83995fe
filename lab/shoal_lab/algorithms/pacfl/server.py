"""The server half of PACFL."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from shoal.core.algorithm import Plan, Report
from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustering.cluster import agglomerated
from shoal.core.types import DeviceId, Tensors
from shoal_lab.algorithms.pacfl import Parameters
from shoal_lab.algorithms.pacfl.messages import Span, Spanned


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: span, clustered, last_choice, evaluate or done."""

    CHOOSES_AT_LAST: ClassVar[bool] = True

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="span")


def _ask_span(state: State, present: Sequence[DeviceId]) -> Plan:
    task = Span(state.parameters.vectors, state.parameters.by_class or None)
    return Plan(dict.fromkeys(present, task), "devices send subspaces of their data")


def _take_span(state: State, reports: Sequence[Report]) -> State:
    chosen = state.parameters
    read = directions if chosen.by_class else basis
    bases = {report.device: read(report.message) for report in reports if isinstance(report.message, Spanned)}
    apart = angles(bases, "pairs" if chosen.by_class else chosen.measure)
    labels = agglomerated(apart, "average", clusters=chosen.clusters, below=chosen.angle)
    return clustered.formed(state, dict(zip(sorted(bases), labels.tolist(), strict=True)), "clustered")


def basis(message: Spanned) -> FloatArray:
    """(p, width) orthonormal rows. They are orthonormalized here, because a device may send anything."""
    rows = np.array(message.vectors).reshape(-1, message.width)
    orthonormal: FloatArray = np.linalg.svd(rows, full_matrices=False)[2]
    return orthonormal


def directions(message: Spanned) -> FloatArray:
    """(rows, width) vectors of length 1; one of zeros, which no honest device sends, stays so."""
    rows = np.array(message.vectors, float).reshape(-1, message.width)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    found: FloatArray = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0.0)
    return found


def angles(bases: Mapping[DeviceId, FloatArray], measure: str) -> FloatArray:
    """(n, n) degrees between the subspaces of devices in the order of their ids; right angles if two cannot
    be compared.

    measure: "smallest" or "sum" of the principal angles, which are the arc cosines of the singular values of
    A B^T; or "pairs", the smallest angle of a vector of the one and a vector of the other.
    """
    rows = [bases[device] for device in sorted(bases)]
    most = max((len(each) for each in rows), default=1) if measure == "sum" else 1
    found = np.full((len(rows), len(rows)), 90.0 * most)
    for i, one in enumerate(rows):
        for j, other in enumerate(rows[:i]):
            if one.shape[1] and one.shape[1] == other.shape[1]:
                products = one @ other.T
                values = np.abs(products) if measure == "pairs" else np.linalg.svd(products, compute_uv=False)
                cosines = np.clip(values, 0.0, 1.0)
                between = np.degrees(np.arccos(cosines))
                found[i, j] = found[j, i] = between.sum() if measure == "sum" else between.min()
    np.fill_diagonal(found, 0.0)
    return found


PHASES: clustered.Phases[State] = {
    "span": (_ask_span, _take_span),
    "clustered": (clustered.ask_train, clustered.take_train),
}
plan, reduce = clustered.phased(PHASES, forming=("span",))
place = clustered.place_by_loss
