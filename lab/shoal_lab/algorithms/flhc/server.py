"""The server half of FL+HC."""

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit import clustered
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.cluster import Labels, agglomerated
from shoal.core.server_kit.clustering.outliers import without_outliers
from shoal.core.types import DeviceId, Tensors
from shoal_lab.algorithms.flhc import Parameters
from shoal_lab.server_parts import first_phase, grouped_once


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: warm_up, group, clustered, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    phase = first_phase(parameters.warm_up)
    return State(parameters=parameters, models={GLOBAL: model}, phase=phase)


def _group(state: State, updates: Mapping[DeviceId, Tensors]) -> Labels:
    products = distances.of_devices(updates, dict.fromkeys(updates, state.models[GLOBAL]))
    parameters = state.parameters

    def merged(some: FloatArray) -> Labels:
        cosine = parameters.metric == "cosine"
        apart = 1.0 - distances.cosines(some) if cosine else distances.euclidean(some)
        return agglomerated(
            apart, parameters.linkage, clusters=parameters.clusters, below=parameters.distance
        )

    if not parameters.clusters:  # cut at a distance, the tree has as many clusters as there are
        return merged(products)
    return without_outliers(products, lambda some, _: merged(some), parameters.aggregation)


PHASES: clustered.Phases[State] = grouped_once(_group)
plan, reduce = clustered.phased(PHASES, forming=("group",))
place = clustered.place_by_loss
