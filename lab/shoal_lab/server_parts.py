"""What several algorithms of the laboratory have in common on the server."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from shoal.core.algorithm import Report
from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.averaging import combined_models
from shoal.core.server_kit.aggregation.robust import Update
from shoal.core.server_kit.clustered import GLOBAL, S
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.cluster import Labels, kmeans
from shoal.core.server_kit.initial import cluster_names
from shoal.core.server_kit.standard import trained
from shoal.core.types import DeviceId, Tensors


def counted_once(state: S, reports: Sequence[Report]) -> S:
    """The next model of a run with a single model, in whose mean each device counts once, whatever the number
    of its samples."""
    updates = {
        device: Update(update.model, 1.0, loss=None if update.private else update.loss)
        for device, update in trained(reports).items()
    }
    models, guard = combined_models(
        state.models, {GLOBAL: updates}, state.parameters.aggregation, state.guard
    )
    assignments = {**state.assignments, **dict.fromkeys(updates, GLOBAL)}
    return replace(state, models=models, guard=guard, assignments=assignments)


def around_centers(products: FloatArray, clusters: int) -> Labels:
    """K-means of updates, from their inner products; one group if no update moves a model."""
    found = distances.points(products)
    return kmeans(found, clusters) if found.size else np.zeros(len(products), np.int64)


def grouped_once(group: Callable[[S, Mapping[DeviceId, Tensors]], Labels]) -> clustered.Phases[S]:
    """The phases of a run that trains one model at first, groups the devices once by their updates, and then
    trains a model for each group.

    The state's parameters have `warm_up`, rounds of the one model before the one that groups. The run starts
    in `first_phase`. group: from the state and the devices' trained models, by device and sorted, to a label
    for each, 0, 1, ... in the order of the first devices.
    """

    def take_warm_up(state: S, reports: Sequence[Report]) -> S:
        after = clustered.take_train(state, reports)
        over = after.phase == "warm_up" and after.progress >= state.parameters.warm_up
        return replace(after, phase="group") if over else after

    def take_group(state: S, reports: Sequence[Report]) -> S:
        updates = {device: update.model for device, update in sorted(trained(reports).items())}
        labels = group(state, updates)
        names = cluster_names(int(labels.max()) + 1)
        groups = {device: names[label] for device, label in zip(updates, labels, strict=True)}
        # A device that took part before and is absent now has no cluster yet, and will choose one.
        return clustered.advanced(
            replace(clustered.regrouped(state, reports, groups), assignments=groups), "clustered"
        )

    return {
        "warm_up": (clustered.ask_train, take_warm_up),
        "group": (clustered.ask_train, take_group),
        "clustered": (clustered.ask_train, clustered.take_train),
    }


def first_phase(warm_up: int) -> str:
    """The first phase of `grouped_once`."""
    return "warm_up" if warm_up else "group"
