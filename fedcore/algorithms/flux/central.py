"""The server half of FLUX. Read `PHASES` first: what each phase asks, and what it makes of the answers."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, cast

from fedcore.algorithm import Plan, Report
from fedcore.algorithms.flux import Parameters
from fedcore.algorithms.flux.clustering import (
    add_device,
    check,
    form_clusters,
    mixing_weights,
    warm_up_is_over,
)
from fedcore.algorithms.flux.clustering import place as place_newcomer
from fedcore.algorithms.flux.messages import TrainMixture
from fedcore.algorithms.flux.state import GLOBAL, Clustering, State
from fedcore.central.averaging import next_models
from fedcore.central.projector import make_projector, merge_bounds, public_projector
from fedcore.central.standard import mean_accuracy, metrics_of, private_training, trained, training
from fedcore.errors import BadPayload, ConfigError, Refused
from fedcore.messages import WIDTH, Describe, Described, Evaluate, Message, Train
from fedcore.parts import CALIBRATED, ClusterAssignment, Descriptor, Evidence, PrivacySettings
from fedcore.types import DeviceId, ModelKey, Tensors


def start(model: Tensors, parameters: Parameters) -> State:
    check(parameters)
    privacy(parameters)
    first = "bounds" if warm_up_is_over(parameters, {}, 0) else "train"
    return State(parameters, {GLOBAL: model}, first)


def plan(state: State, present: Sequence[DeviceId]) -> Plan | None:
    if state.phase == "done":
        return None
    ask, _ = PHASES[state.phase]
    return ask(state, present)


def reduce(state: State, reports: Sequence[Report]) -> State:
    _, take = PHASES[state.phase]
    return take(state, reports)


def place(state: State, evidence: Evidence | None) -> ClusterAssignment | Message:
    if state.clustering is None:
        raise Refused("the run has not formed its clusters yet", "try again in a few rounds")
    if evidence is None:
        asked = privacy(state.parameters) if state.parameters.noise_at_test else PrivacySettings()
        return Describe(state.clustering.encoder, state.clustering.projector, 0, asked)
    assert isinstance(evidence, Descriptor)
    return place_newcomer(state.parameters, state.clustering, evidence)


def privacy(parameters: Parameters) -> PrivacySettings:
    """What is asked of the devices. A mode that has its numbers needs none. Raises ConfigError."""
    mode, numbers = parameters.privacy, (parameters.epsilon, parameters.delta)
    if numbers == (0.0, 0.0):
        numbers = CALIBRATED.get(mode) or numbers
    try:
        return PrivacySettings(mode, *numbers, parameters.group_size)
    except BadPayload as fault:
        raise ConfigError(f"flux: {fault.message}", fault.mend) from None


# -- warm-up: train, measure, bounds ------------------------------------------------------------------------


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    task = Train(
        state.models[GLOBAL],
        training(state.parameters),
        GLOBAL,
        private=private_training(state.parameters),
    )
    return Plan(dict.fromkeys(present, task), _title(state, "one model for all"))


def _take_train(state: State, reports: Sequence[Report]) -> State:
    models, guard = next_models(state.models, reports, state.parameters.aggregation, state.guard)
    return replace(state, models=models, guard=guard, progress=state.progress + 1, phase="measure")


def _ask_measure(state: State, present: Sequence[DeviceId]) -> Plan:
    task = Evaluate(state.models[GLOBAL], cluster=GLOBAL)
    return Plan(dict.fromkeys(present, task), f"held-out accuracy after round {state.progress}")


def _take_measure(state: State, reports: Sequence[Report]) -> State:
    accuracies = {**state.accuracies, str(state.progress): mean_accuracy(reports)}
    over = warm_up_is_over(state.parameters, accuracies, state.progress)
    return replace(state, accuracies=accuracies, phase="bounds" if over else "train")


def _ask_bounds(state: State, present: Sequence[DeviceId]) -> Plan:
    if privacy(state.parameters).calibrated:
        asked, title = WIDTH, "number of the latent values"
    else:
        asked, title = state.parameters.bounds, "bounds of the latent values"
    task = Evaluate(state.models[GLOBAL], cluster=GLOBAL, bounds=asked)
    return Plan(dict.fromkeys(present, task), title)


def _take_bounds(state: State, reports: Sequence[Report]) -> State:
    measured = [each for _, each in sorted(metrics_of(reports).items()) if each.latents]
    # One device with another network must not spoil the projector of all others.
    width = Counter(each.latents for each in measured).most_common(1)[0][0]
    if privacy(state.parameters).calibrated:
        return replace(state, latents=width, phase="cluster")
    bounds = merge_bounds(
        (each.bounds for each in measured if each.bounds is not None and each.latents == width),
        state.parameters.margin,
    )
    return replace(state, bounds=bounds, latents=width, phase="cluster")


# -- the clustering round -----------------------------------------------------------------------------------


def _projector(state: State) -> Tensors:
    if privacy(state.parameters).calibrated:
        return public_projector(state.latents, state.parameters.dims)
    assert state.bounds is not None
    solver = cast(Literal["auto", "full"], state.parameters.solver)
    return make_projector(state.bounds, state.latents, state.parameters.dims, solver)


def _ask_cluster(state: State, present: Sequence[DeviceId]) -> Plan:
    task = Train(
        state.models[GLOBAL],
        training(state.parameters),
        GLOBAL,
        _projector(state),
        state.parameters.classes,
        privacy(state.parameters),
        private_training(state.parameters),
    )
    mark = " (privacy=paper: not private)" if state.parameters.privacy == "paper" else ""
    return Plan(dict.fromkeys(present, task), _title(state, f"devices describe their data{mark}"))


def _take_cluster(state: State, reports: Sequence[Report]) -> State:
    described = {
        device: update.descriptor for device, update in trained(reports).items() if update.descriptor
    }
    encoder = state.models[GLOBAL]
    clustering, assignments = form_clusters(
        state.parameters, state.progress + 1, encoder, _projector(state), described
    )
    state = replace(
        state,
        clustering=clustering,
        assignments=assignments,
        models=dict.fromkeys(clustering.names, encoder),
        guard=state.guard.split(GLOBAL, clustering.names),
    )
    return _aggregate(state, reports)


# -- clustered training -------------------------------------------------------------------------------------


def _ask_clustered(state: State, present: Sequence[DeviceId]) -> Plan:
    clustering, settings = _clustering(state), training(state.parameters)
    private = private_training(state.parameters)
    describe = Describe(
        clustering.encoder, clustering.projector, state.parameters.classes, privacy(state.parameters)
    )

    def task(device: DeviceId) -> Message:
        cluster = state.assignments.get(device)
        if cluster is None:
            return describe
        if state.parameters.mixing == "soft":
            weights = mixing_weights(clustering, device)
            models = tuple(state.models[name] for name in weights)
            return TrainMixture(models, tuple(weights.values()), settings, cluster, private)
        return Train(state.models[cluster], settings, cluster, private=private)

    return Plan({device: task(device) for device in present}, _title(state, "one model for each cluster"))


def _take_clustered(state: State, reports: Sequence[Report]) -> State:
    clustering, assignments = _clustering(state), dict(state.assignments)
    for report in reports:
        if isinstance(report.message, Described):
            clustering, cluster = add_device(clustering, report.device, report.message.descriptor)
            assignments[report.device] = cluster
    if not trained(reports):  # only late joiners answered: nobody has trained, so the round is still to come
        return replace(state, clustering=clustering, assignments=assignments)
    return _aggregate(replace(state, clustering=clustering, assignments=assignments), reports)


def _aggregate(state: State, reports: Sequence[Report]) -> State:
    """The next model of each cluster from its devices' updates; one without updates keeps its model."""
    clustering = _clustering(state)
    shares: Mapping[DeviceId, Mapping[ModelKey, float]] = {
        device: mixing_weights(clustering, device)
        if state.parameters.mixing == "soft"
        else {state.assignments[device]: 1.0}
        for device in trained(reports)
    }
    models, guard = next_models(
        state.models,
        reports,
        state.parameters.aggregation,
        state.guard,
        lambda device, key: shares[device].get(key, 0.0),
    )
    progress = state.progress + 1
    phase = "clustered"
    if progress >= state.parameters.rounds:
        phase = "evaluate" if state.parameters.evaluate else "done"
    return replace(state, models=models, guard=guard, progress=progress, phase=phase)


# -- the end ------------------------------------------------------------------------------------------------


def _ask_evaluate(state: State, present: Sequence[DeviceId]) -> Plan:
    assigned = {device: state.assignments[device] for device in present if device in state.assignments}
    tasks = {device: Evaluate(state.models[cluster], "test", cluster) for device, cluster in assigned.items()}
    return Plan(tasks, "final evaluation")


def _take_evaluate(state: State, reports: Sequence[Report]) -> State:
    return replace(state, metrics={**state.metrics, **metrics_of(reports)}, phase="done")


def _clustering(state: State) -> Clustering:
    assert state.clustering is not None
    return state.clustering


def _title(state: State, what: str) -> str:
    return f"training round {state.progress + 1} of {state.parameters.rounds}: {what}"


PHASES: Mapping[
    str,
    tuple[Callable[[State, Sequence[DeviceId]], Plan], Callable[[State, Sequence[Report]], State]],
] = {
    "train": (_ask_train, _take_train),
    "measure": (_ask_measure, _take_measure),
    "bounds": (_ask_bounds, _take_bounds),
    "cluster": (_ask_cluster, _take_cluster),
    "clustered": (_ask_clustered, _take_clustered),
    "evaluate": (_ask_evaluate, _take_evaluate),
}
