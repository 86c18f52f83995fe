"""The server half of SRFCA."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse.csgraph import connected_components

from shoal.core.algorithm import Report
from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.cluster import SLACK
from shoal.core.server_kit.initial import cluster_names
from shoal.core.server_kit.standard import trained
from shoal.core.types import Tensors
from shoal_lab.algorithms.srfca import Parameters


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: start, train, choose, evaluate or done. near: lambda."""

    parameters: Parameters
    near: float = 0.0


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="start")


def _take_start(state: State, reports: Sequence[Report]) -> State:
    """ONE_SHOT. A device that is in no cluster will choose one."""
    updates = {device: update.model for device, update in sorted(trained(reports).items())}
    apart = distances.euclidean(distances.of_devices(updates, dict.fromkeys(updates, state.models[GLOBAL])))
    pairs = apart[np.triu_indices(len(apart), 1)]
    near = float(np.quantile(pairs, state.parameters.quantile)) if len(pairs) else 0.0
    labels = joined(apart, near)
    sizes = Counter(labels)
    kept = [label for label in sorted(sizes) if sizes[label] >= state.parameters.smallest]
    if not kept:
        labels, kept = [0] * len(labels), [0]
    names = dict(zip(kept, cluster_names(len(kept)), strict=True))
    groups = {device: names[label] for device, label in zip(updates, labels, strict=True) if label in names}
    after = clustered.regrouped(state, reports, groups)
    return clustered.advanced(replace(after, near=near, assignments=groups), _next(state.parameters, 1))


def joined(apart: FloatArray, near: float) -> list[int]:
    """The label of each device, or cluster: its connected component among those at most `near` apart."""
    _, labels = connected_components(apart <= near * (1.0 + SLACK), directed=False)
    return [int(label) for label in labels]


def _take_train(state: State, reports: Sequence[Report]) -> State:
    after = clustered.take_train(state, reports)
    return replace(after, phase=_next(state.parameters, after.progress)) if after.phase == "train" else after


def _next(parameters: Parameters, progress: int) -> str:
    return "train" if progress % parameters.every else "choose"


def _take_choice(state: State, reports: Sequence[Report]) -> State:
    """RECLUSTER, then MERGE: a merged model is the mean of its parts, weighted by their numbers of
    devices."""
    state = replace(clustered.choose(state, reports), phase="train")
    names = list(state.models)
    base = state.models[names[0]]
    products = distances.inner_products([state.models[name] for name in names], [base] * len(names))
    labels = joined(distances.euclidean(products), state.near)
    firsts = {label: names[labels.index(label)] for label in labels}
    return clustered.merged(state, {name: firsts[label] for name, label in zip(names, labels, strict=True)})


PHASES: clustered.Phases[State] = {
    "start": (clustered.ask_train, _take_start),
    "train": (clustered.ask_train, _take_train),
    "choose": (clustered.ask_scores, _take_choice),
}
plan, reduce = clustered.phased(PHASES, forming=("start",))
place = clustered.place_by_loss
