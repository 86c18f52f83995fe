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
    with_kept,
)
from shoal.core.algorithms.flux.clustering import place as place_newcomer
from shoal.core.algorithms.flux.messages import TrainMixture
from shoal.core.algorithms.flux.state import Clustering, State
from shoal.core.errors import Refused
from shoal.core.exchange.choosing import ClusterDensities
from shoal.core.exchange.messages import Describe, Evaluate, Message, Score, Train
from shoal.core.exchange.parts import ClusterAssignment, Descriptor, Evidence
from shoal.core.server_kit import clustered
from shoal.core.server_kit.aggregation.averaging import next_models, steadied
from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.noised import charged, rule_of
from shoal.core.server_kit.aggregation.pooling import Pooling, pooled
from shoal.core.server_kit.clustered import GLOBAL
from shoal.core.server_kit.clustering import distances
from shoal.core.server_kit.clustering.congruence import can_tell, congruent
from shoal.core.server_kit.clustering.loss_jumps import Moving
from shoal.core.server_kit.clustering.outliers import without_outliers
from shoal.core.server_kit.descriptors import undescribed
from shoal.core.server_kit.fleet.densities import cluster_densities
from shoal.core.server_kit.fleet.leaning import leaning
from shoal.core.server_kit.frozen_encoder import (
    answers_of,
    ask_bounds,
    ask_described,
    bounded,
    describing,
    merged_bounds,
    projector_of,
    telling,
    with_classes,
)
from shoal.core.server_kit.initial import cluster_names
from shoal.core.server_kit.standard import (
    accuracy_cost,
    mean_accuracy,
    measured,
    trained,
    trusts,
)
from shoal.core.texts import listed
from shoal.core.types import DeviceId, ModelKey, Tensors

SETTLING, STEADY = 0.8, 3
"""The share of a run's rounds after which clusters with fewer devices than this take shorter steps; before
that, speed counts. With six devices of digits, in clusters of one or two, this gains 0.0 points with nothing
set (seeds 47 to 51), and 2.7 under rotations at a constant rate of 0.1 (seeds 47 to 49)."""


def start(model: Tensors, parameters: Parameters) -> State:
    first = "bounds" if warm_up_is_over(parameters, {}, 0) else "train"
    return State(parameters=parameters, models={GLOBAL: model}, phase=first)


def place(state: State, evidence: Evidence | None) -> ClusterAssignment | Message:
    if state.clustering is None and state.undescribed:
        return clustered.place_by_loss(state, evidence)
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
    found = cluster_densities(*with_kept(clustering.described, state.assignments, clustering.kept), names)
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
    """A description stays that is the only one of its cluster, or that stands for a cluster without devices
    (`Clustering.kept`, which does not note whose it was): newcomers are placed there by it."""
    state, clustering = replace(state, moving=state.moving.without(device)), state.clustering
    if clustering is None or device not in clustering.described:
        return state
    described = {each: one for each, one in clustering.described.items() if each != device}
    assignments = {each: key for each, key in state.assignments.items() if each != device}
    if {*dict(clustering.kept), *(assignments[each] for each in described)} != {*clustering.names}:
        return state
    again = rearranged(state.parameters, clustering, clustering.round, described, assignments)
    return replace(state, clustering=again, assignments=assignments)


# -- warm-up: train, (measure,) bounds ----------------------------------------------------------------------


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    return clustered.ask_all(state, present, _warm_up_task(state))


def _warm_up_task(state: State) -> Train:
    return clustered.train_task(state, state.models[GLOBAL], GLOBAL, state.progress)


def _averaged(state: State, reports: Sequence[Report]) -> State:
    spent = charged(state.spent, reports, rule_of(state.parameters))
    return replace(clustered.averaged(state, reports), spent=spent)


def _take_train(state: State, reports: Sequence[Report]) -> State:
    # No device belongs anywhere yet.
    after = replace(_averaged(state, reports), assignments=state.assignments, progress=state.progress + 1)
    return replace(after, phase="measure") if state.parameters.measured_apart else _warmed_up(after, reports)


def _ask_measure(state: State, present: Sequence[DeviceId]) -> Plan:
    task = Evaluate(state.models[GLOBAL], cluster=GLOBAL, rho=accuracy_cost(state.parameters))
    return Plan(dict.fromkeys(present, task), f"evaluation after round {state.progress}")


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
        return _formed(state, basis.encoder, basis.projector, answers_of(reports))
    state = with_classes(state, reports)
    bounds, width = merged_bounds(reports, state.parameters.asked_privacy)
    return replace(state, bounds=bounds, latents=width, phase="cluster")


