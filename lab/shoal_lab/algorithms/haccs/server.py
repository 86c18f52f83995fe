"""The server half of HACCS."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from sklearn.cluster import OPTICS

from shoal.core.algorithm import Plan, Report
from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustering.cluster import Labels, renumbered, with_singletons
from shoal.core.types import DeviceId, Tensors
from shoal_lab.algorithms.haccs import Parameters
from shoal_lab.algorithms.haccs.messages import Count, Counted


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: count, clustered, last_choice, evaluate or done."""

    CHOOSES_AT_LAST: ClassVar[bool] = True

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="count")


def _ask_count(state: State, present: Sequence[DeviceId]) -> Plan:
    bins = state.parameters.bins if state.parameters.summary == "pixels" else 0
    return Plan(
        dict.fromkeys(present, Count(state.parameters.classes, bins)), "devices send histograms of their data"
    )


def _take_count(state: State, reports: Sequence[Report]) -> State:
    histograms = {
        report.device: histogram(state.parameters, report.message)
        for report in reports
        if isinstance(report.message, Counted)
    }
    labels = density(hellinger(histograms))
    return clustered.formed(state, dict(zip(sorted(histograms), labels.tolist(), strict=True)), "clustered")


def histogram(parameters: Parameters, message: Counted) -> FloatArray:
    """(rows, cells) whose rows sum to 1, or to 0 for an absent class: one row for P(y), or one row per class
    for P(X|y)."""
    by_class = parameters.summary == "pixels"
    shape = (parameters.classes, parameters.bins) if by_class else (1, parameters.classes)
    counts = np.array(message.counts).reshape(shape)
    totals = counts.sum(axis=1, keepdims=True)
    shares: FloatArray = np.divide(counts, totals, out=np.zeros_like(counts), where=totals > 0.0)
    return shares


def hellinger(histograms: Mapping[DeviceId, FloatArray]) -> FloatArray:
    """(n, n) Hellinger distances, 0 to 1, of devices in the order of their ids: means over rows that either
    has."""
    roots = np.sqrt(np.stack([histograms[device] for device in sorted(histograms)]))
    there = roots.sum(axis=2) > 0.0
    found = np.zeros((len(roots), len(roots)))
    for index, own in enumerate(roots):
        apart = np.linalg.norm(roots - own, axis=2) / np.sqrt(2.0)
        # A row that only one of the two devices has gets the largest distance.
        apart = np.where(there == there[index], apart, 1.0)
        either = there | there[index]
        found[index] = (apart * either).sum(axis=1) / np.maximum(either.sum(axis=1), 1)
    np.fill_diagonal(found, 0.0)
    return (found + found.T) / 2.0


def density(apart: FloatArray) -> Labels:
    """Groups of at least two devices by OPTICS; a device in no group is a group of its own."""
    if len(apart) < 3 or apart.max() <= 1e-9:
        return np.zeros(len(apart), np.int64)
    with np.errstate(divide="ignore"):  # equal histograms have distance 0
        labels = OPTICS(min_samples=2, metric="precomputed").fit_predict(apart).astype(np.int64)
    return renumbered(with_singletons(labels))


PHASES: clustered.Phases[State] = {
    "count": (_ask_count, _take_count),
    "clustered": (clustered.ask_train, clustered.take_train),
}
plan, reduce = clustered.phased(PHASES, forming=("count",))
place = clustered.place_by_loss
