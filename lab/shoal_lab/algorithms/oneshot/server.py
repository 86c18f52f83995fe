"""The server half of one-shot clustering."""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.cluster import Labels, renumbered
from shoal.core.server_kit.clustering.outliers import without_outliers
from shoal.core.types import DeviceId, Tensors
from shoal_lab.algorithms.oneshot import Parameters
from shoal_lab.server_parts import around_centers, first_phase, grouped_once


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: warm_up, group, clustered, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    phase = first_phase(parameters.warm_up)
    return State(parameters=parameters, models={GLOBAL: model}, phase=phase)


def _group(state: State, updates: Mapping[DeviceId, Tensors]) -> Labels:
    """K-means of the models, which are as far apart as their updates from the common model."""
    products = distances.of_devices(updates, dict.fromkeys(updates, state.models[GLOBAL]))
    clusters = state.parameters.clusters
    labels = without_outliers(
        products, lambda some, _: around_centers(some, clusters), state.parameters.aggregation
    )
    return renumbered(labels)


PHASES: clustered.Phases[State] = grouped_once(_group)
plan, reduce = clustered.phased(PHASES, forming=("group",))
place = clustered.place_by_loss