# -- the clustering round -----------------------------------------------------------------------------------


def _projector(state: State) -> Tensors:
    return projector_of(state.bounds, state.latents, state.parameters)


def _ask_cluster(state: State, present: Sequence[DeviceId]) -> Plan:
    parameters, projector = state.parameters, _projector(state)
    asked = parameters.classes, parameters.asked_privacy
    task = replace(_warm_up_task(state), projector=projector, classes=asked[0], privacy=asked[1])
    plan = clustered.ask_all(state, present, task, describing(parameters))
    # In the paper, clusters are of the devices that a round draws.
    others = None if parameters.as_published else Describe(state.models[GLOBAL], projector, *asked)
    return replace(plan, others=others)


def _take_cluster(state: State, reports: Sequence[Report]) -> State:
    trainers = trained(reports)
    answers = answers_of(reports) | {device: telling(each.descriptor) for device, each in trainers.items()}
    formed = _formed(state, state.models[GLOBAL], _projector(state), answers)
    if formed.clustering is None:
        return _take_without(_grouped(formed, reports), reports)
    return _aggregate(formed, reports) if trainers else formed


def _formed(
    state: State, encoder: Tensors, projector: Tensors, answers: Mapping[DeviceId, Descriptor | None]
) -> State:
    """The state with clusters, before they are trained: each has the model of all. Without a descriptor there
    are none, and the one model goes on."""
    described, state = bounded(state.bounds, projector, answers), _noted(state, answers)
    if not described:
        return replace(state, phase="undescribed")
    clustering, assignments = form_clusters(
        state.parameters, state.progress + 1, encoder, projector, described
    )
    formed = replace(
        state,
        clustering=clustering,
        assignments=assignments,
        models=dict.fromkeys(clustering.names, state.models[GLOBAL]),
        guard=state.guard.split(GLOBAL, clustering.names),
        basis=Basis.of(encoder, projector, state.parameters),
        phase="clustered",
    )
    return _settled(formed)


# -- devices with too few samples for a descriptor ----------------------------------------------------------


def _noted(state: State, answers: Mapping[DeviceId, Descriptor | None]) -> State:
    return replace(state, undescribed=undescribed(state.undescribed, answers))


def _settled(state: State) -> State:
    """The state with a cluster for each device that can neither be described nor choose by its loss."""
    clustering, parameters = _clustering(state), state.parameters
    if len(clustering.names) > 1 and not parameters.losses_stay:
        return state
    largest = Counter(state.assignments[device] for device in sorted(clustering.described)).most_common(1)
    homeless = [device for device in state.undescribed if device not in state.assignments]
    return replace(state, assignments={**state.assignments, **dict.fromkeys(homeless, largest[0][0])})


def _ask_undescribed(state: State) -> Message:
    """For its loss under each model, once they differ; in the round before, its update counts nowhere."""
    clustering = _clustering(state)
    if state.progress >= clustering.round:
        return Score(tuple(state.models.values()))
    return clustered.train_task(state, state.models[clustering.names[0]], formed=clustering.round)


def _take_without(state: State, reports: Sequence[Report]) -> State:
    """A round of training where no device could be described."""
    state = clustered.choose(state, reports)
    if not trained(reports):
        return state
    return _united(clustered.advanced(_averaged(state, reports), "undescribed"), reports)


# -- groups that updates tell -------------------------------------------------------------------------------


def _congruent(state: State, reports: Sequence[Report]) -> dict[DeviceId, int]:
    """The groups of the devices that have trained the one model of all; empty where updates tell none."""
    if not state.parameters.groups_by_updates:
        return {}
    updates = {device: update.model for device, update in trained(reports).items()}
    if not can_tell(len(updates)):
        return {}
    base = next(iter(state.models.values()))
    products = distances.of_devices(updates, dict.fromkeys(updates, base))
    labels = without_outliers(products, lambda some, _: congruent(some), state.parameters.aggregation)
    return dict(zip(sorted(updates), labels.tolist(), strict=True)) if labels.max(initial=0) else {}


