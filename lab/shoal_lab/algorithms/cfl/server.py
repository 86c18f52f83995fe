"""The server half of Sattler's CFL."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.algorithm import Report
from shoal.core.exchange.messages import Trained
from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import Clustered
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.cluster import Labels, agglomerated
from shoal.core.server_kit.clustering.outliers import without_outliers
from shoal.core.server_kit.standard import trained
from shoal.core.types import DeviceId, ModelKey, Tensors
from shoal_lab.algorithms.cfl import Parameters


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={"c0": model}, phase="train")


def _take_train(state: State, reports: Sequence[Report]) -> State:
    state = clustered.choose(state, reports)
    updates = trained(reports)
    if not updates:
        return state
    groups = {device: key for device in sorted(updates) if (key := clustered.home(state, device)) is not None}
    clusters = len(state.models)
    for key in state.models:
        leaving = _leaving(
            state, key, {device: updates[device] for device in groups if groups[device] == key}
        )
        if leaving and not 0 < state.parameters.most <= clusters:
            groups |= dict.fromkeys(leaving, f"c{clusters}")
            clusters += 1
    return clustered.advanced(clustered.regrouped(state, reports, groups))


def _leaving(state: State, key: ModelKey, updates: Mapping[DeviceId, Trained]) -> list[DeviceId]:
    """The devices of a cluster that move to a new one; none if it is not to be split."""
    if len(updates) < max(state.parameters.smallest, 2) or state.progress + 1 < state.parameters.earliest:
        return []
    devices = sorted(updates)
    models = {device: updates[device].model for device in devices}
    products = distances.of_devices(models, dict.fromkeys(devices, state.models[key]))
    weights = np.array([float(updates[device].examples) for device in devices])

    def split(some: FloatArray, indices: Labels) -> Labels:
        """The halves of some of the devices; all 0 if they are not to be split."""
        whole = np.zeros(len(some), np.int64)
        if not incongruent(state.parameters, some, weights[indices]):
            return whole
        halves, across = bipartition(distances.cosines(some))
        return halves if math.sqrt((1.0 - across) / 2.0) > state.parameters.gamma else whole

    halves = without_outliers(products, split, state.parameters.aggregation)
    return [device for device, half in zip(devices, halves, strict=True) if half]


def incongruent(parameters: Parameters, products: FloatArray, weights: FloatArray) -> bool:
    """Whether the mean update is short while some update is long (Algorithm 2; section IV, eq. 29 and 30).

    products: (n, n), inner products of the updates. weights: (n,), the devices' samples.
    """
    share = weights / weights.sum()
    mean = math.sqrt(max(float(share @ products @ share), 0.0))
    longest = math.sqrt(float(np.diagonal(products).max()))
    if parameters.eps2 > 0.0:
        return mean < parameters.eps1 and longest > parameters.eps2
    return mean < parameters.short * longest


def bipartition(cosines: FloatArray) -> tuple[Labels, float]:
    """Two groups whose largest cosine across is smallest, and that cosine (Algorithm 1)."""
    halves = agglomerated(1.0 - cosines, "single", clusters=2)
    if halves.max() == 0:  # all updates are equal: there are no halves
        return halves, 1.0
    return halves, float(cosines[np.ix_(halves == 0, halves == 1)].max())


PHASES: clustered.Phases[State] = {
    "train": (clustered.ask_train, _take_train),
}
plan, reduce = clustered.phased(PHASES)
place = clustered.place_by_loss
