"""The server half of FLUX. Read `PHASES` first: what each phase asks for, and what it does with the
answers."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.core.algorithm import Basis, Plan, Report, ends_by_itself
from shoal.core.algorithms.flux import Parameters
from shoal.core.algorithms.flux.clustering import (
    add_devices,
    form_clusters,
    mixing_weights,
    rearranged,
    regrouped,
    warm_up_is_over,
)
from shoal.core.algorithms.flux.clustering import place as place_newcomer
from shoal.core.algorithms.flux.messages import TrainMixture
from shoal.core.algorithms.flux.state import Clustering, State
from shoal.core.errors import Refused
from shoal.core.exchange.choosing import ClusterDensities
from shoal.core.exchange.messages import Describe, Described, Evaluate, Message, Train
from shoal.core.exchange.parts import ClusterAssignment, Descriptor, Evidence
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.averaging import listed, next_models, steadied
from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.noised import charged, rule_of
from shoal.core.server_kit.aggregation.pooling import Pooling, pooled
from shoal.core.server_kit.clustered import GLOBAL
from shoal.core.server_kit.fleet.densities import cluster_densities
from shoal.core.server_kit.frozen_encoder import (
    ask_bounds,
    ask_described,
    bounded,
    merged_bounds,
    projector_of,
    with_classes,
)
from shoal.core.server_kit.standard import (
    accuracy_cost,
    mean_accuracy,
    measured,
    private_training,
    trained,
    trusts,
)
from shoal.core.types import DeviceId, ModelKey, Tensors

SETTLING, STEADY = 0.8, 3
"""The share of a run's rounds after which clusters with fewer devices than this take shorter steps; before
that, speed counts. With six devices of digits, in clusters of one or two, this gains 0.0 points with nothing
set (seeds 47 to 51), and 2.7 under rotations at a constant rate of 0.1 (seeds 47 to 49)."""


def start(model: Tensors, parameters: Parameters) -> State:
    first = "bounds" if warm_up_is_over(parameters, {}, 0) else "train"
    return State(parameters=parameters, models={GLOBAL: model}, phase=first)


def place(state: State, evidence: Evidence | None) -> ClusterAssignment | Message:
    if state.clustering is None:
        raise Refused("the run has not formed its clusters yet", "try again in a few rounds")
    if evidence is None:
        asked = state.parameters.asked_of_newcomers
        return Describe(state.clustering.encoder, state.clustering.projector, 0, asked)
    assert isinstance(evidence, Descriptor)
    return place_newcomer(state.parameters, state.clustering, evidence)


def densities(state: State) -> ClusterDensities | None:
    """For newcomers that choose themselves. Where the size of the noise is unknown, no density is right."""
    if state.clustering is None or state.parameters.asked_privacy.rules.unknown_noise:
        return None
    names, clustering = list(state.models), state.clustering
    found = cluster_densities(clustering.described, state.assignments, names)
    if found is None:
        return None
    kin = clustering.kin if clustering.names == tuple(names) else ()
    return ClusterDensities(clustering.encoder, clustering.projector, found, kin)


def independent(parameters: Parameters) -> bool:
    """Clusters share steps (pooling), devices (mixing), when the run ends, and what a fall of one is judged
    by: every rule of averaging but the mean compares the losses of all clusters."""
    apart = parameters.mixing == "hard" and not parameters.pooling and not parameters.secure_aggregation
    return apart and parameters.aggregation == "mean" and not ends_by_itself(parameters)


def without(state: State, device: DeviceId) -> State:
    """A description stays that is the only one of its cluster: newcomers are placed there by it."""
    clustering = state.clustering
    if clustering is None or device not in clustering.described:
        return state
    described = {each: one for each, one in clustering.described.items() if each != device}
    assignments = {each: key for each, key in state.assignments.items() if each != device}
    if {assignments[each] for each in described} != {*clustering.names}:
        return state
    again = rearranged(state.parameters, clustering, clustering.round, described, assignments)
    return replace(state, clustering=again, assignments=assignments)


# -- warm-up: train, (measure,) bounds ----------------------------------------------------------------------


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    task = Train(
        state.models[GLOBAL],
        clustered.settings(state, GLOBAL, state.progress),
        GLOBAL,
        private=private_training(state.parameters),
    )
    return Plan(dict.fromkeys(present, task), clustered.title(state, "one model for all"))


def _take_train(state: State, reports: Sequence[Report]) -> State:
    rule = rule_of(state.parameters)
    models, guard = next_models(state.models, reports, rule, state.guard)
    spent = charged(state.spent, reports, rule)
    after = replace(state, models=models, guard=guard, spent=spent, progress=state.progress + 1)
    return replace(after, phase="measure") if state.parameters.measured_apart else _warmed_up(after, reports)


def _ask_measure(state: State, present: Sequence[DeviceId]) -> Plan:
    task = Evaluate(state.models[GLOBAL], cluster=GLOBAL, rho=accuracy_cost(state.parameters))
    return Plan(dict.fromkeys(present, task), f"held-out accuracy after round {state.progress}")


def _warmed_up(state: State, reports: Sequence[Report]) -> State:
    """The state with the accuracy in these reports, and with the phase that follows."""
    parameters, history = state.parameters, state.guard.histories.get(GLOBAL, LossHistory())
    # With training comes the accuracy of the model that it began with.
    after = state.progress if parameters.measured_apart else state.progress - 1
    accuracies = {} if history.restarted else dict(state.accuracies)
    counts = parameters.measured_apart or (parameters.measured and not history.restarted)
    if counts and measured(reports):
        accuracies[str(after)] = mean_accuracy(reports, trusts(parameters))
    over = warm_up_is_over(parameters, accuracies, state.progress, history.lost)
    return replace(state, accuracies=accuracies, phase="bounds" if over else "train")


def _ask_bounds(state: State, present: Sequence[DeviceId]) -> Plan:
    return ask_bounds(state, present) if state.basis is None else ask_described(state.basis, present)


def _take_bounds(state: State, reports: Sequence[Report]) -> State:
    basis = state.basis
    if basis is not None:
        state = replace(state, parameters=state.parameters.with_classes(basis.classes))
        formed = _formed(state, basis.encoder, basis.projector, _described(state, reports))
        return replace(formed, phase="clustered")
    state = with_classes(state, reports)
    bounds, width = merged_bounds(reports, state.parameters.asked_privacy)
    return replace(state, bounds=bounds, latents=width, phase="cluster")


# -- the clustering round -----------------------------------------------------------------------------------


def _projector(state: State) -> Tensors:
    return projector_of(state.bounds, state.latents, state.parameters)


def _ask_cluster(state: State, present: Sequence[DeviceId]) -> Plan:
    task = Train(
        state.models[GLOBAL],
        clustered.settings(state, GLOBAL, state.progress),
        GLOBAL,
        _projector(state),
        state.parameters.classes,
        state.parameters.asked_privacy,
        private_training(state.parameters),
    )
    mark = " (privacy=paper: not private)" if state.parameters.privacy == "paper" else ""
    return Plan(dict.fromkeys(present, task), clustered.title(state, f"devices describe their data{mark}"))


def _take_cluster(state: State, reports: Sequence[Report]) -> State:
    described = {
        device: update.descriptor for device, update in trained(reports).items() if update.descriptor
    }
    projector = _projector(state)
    described = bounded(state.bounds, projector, described)
    return _aggregate(_formed(state, state.models[GLOBAL], projector, described), reports)


def _formed(
    state: State, encoder: Tensors, projector: Tensors, described: Mapping[DeviceId, Descriptor]
) -> State:
    """The state with clusters, before they are trained: each has the model of all."""
    clustering, assignments = form_clusters(
        state.parameters, state.progress + 1, encoder, projector, described
    )
    return replace(
        state,
        clustering=clustering,
        assignments=assignments,
        models=dict.fromkeys(clustering.names, state.models[GLOBAL]),
        guard=state.guard.split(GLOBAL, clustering.names),
        basis=Basis.of(encoder, projector, state.parameters),
    )


# -- clustered training -------------------------------------------------------------------------------------


def _ask_clustered(state: State, present: Sequence[DeviceId]) -> Plan:
    clustering, private = _clustering(state), private_training(state.parameters)
    describe = Describe(
        clustering.encoder, clustering.projector, state.parameters.classes, state.parameters.asked_privacy
    )

    def task(device: DeviceId) -> Message:
        cluster = state.assignments.get(device)
        if cluster is None:
            return describe
        settings = clustered.settings(state, cluster, clustering.round)
        if state.parameters.mixing == "soft":
            weights = mixing_weights(clustering, device)
            models = tuple(state.models[name] for name in weights)
            return TrainMixture(models, tuple(weights.values()), settings, cluster, private)
        return Train(state.models[cluster], settings, cluster, private=private)

    return Plan(
        {device: task(device) for device in present}, clustered.title(state, "one model for each cluster")
    )


def _take_clustered(state: State, reports: Sequence[Report]) -> State:
    state = _joined(state, _described(state, reports))
    if not trained(reports):
        # Only late joiners answered: no device has trained, so the round is still to come.
        return state
    return _aggregate(state, reports)


def _joined(state: State, described: Mapping[DeviceId, Descriptor]) -> State:
    """The state with late joiners in their clusters."""
    if not described:
        return state
    clustering, joined, begun = add_devices(
        state.parameters, _clustering(state), state.assignments, described
    )
    assignments = {**state.assignments, **joined}
    sources = {name: begun.get(name, name) for name in clustering.names}
    return replace(
        state,
        clustering=clustering,
        assignments=assignments,
        models={name: state.models[old] for name, old in sources.items()},
        guard=state.guard.moved(sources, state.assignments, assignments),
        begun={**state.begun, **begun},
    )


def _described(state: State, reports: Sequence[Report]) -> dict[DeviceId, Descriptor]:
    found = {
        report.device: report.message.descriptor
        for report in reports
        if isinstance(report.message, Described)
    }
    return found if state.bounds is None else bounded(state.bounds, _clustering(state).projector, found)


def _aggregate(state: State, reports: Sequence[Report]) -> State:
    """The next model of each cluster from its devices' updates; a cluster without updates keeps its model."""
    clustering = _clustering(state)
    shares: Mapping[DeviceId, Mapping[ModelKey, float]] = {
        device: mixing_weights(clustering, device)
        if state.parameters.mixing == "soft"
        else {state.assignments[device]: 1.0}
        for device in trained(reports)
    }
    rule = rule_of(state.parameters)
    models, guard = next_models(
        state.models,
        reports,
        rule,
        state.guard,
        lambda device, key: shares[device].get(key, 0.0),
    )
    # A sum over a cohort does not tell how its updates scatter.
    most = 0.0 if state.parameters.secure_aggregation else state.parameters.pooling
    models, pooling = pooled(state.models, models, guard.spreads, state.pooling, most)
    if state.progress + 1 > SETTLING * state.rounds and not state.parameters.as_published:
        # One that has fallen is not to be mixed with the one that was at fault. But one that begins again so
        # late keeps a part of what it is, as it has no time to learn from nothing.
        fallen = guard.fallen(state.guard)
        trainers = Counter(key for own in shares.values() for key in own if key not in fallen)
        models = steadied(state.models, models, trainers, STEADY)
    progress, watch = state.progress + 1, state.parameters.watch
    phase = "watch" if watch and (progress - clustering.round) % watch == 0 else "clustered"
    if progress >= state.rounds:
        phase = clustered.end(state)
    spent = charged(state.spent, reports, rule)
    return replace(
        state, models=models, guard=guard, pooling=pooling, spent=spent, progress=progress, phase=phase
    )