def _grouped(state: State, reports: Sequence[Report]) -> State:
    """The state without descriptors, with a model for each group that updates tell."""
    groups = _congruent(state, reports)
    return replace(clustered.formed(state, groups, state.phase), by_updates=True) if groups else state


def _regrouped(state: State, reports: Sequence[Report]) -> State:
    """The state with the groups that updates tell, in the first round that trains the clusters.

    Descriptors may divide such a group further, as updates tell least of a device that is like no other; but
    no cluster is of two of them.

    One that has described its data, and is absent, goes with those that were in its cluster. A group in which
    no device is described has no place among the others: its devices choose one.
    """
    clustering = _clustering(state)
    groups = _congruent(state, reports) if state.progress + 1 == clustering.round else {}
    found = {device: groups[device] for device in clustering.described if device in groups}
    crossed = {(state.assignments[device], group) for device, group in found.items()}
    clusters, seen = len({cluster for cluster, _ in crossed}), len({*found.values()})
    if seen < 2 or len(crossed) == clusters > seen:
        return state
    for device in clustering.described.keys() - found.keys():
        near = Counter(found[each] for each in sorted(found) if _together(state, device, each))
        found[device] = near.most_common(1)[0][0] if near else min(found.values())
    numbers = sorted({*found.values()})
    names = dict(zip(numbers, cluster_names(len(numbers)), strict=True))
    described = {device: names[number] for device, number in found.items()}
    others = {device: names[number] for device, number in groups.items() if number in names}
    again = rearranged(state.parameters, clustering, clustering.round, clustering.described, described)
    sources = dict.fromkeys(again.names, clustering.names[0])
    assignments = {**others, **described}
    return replace(
        state,
        clustering=again,
        assignments=assignments,
        models={name: state.models[old] for name, old in sources.items()},
        guard=state.guard.moved(sources, state.assignments, assignments),
        by_updates=True,
    )


def _together(state: State, one: DeviceId, other: DeviceId) -> bool:
    return state.assignments[one] == state.assignments[other]


# -- clustered training -------------------------------------------------------------------------------------


def _ask_clustered(state: State, present: Sequence[DeviceId]) -> Plan:
    clustering, describe = _clustering(state), _describe(state)

    def task(device: DeviceId) -> Message:
        cluster = state.assignments.get(device)
        if cluster is None:
            return _ask_undescribed(state) if device in state.undescribed else describe
        train = clustered.train_task(state, state.models[cluster], cluster, clustering.round)
        if state.parameters.mixing == "soft" and device in clustering.vectors:
            weights = mixing_weights(clustering, device)
            models = tuple(state.models[name] for name in weights)
            return TrainMixture(models, tuple(weights.values()), train.settings, cluster, train.private)
        return train

    return Plan(
        {device: task(device) for device in present}, clustered.title(state, "one model for each cluster")
    )


def _describe(state: State) -> Describe:
    clustering, parameters = _clustering(state), state.parameters
    return Describe(clustering.encoder, clustering.projector, parameters.classes, parameters.asked_privacy)


def _take_clustered(state: State, reports: Sequence[Report]) -> State:
    state = _joined(clustered.choose(state, reports), answers_of(reports))
    if not trained(reports):
        # Only late joiners answered, or devices that chose: the round of training is still to come.
        return state
    return _aggregate(state, reports)


def _joined(state: State, answers: Mapping[DeviceId, Descriptor | None]) -> State:
    """The state with late joiners in their clusters."""
    described, state = _bounded(state, answers), _noted(state, answers)
    if not described:
        return _settled(state)
    clustering, joined, begun = add_devices(
        state.parameters, _clustering(state), state.assignments, described
    )
    assignments = {**state.assignments, **joined}
    sources = {name: begun.get(name, name) for name in clustering.names}
    joined_to = replace(
        state,
        clustering=clustering,
        assignments=assignments,
        models={name: state.models[old] for name, old in sources.items()},
        guard=state.guard.moved(sources, state.assignments, assignments),
        begun={**state.begun, **begun},
    )
    return _settled(joined_to)


def _bounded(state: State, answers: Mapping[DeviceId, Descriptor | None]) -> dict[DeviceId, Descriptor]:
    return bounded(state.bounds, _clustering(state).projector, answers)


