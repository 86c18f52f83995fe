"""The server half of FedGroup."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from shoal.core.algorithm import Plan, Report
from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.update_geometry import norm
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.cluster import kmeans
from shoal.core.server_kit.clustering.outliers import without_outliers
from shoal.core.server_kit.initial import cluster_names
from shoal.core.server_kit.standard import trained
from shoal.core.types import Array, DeviceId, ModelKey, Tensors
from shoal_lab.algorithms.fedgroup import Parameters


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: start, clustered, evaluate or done.

    initial: the model that first updates begin with. first: each group's model after the cold start; its
    difference from `initial` is the group's direction.
    """

    parameters: Parameters
    initial: Tensors
    first: Mapping[ModelKey, Tensors] = field(default_factory=dict)


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="start", initial=model)


def _take_start(state: State, reports: Sequence[Report]) -> State:
    updates = {device: update.model for device, update in sorted(trained(reports).items())}
    products = distances.of_devices(updates, dict.fromkeys(updates, state.initial))
    clusters = state.parameters.clusters
    labels = without_outliers(
        products, lambda some, _: kmeans(decomposed(some, clusters), clusters), state.parameters.aggregation
    )
    names = cluster_names(clusters)
    groups = {device: names[label] for device, label in zip(updates, labels, strict=True)}
    after = clustered.regrouped(state, reports, groups)
    return clustered.advanced(_mixed(replace(after, first=after.models)), "clustered")


def decomposed(products: FloatArray, clusters: int) -> FloatArray:
    """(n, r): cosines of n updates with the `clusters` leading right singular vectors of all of them.

    With the updates as rows of U S V^T, an update's inner product with the j-th row of V^T is U_ij S_j.
    products: (n, n), inner products of the updates. r is at least 1.
    """
    points = distances.points(products)[:, :clusters]
    lengths = np.sqrt(np.diagonal(products))[:, None]
    cosines = np.divide(points, lengths, out=np.zeros_like(points), where=lengths > 0.0)
    return cosines if cosines.shape[1] else np.zeros((len(products), 1))


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    return clustered.ask_train(state, present, late=clustered.train_task(state, state.initial))


def _take_train(state: State, reports: Sequence[Report]) -> State:
    late = {
        device: update.model
        for device, update in trained(reports).items()
        if clustered.home(state, device) is None
    }
    joined = {device: _direction(state, model) for device, model in late.items()}
    own = [report for report in reports if report.device not in late]
    after = replace(state, assignments={**state.assignments, **joined})
    return clustered.advanced(_mixed(clustered.averaged(after, own))) if trained(own) else after


def _direction(state: State, model: Tensors) -> ModelKey:
    """The group whose direction has the smallest angle to the update (Algorithm 3)."""
    names = list(state.first)
    models = [model, *(state.first[name] for name in names)]
    cosines = distances.cosines(distances.inner_products(models, [state.initial] * len(models)))
    return names[int(np.argmax(cosines[0, 1:]))]


def _mixed(state: State) -> State:
    """Inter-group aggregation: each model gets `between` times the sum of all others, each normalized to
    length 1."""
    rate, models = state.parameters.between, state.models
    if not rate or len(models) < 2:
        return state
    lengths = {
        key: norm(model, {name: np.zeros_like(a) for name, a in model.items()})
        for key, model in models.items()
    }

    def mixed(key: ModelKey, name: str, array: Array) -> Array:
        if array.dtype.kind != "f":
            return array
        others = sum(models[k][name] / lengths[k] for k in models if k != key and lengths[k] > 0.0)
        return (array + rate * others).astype(array.dtype)

    found = {key: {name: mixed(key, name, a) for name, a in model.items()} for key, model in models.items()}
    return replace(state, models=found)


PHASES: clustered.Phases[State] = {
    "start": (clustered.ask_train, _take_start),
    "clustered": (_ask_train, _take_train),
}
plan, reduce = clustered.phased(PHASES, forming=("start",))
place = clustered.place_by_loss
