"""The server half of FeSEM."""

from collections.abc import Sequence
from dataclasses import dataclass

from shoal.core.algorithm import Report
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.update_geometry import norm
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.outliers import without_outliers
from shoal.core.server_kit.initial import cluster_names
from shoal.core.server_kit.standard import trained
from shoal.core.types import DeviceId, ModelKey, Tensors
from shoal_lab.algorithms.fesem import Parameters
from shoal_lab.server_parts import around_centers


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: train, evaluate or done. Before the first round there is one model."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="train")


def _take_train(state: State, reports: Sequence[Report]) -> State:
    state = clustered.choose(state, reports)
    updates = {device: update.model for device, update in sorted(trained(reports).items())}
    if not updates:
        return state
    groups = _first_groups(state, updates) if GLOBAL in state.models else _nearest(state, updates)
    return clustered.advanced(clustered.regrouped(state, reports, groups))


def _first_groups(state: State, updates: dict[DeviceId, Tensors]) -> dict[DeviceId, ModelKey]:
    products = distances.of_devices(updates, dict.fromkeys(updates, state.models[GLOBAL]))
    clusters = state.parameters.clusters
    labels = without_outliers(
        products, lambda some, _: around_centers(some, clusters), state.parameters.aggregation
    )
    names = cluster_names(clusters)
    return {device: names[label] for device, label in zip(updates, labels, strict=True)}


def _nearest(state: State, updates: dict[DeviceId, Tensors]) -> dict[DeviceId, ModelKey]:
    """The E-step. Only one center's model and one update are in memory at a time."""
    centers = state.models
    return {
        device: min(centers, key=lambda key: norm(update, centers[key])) for device, update in updates.items()
    }


PHASES: clustered.Phases[State] = {
    "train": (clustered.ask_train, _take_train),
}
plan, reduce = clustered.phased(PHASES)
place = clustered.place_by_loss