def _aggregate(state: State, reports: Sequence[Report]) -> State:
    """The next model of each cluster from its devices' updates; a cluster without updates keeps its model."""
    state = _regrouped(state, reports)
    clustering, soft = _clustering(state), state.parameters.mixing == "soft"
    shares: Mapping[DeviceId, Mapping[ModelKey, float]] = {
        device: mixing_weights(clustering, device)
        if soft and device in clustering.vectors
        else {state.assignments[device]: 1.0}
        if device in state.assignments
        else {}
        for device in trained(reports)
    }
    rule = rule_of(state.parameters)
    models, guard = next_models(state.models, reports, rule, state.guard, shares)
    # A sum over a cohort does not tell how its updates scatter.
    most = 0.0 if state.parameters.secure_aggregation else state.parameters.pooling
    # Groups that only updates tell do not show in descriptors.
    leans = {} if state.by_updates else leaning(clustering.described, state.assignments)
    models, pooling = pooled(state.models, models, guard.spreads, state.pooling, most, leans)
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
    after = replace(
        state, models=models, guard=guard, pooling=pooling, spent=spent, progress=progress, phase=phase
    )
    return _united(after, reports)


# -- groups whose devices have moved ------------------------------------------------------------------------


def _united(state: State, reports: Sequence[Report]) -> State:
    """The state after a round of training, with one model of all again where most devices have moved.

    Their groups say nothing any more, and data that have moved may move again: a model of all has seen most.
    FLUX-dynamic, which groups by what devices have now, serves those who want a model of the latest data.
    """
    if len(state.models) == 1 or not state.parameters.gives_up_groups:
        return state
    fell = {key for key, history in state.guard.histories.items() if history.fell or history.restarted}
    # Of these the model was at fault, and not the data.
    sound = {
        device: update
        for device, update in trained(reports).items()
        if clustered.home(state, device) not in fell
    }
    moving = state.moving.heard(sound)
    if not moving.most:
        return replace(state, moving=moving)
    name = next(iter(state.models))
    whole = clustered.merged(state, dict.fromkeys(state.models, name))
    clustering = state.clustering
    if clustering is not None:
        described = dict.fromkeys(clustering.described, name)
        clustering = rearranged(
            state.parameters, clustering, clustering.round, clustering.described, described, ()
        )
    remark = (
        f"by round {state.progress} the data of {len(moving.moved)} of {len(moving.losses)} devices had "
        "moved away from what the groups were made of: all devices train one model again"
    )
    return replace(
        whole,
        clustering=clustering,
        guard=state.guard.moved({name: name}, state.assignments, whole.assignments),
        pooling=Pooling(),
        moving=Moving(),
        begun={},
        drift=(*state.drift, remark),
    )


# -- FLUX-dynamic: watching for drift -----------------------------------------------------------------------


def _ask_watch(state: State, present: Sequence[DeviceId]) -> Plan:
    what = "devices describe their data again, to detect drift"
    return clustered.ask_all(state, present, _describe(state), what)


def _take_watch(state: State, reports: Sequence[Report]) -> State:
    before, answers = state.assignments, answers_of(reports)
    state, described = _noted(state, answers), _bounded(state, answers)
    clustering, assignments, sources = regrouped(
        state.parameters, _clustering(state), before, state.progress, described
    )
    moved = [device for device, name in assignments.items() if before.get(device, name) != name]
    if not moved:
        # All clusters go on with their models, but late joiners may have come.
        stayed = {device: name for device, name in before.items() if name in clustering.names}
        sources = {name: name if name in state.models else sources[name] for name in clustering.names}
        return replace(
            state,
            clustering=replace(clustering, round=_clustering(state).round),
            assignments={**stayed, **assignments},
            models={name: state.models[old] for name, old in sources.items()},
            guard=state.guard.moved(sources, before, {**stayed, **assignments}),
            phase="clustered",
        )
    living = {name: sources[name] for name in clustering.names if name not in dict(clustering.kept)}
    remark = (
        f"after round {state.progress} the data of {listed(moved)} had drifted: "
        "the clusters were formed again"
    )
    moved_to = replace(
        state,
        clustering=clustering,
        assignments=assignments,
        models={name: state.models[sources[name]] for name in clustering.names},
        guard=state.guard.moved(living, before, assignments),
        pooling=Pooling(),
        drift=(*state.drift, remark),
        phase="clustered",
    )
    return _settled(moved_to)


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
    "undescribed": (clustered.ask_train, _take_without),
}
plan, reduce = clustered.phased(PHASES, forming=("cluster",))
