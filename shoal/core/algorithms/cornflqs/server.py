"""The server half of CORNFLQS. Read `PHASES` first: what each phase asks for, and what it does with
answers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from shoal.core.algorithm import Plan, Report, most_rounds
from shoal.core.algorithms.cornflqs import Parameters
from shoal.core.exchange.parts import FloatArray
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.averaging import next_models
from shoal.core.server_kit.clustered import GLOBAL, Clustered, advanced, choose, regrouped, started_from
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.cluster import Labels, agglomerated, matched
from shoal.core.server_kit.clustering.outliers import without_outliers
from shoal.core.server_kit.initial import cluster_names
from shoal.core.server_kit.standard import trained
from shoal.core.types import DeviceId, Tensors

BEYOND = 1000.0
"""Larger than the distance of any two directions, or of any groups of them."""


@dataclass(frozen=True, eq=False, kw_only=True)
class State(Clustered):
    """phase: begin, corn, agree, settle, stable, clustered, last_choice, evaluate or done."""

    GOES_ON_IN: ClassVar[str] = "stable"
    CHOOSES_AT_LAST: ClassVar[bool] = True

    parameters: Parameters


def start(model: Tensors, parameters: Parameters) -> State:
    return State(parameters=parameters, models={GLOBAL: model}, phase="begin")


def _ask_begin(state: State, present: Sequence[DeviceId]) -> Plan:
    return replace(clustered.ask_train(state, present), title="common start: all devices train one model")


def _take_begin(state: State, reports: Sequence[Report]) -> State:
    """Take the unweighted mean, so that the start is not biased toward devices with many samples (Algorithm
    2, line 7)."""
    shares = {device: {GLOBAL: 1.0 / update.examples} for device, update in trained(reports).items()}
    models, guard = next_models(state.models, reports, state.parameters.aggregation, state.guard, shares)
    return replace(state, models=models, guard=guard, phase="corn")


def _take_corn(state: State, reports: Sequence[Report]) -> State:
    """Group by weights, then average each group (Algorithm 3, lines 4 to 7)."""
    state = choose(state, reports)
    updates = {device: update.model for device, update in trained(reports).items()}
    if not updates:  # only late devices answered: the round is still to come
        return state
    devices = sorted(updates)
    names = cluster_names(state.parameters.clusters)
    by_direction = state.parameters.compare == "directions"
    labels = (_by_direction if by_direction else _by_weights)(state, updates, len(names))
    groups = matched(devices, labels, state.assignments, names)
    return advanced(regrouped(state, reports, groups), "agree")


def _by_direction(state: State, updates: Mapping[DeviceId, Tensors], clusters: int) -> Labels:
    """Groups of the updates' directions. Lengths say how many samples a device has, and nothing here.

    Directions from different models cannot be compared. So the server separates devices that started from
    different models, and leaves it to the devices, which choose by loss, to bring them together.
    """
    directions = distances.cosines(distances.of_devices(updates, started_from(state, updates)))
    homes = np.array([clustered.home(state, device) for device in sorted(updates)])

    def groups(some: FloatArray, kept: Labels) -> Labels:
        together = homes[kept][:, None] == homes[kept][None]
        return agglomerated(np.where(together, distances.angular(some), BEYOND), "ward", clusters=clusters)

    return without_outliers(directions, groups, state.parameters.aggregation)


def _by_weights(state: State, updates: Mapping[DeviceId, Tensors], clusters: int) -> Labels:
    """Groups of whole models, because devices may have started from different ones: their distances are the
    same from any common base."""
    common = next(iter(state.models.values()))
    apart = distances.euclidean(distances.of_devices(updates, dict.fromkeys(updates, common)))
    return agglomerated(apart, "ward", clusters=clusters)


def _take_agree(state: State, reports: Sequence[Report]) -> State:
    after = choose(state, reports)
    agreed = after.assignments == state.assignments
    enough = state.progress >= most_rounds(state.parameters) // 2
    return replace(after, phase="settle" if agreed or enough else "corn")


def _take_settle(state: State, reports: Sequence[Report]) -> State:
    state = clustered.take_train(state, reports)
    return replace(state, phase="stable") if state.phase == "settle" and trained(reports) else state


def _take_stable(state: State, reports: Sequence[Report]) -> State:
    after = choose(state, reports)
    return replace(after, phase="clustered" if after.assignments == state.assignments else "settle")


PHASES: clustered.Phases[State] = {
    "begin": (_ask_begin, _take_begin),
    "corn": (clustered.ask_train, _take_corn),
    "agree": (clustered.ask_scores, _take_agree),
    "settle": (clustered.ask_train, _take_settle),
    "stable": (clustered.ask_scores, _take_stable),
    "clustered": (clustered.ask_train, clustered.take_train),
}
plan, reduce = clustered.phased(PHASES)
place = clustered.place_by_loss
