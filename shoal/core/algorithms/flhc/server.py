"""The server half of FL+HC."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.core.algorithm import Report
from shoal.core.algorithms.flhc import Parameters
from shoal.core.server_kit import clustered, distances
from shoal.core.server_kit.cluster import agglomerated
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.standard import trained
from shoal.core.types import Tensors


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: warm_up, group, clustered, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    first = "group" if parameters.warm_up < 1 else "warm_up"
    return State(parameters=parameters, models={GLOBAL: model}, phase=first)


def _take_warm_up(state: State, reports: Sequence[Report]) -> State:
    after = clustered.take_train(state, reports)
    over = after.phase == "warm_up" and after.progress >= state.parameters.warm_up
    return replace(after, phase="group") if over else after


def _take_group(state: State, reports: Sequence[Report]) -> State:
    updates = {device: update.model for device, update in sorted(trained(reports).items())}
    products = distances.of_devices(updates, dict.fromkeys(updates, state.models[GLOBAL]))
    cosine = state.parameters.metric == "cosine"
    apart = 1.0 - distances.cosines(products) if cosine else distances.euclidean(products)
    labels = agglomerated(
        apart,
        state.parameters.linkage,
        clusters=state.parameters.clusters,
        below=state.parameters.distance,
    )
    names = clustered.cluster_names(int(labels.max()) + 1)
    groups = {device: names[label] for device, label in zip(updates, labels, strict=True)}
    # A device that took part before and is absent now has no cluster yet, and will choose one.
    return clustered.advanced(
        replace(clustered.regrouped(state, reports, groups), assignments=groups), "clustered"
    )


PHASES: clustered.Phases[State] = {
    "warm_up": (clustered.ask_train, _take_warm_up),
    "group": (clustered.ask_train, _take_group),
    "clustered": (clustered.ask_train, clustered.take_train),
}
plan, reduce = clustered.phased(PHASES)
place = clustered.place_by_loss
