"""The server half of FL+HC."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shoal.core.algorithm import Plan, Report
from shoal.core.algorithms.flhc import Parameters
from shoal.core.errors import ConfigError
from shoal.core.server_kit import clustered, distances
from shoal.core.server_kit.cluster import agglomerated
from shoal.core.server_kit.clustered import GLOBAL, Clustered
from shoal.core.server_kit.clustered import place_by_loss as place
from shoal.core.server_kit.robust import RULES
from shoal.core.server_kit.standard import check_parameters, trained
from shoal.core.types import DeviceId, Tensors

__all__ = ["State", "place", "plan", "reduce", "start"]


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: warm_up, group, clustered, evaluate or done."""

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    choices = {
        "aggregation": RULES,
        "metric": ("euclidean", "cosine"),
        "linkage": ("ward", "average", "complete", "single"),
    }
    check_parameters("flhc", parameters, choices, ("rounds",))
    if parameters.linkage == "ward" and parameters.metric != "euclidean":
        raise ConfigError("flhc: linkage=ward takes metric=euclidean", "or use linkage=average")
    if parameters.clusters < 0 or (not parameters.clusters and not parameters.distance > 0.0):
        raise ConfigError("flhc needs clusters of at least 1, or clusters=0 with a distance above 0")
    first = "group" if parameters.warm_up < 1 else "warm_up"
    return State(parameters=parameters, models={GLOBAL: model}, phase=first)


def plan(state: State, present: Sequence[DeviceId]) -> Plan | None:
    return clustered.plan(PHASES, state, present)


def reduce(state: State, reports: Sequence[Report]) -> State:
    return clustered.reduce(PHASES, state, reports)


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
    names = clustered.named(int(labels.max()) + 1)
    groups = {device: names[label] for device, label in zip(updates, labels, strict=True)}
    # Who was there before and is away now has no cluster yet, and will choose one.
    return clustered.advanced(
        replace(clustered.regrouped(state, reports, groups), assignments=groups), "clustered"
    )


PHASES: clustered.Phases[State] = {
    "warm_up": (clustered.ask_train, _take_warm_up),
    "group": (clustered.ask_train, _take_group),
    "clustered": (clustered.ask_train, clustered.take_train),
    "evaluate": (clustered.ask_evaluate, clustered.take_evaluate),
}