# -- FLUX-dynamic: watching for drift -----------------------------------------------------------------------


def _ask_watch(state: State, present: Sequence[DeviceId]) -> Plan:
    clustering = _clustering(state)
    task = Describe(
        clustering.encoder, clustering.projector, state.parameters.classes, state.parameters.asked_privacy
    )
    return Plan(
        dict.fromkeys(present, task),
        clustered.title(state, "devices describe their data again, to detect drift"),
    )


def _take_watch(state: State, reports: Sequence[Report]) -> State:
    before = state.assignments
    clustering, assignments, sources = regrouped(
        state.parameters, _clustering(state), before, state.progress, _described(state, reports)
    )
    moved = [device for device, name in assignments.items() if before.get(device, name) != name]
    if not moved:
        clustering = replace(clustering, round=_clustering(state).round)
        return replace(state, clustering=clustering, phase="clustered")
    remark = (
        f"after round {state.progress} the data of {listed(moved)} had drifted: "
        "the clusters were formed again"
    )
    return replace(
        state,
        clustering=clustering,
        assignments=assignments,
        models={name: state.models[old] for name, old in sources.items()},
        guard=state.guard.moved(sources, before, assignments),
        pooling=Pooling(),
        drift=(*state.drift, remark),
        phase="clustered",
    )


def _clustering(state: State) -> Clustering:
    assert state.clustering is not None
    return state.clustering


PHASES: clustered.Phases[State] = {
    "train": (_ask_train, _take_train),
    "measure": (_ask_measure, _warmed_up),
    "bounds": (_ask_bounds, _take_bounds),
    "cluster": (_ask_cluster, _take_cluster),
    "clustered": (_ask_clustered, _take_clustered),
    "watch": (_ask_watch, _take_watch),
}
plan, reduce = clustered.phased(PHASES, forming=("cluster",))
