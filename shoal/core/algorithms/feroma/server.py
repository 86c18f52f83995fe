"""The server half of FEROMA. Read `PHASES` first: what each phase asks for, and what it does with the
answers.

The product of eq. 5, devices by models, is never in memory as a whole: a device's start is its row of weights
times the files of the models that it is mapped to, computed tensor by tensor when it is sent.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.core.algorithm import Basis, Plan, Report, most_rounds
from shoal.core.algorithm.training import private_training
from shoal.core.algorithms.feroma import Parameters, two_sample
from shoal.core.algorithms.feroma.mapping import grouped, mapped, mean_of, with_like_data
from shoal.core.algorithms.feroma.mapping import place as place_newcomer
from shoal.core.algorithms.feroma.memory import absent, reassigned, remembered
from shoal.core.algorithms.feroma.messages import Profile
from shoal.core.algorithms.feroma.state import Encoder, Row, State
from shoal.core.errors import Refused
from shoal.core.exchange.choosing import ClusterDensities
from shoal.core.exchange.messages import Describe, Message, Train
from shoal.core.exchange.parts import ClusterAssignment, Descriptor
from shoal.core.exchange.tensors import Mixture
from shoal.core.server_kit import clustered, descriptors
from shoal.core.server_kit.aggregation.averaging import held_back
from shoal.core.server_kit.clustered import GLOBAL
from shoal.core.server_kit.estimates import estimate
from shoal.core.server_kit.fleet.densities import cluster_densities
from shoal.core.server_kit.frozen_encoder import (
    answers_of,
    ask_bounds,
    bounded,
    describing,
    merged_bounds,
    projector_of,
    with_classes,
)
from shoal.core.server_kit.standard import trained
from shoal.core.types import DeviceId, ModelKey, Tensors


def start(model: Tensors, parameters: Parameters) -> State:
    first = "train" if warm_up(parameters) else "bounds"
    return State(parameters=parameters, models={GLOBAL: model}, phase=first)


def warm_up(parameters: Parameters) -> int:
    """Rounds of FedAvg. At least one round is left to map profiles in."""
    return int(parameters.warm_up * most_rounds(parameters))


def place(state: State, descriptor: Descriptor | None) -> ClusterAssignment | Describe:
    if not state.rows:
        raise Refused("the run has no models for different data yet", "try again in a few rounds")
    encoder, parameters = _encoder(state), state.parameters
    if descriptor is None:
        classes = parameters.classes if parameters.labels_at_test else 0
        return Describe(encoder.model, encoder.projector, classes, parameters.asked_of_newcomers)
    assert encoder.scaler is not None
    return place_newcomer(parameters, descriptor, state.rows, state.progress, encoder.scaler)


def densities(state: State) -> ClusterDensities | None:
    """For newcomers that choose themselves. Where the size of the noise is unknown, no density is right."""
    if state.encoder is None or not state.rows or state.parameters.asked_privacy.rules.unknown_noise:
        return None
    names = [key for key in state.models if key != GLOBAL]
    # No device has the name of a row without one, which begins with a space.
    rows = {row.device or f" {key}": (key, row.profile) for key, row in state.rows.items()}
    described = {**state.profiles, **{name: profile for name, (_, profile) in rows.items()}}
    homes = {**state.assignments, **{name: key for name, (key, _) in rows.items()}}
    found = cluster_densities(described, homes, names)
    return None if found is None else ClusterDensities(state.encoder.model, state.encoder.projector, found)


def without(state: State, device: DeviceId) -> State:
    """The description of a model stays, by which newcomers are placed."""
    if device not in state.profiles:
        return state
    profiles = {each: one for each, one in state.profiles.items() if each != device}
    starts = {each: one for each, one in state.starts.items() if each != device}
    return replace(state, profiles=profiles, starts=starts)


# -- warm-up: train, bounds ---------------------------------------------------------------------------------


def _ask_train(state: State, present: Sequence[DeviceId]) -> Plan:
    return clustered.ask_all(state, present, clustered.train_task(state, state.models[GLOBAL], GLOBAL))


def _take_train(state: State, reports: Sequence[Report]) -> State:
    progress = state.progress + 1
    phase = "bounds" if progress >= warm_up(state.parameters) else "train"
    return replace(clustered.averaged(state, reports), progress=progress, phase=phase)


def _ask_bounds(state: State, present: Sequence[DeviceId]) -> Plan:
    return ask_bounds(state, present) if state.basis is None else _ask_profile(_with_encoder(state), present)


def _with_encoder(state: State) -> State:
    """The state with the encoder of an earlier run, by which devices have described their data before."""
    assert state.basis is not None
    parameters = state.parameters.with_classes(state.basis.classes)
    return replace(state, parameters=parameters, encoder=Encoder(state.basis.encoder, state.basis.projector))


def _take_bounds(state: State, reports: Sequence[Report]) -> State:
    if state.basis is not None:
        return _take_profile(_with_encoder(state), reports)
    state = with_classes(state, reports)
    bounds, latents = merged_bounds(reports, state.parameters.asked_privacy)
    projector = projector_of(bounds, latents, state.parameters)
    encoder = Encoder(state.models[GLOBAL], projector)
    basis = Basis.of(encoder.model, projector, state.parameters)
    return replace(state, bounds=bounds, encoder=encoder, basis=basis, phase="profile")


# -- every round: profile, mixed ----------------------------------------------------------------------------


def _ask_profile(state: State, present: Sequence[DeviceId]) -> Plan:
    return Plan(dict.fromkeys(present, _describe(state)), _title(state, describing(state.parameters)))


def _describe(state: State) -> Describe:
    encoder, parameters, asked = _encoder(state), state.parameters, state.parameters.asked_privacy
    whole = parameters.profile_part == "train" and not parameters.masks
    if asked.calibrated or whole:
        return Describe(encoder.model, encoder.projector, parameters.classes, asked)
    part, masks = parameters.profile_part, parameters.masks
    return Profile(encoder.model, encoder.projector, parameters.classes, asked, part, masks)


def _take_profile(state: State, reports: Sequence[Report]) -> State:
    profiles, state = _heard(state, reports)
    state = replace(state, encoder=_fitted(state, profiles), profiles=profiles, phase="mixed")
    over = state.progress >= state.rounds
    state = replace(state, starts=_mapped(state, profiles, served=over))
    return _serve(state) if over else state


def _ask_mixed(state: State, present: Sequence[DeviceId]) -> Plan:
    describe, settings = _describe(state), clustered.settings(state, GLOBAL)
    private = private_training(state.parameters)

    def task(device: DeviceId) -> Message:
        if device not in state.profiles:
            return describe
        return Train(_start(state, device), settings, state.own(device) or GLOBAL, private=private)

    return Plan({device: task(device) for device in present}, _title(state, "from models of like data"))


def _take_mixed(state: State, reports: Sequence[Report]) -> State:
    joined, state = _heard(state, reports)
    starts = {**state.starts, **_mapped(state, joined)}
    updates = trained(reports)
    if not updates:  # only late joiners answered: no device has trained, so the round is still to come
        return replace(state, profiles={**state.profiles, **joined}, starts=starts)
    bases = {device: _start(state, device) for device in updates}
    alike = with_like_data({device: state.profiles[device] for device in updates})
    apart, guard = held_back(bases, reports, state.parameters.aggregation, state.guard, alike)
    state = replace(state, progress=state.progress + 1, guard=guard)
    lost = dict[ModelKey, Row]()
    for device, update in updates.items():
        state, before = _with_row(
            state, device, update.model, update.examples, state.profiles[device], device in apart
        )
        lost |= before
    state = _tidied(state, lost)
    last = state.progress >= state.rounds
    phase = "profile" if not last or state.parameters.served == "mixed" else clustered.end(state)
    return replace(state, profiles={}, starts={}, phase=phase)


def _with_row(
    state: State, device: DeviceId, model: Tensors, examples: int, profile: Descriptor, apart: bool
) -> tuple[State, dict[ModelKey, Row]]:
    """The state with a device's row after it has trained; and its former row, without an owner, if its data
    have changed."""
    rows, models, made, own = dict(state.rows), dict(state.models), state.made, state.own(device)
    lost = dict[ModelKey, Row]()
    if own and float(two_sample.between([profile], [rows[own].profile])[0, 0]) > 1.0:
        kept, made = f"m{made}", made + 1
        lost[kept], models[kept] = replace(rows[own], device=""), models[own]
    if not own:
        own, made = f"m{made}", made + 1
    rows[own], models[own] = Row(profile, examples, state.progress, device, apart), model
    assignments = {**state.assignments, device: own}
    return replace(state, rows=rows, models=models, made=made, assignments=assignments), lost


def _tidied(state: State, lost: Mapping[ModelKey, Row]) -> State:
    """The state without the rows that are not kept, and without their models. lost: rows that no device has
    any more, in addition to those in the state."""
    parameters = state.parameters
    away = absent(state.rows, state.progress)
    living = {key: row for key, row in state.rows.items() if row.device and key not in away}
    ownerless = {key: replace(row, device="") for key, row in state.rows.items() if key not in living}
    rows = {**living, **remembered({**ownerless, **lost}, living, parameters.keep)}
    gone = {key: row for key, row in state.rows.items() if key not in rows}
    models = {key: model for key, model in state.models.items() if key in rows or key == GLOBAL}
    assignments = reassigned(state.assignments, gone, rows)
    return replace(state, rows=rows, models=models, assignments=assignments)


# -- the end ------------------------------------------------------------------------------------------------


def _serve(state: State) -> State:
    """Each group of devices with like data gets one model: the mean of those that its devices would start
    another round from."""
    sources, profiles, lost = state.models, state.profiles, dict[ModelKey, Row]()
    apart = {row.device for row in state.rows.values() if row.held_back}
    groups = grouped(profiles, apart)
    shared = [mean_of([state.starts[device] for device in group]) for group in groups]
    starts = {device: each for group, each in zip(groups, shared, strict=True) for device in group}
    state = replace(state, starts=starts)
    served = {device: _start(state, device) for device in profiles}
    for device, model in served.items():
        row = state.rows.get(state.own(device))
        examples = row.examples if row else max(int(estimate(profiles[device]).counts[0]), 1)
        state, before = _with_row(state, device, model, examples, profiles[device], device in apart)
        lost |= before
    state = _together(_tidied(state, lost), groups)
    return replace(state, sources=sources, starts={}, phase=clustered.end(state))


def _together(state: State, groups: Sequence[Sequence[DeviceId]]) -> State:
    """The state in which the devices of a group, whose models are the same, have the row of its first one.
    Devices that are away and had been given one of the other rows have it, too."""
    rows, models, moved = dict(state.rows), dict(state.models), dict[ModelKey, ModelKey]()
    for first, *others in groups:
        key = state.own(first)
        for own in map(state.own, others):
            rows[key] = replace(rows[key], examples=rows[key].examples + rows.pop(own).examples)
            del models[own]
            moved[own] = key
    assignments = {device: moved.get(key, key) for device, key in state.assignments.items()}
    return replace(state, rows=rows, models=models, assignments=assignments)


# -- helpers ------------------------------------------------------------------------------------------------


def _start(state: State, device: DeviceId) -> Tensors:
    """theta_k of eq. 5, not computed yet; the model of the warm-up if there is nothing to mix."""
    weights = state.starts[device]
    if not weights:
        return state.models[GLOBAL]
    if len(weights) == 1:
        return state.models[next(iter(weights))]
    return Mixture([(state.models[key], weight) for key, weight in sorted(weights.items())])


def _mapped(
    state: State, profiles: Mapping[DeviceId, Descriptor], served: bool = False
) -> dict[DeviceId, dict[ModelKey, float]]:
    scaler = _encoder(state).scaler
    assert scaler is not None
    return mapped(state.parameters, profiles, state.rows, state.progress, scaler, served)


def _fitted(state: State, profiles: Mapping[DeviceId, Descriptor]) -> Encoder:
    """The encoder with a scaler, which is fitted to the first profiles and then stays. Raises Refused if no
    device could be described."""
    encoder, parameters = _encoder(state), state.parameters
    if encoder.scaler is not None:
        return encoder
    if not profiles:
        raise Refused(
            f"no device has enough samples to be described with epsilon {parameters.asked_privacy.epsilon:g}",
            "use privacy=off, a larger epsilon (privacy=explicit), or flux, which then trains one model",
        )
    vectors = [descriptors.vector(one, parameters.classes) for _, one in sorted(profiles.items())]
    width = encoder.projector["components"].shape[0]
    noisy = parameters.asked_privacy.calibrated
    scaler = descriptors.BlockScaler.fit(vectors, width, parameters.as_published, noisy)
    return replace(encoder, scaler=scaler)


def _heard(state: State, reports: Sequence[Report]) -> tuple[dict[DeviceId, Descriptor], State]:
    """The profiles in these reports, and the state that knows which devices have too few samples for one."""
    answers = answers_of(reports)
    undescribed = descriptors.undescribed(state.undescribed, answers)
    profiles = bounded(state.bounds, _encoder(state).projector, answers)
    return profiles, replace(state, undescribed=undescribed)


def _encoder(state: State) -> Encoder:
    assert state.encoder is not None
    return state.encoder


def _title(state: State, what: str) -> str:
    after = state.progress >= state.rounds
    return f"after the last round: {what}" if after else clustered.title(state, what)


PHASES: clustered.Phases[State] = {
    "train": (_ask_train, _take_train),
    "bounds": (_ask_bounds, _take_bounds),
    "profile": (_ask_profile, _take_profile),
    "mixed": (_ask_mixed, _take_mixed),
}
plan, reduce = clustered.phased(PHASES)
