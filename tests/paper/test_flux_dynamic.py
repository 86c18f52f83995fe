"""FLUX-dynamic (Fenoglio et al. 2025, section 5): clusters form again when data drift, and only then. FLUX
gives them up when the data of most devices do."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from shoal.core.algorithm import Algorithm, Report, find
from shoal.core.algorithms.flux import clustering
from shoal.core.algorithms.flux import server as server_half
from shoal.core.algorithms.flux.clustering import regrouped
from shoal.core.algorithms.flux.state import State
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.engine.events import Effect, Save
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import Describe, Described
from shoal.core.exchange.parts import ClusterAssignment, Descriptor
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.guard import STRIKES, Guard
from shoal.simulation.fleet import Holding, numbered
from shoal.simulation.simulated import SimulatedDevices
from tests.core.engine.test_checkpoint import Shelf
from tests.fleet import contexts, data, first_model, learner

SMALL = {
    "schedule": "constant",
    "rounds": 8,
    "epochs": 2,
    "learning_rate": 0.1,
    "batch_size": 16,
    "privacy": "off",
    "inputs": "raw",
}
BEFORE, AFTER = (0, 90, 0, 90, 0, 90), (0, 0, 90, 90, 0, 90)
MIXED = (90, 180, 180, 0, 270, 180)
MOVES = 6
"""Training tasks after which the second and the third device have exchanged their rotations."""


def holding(number: int, later: tuple[int, ...]) -> Holding:
    def stage(index: int) -> Dataset:
        return data(number, (later if index else BEFORE)[number : number + 1])

    return Holding(stage, (0, MOVES), stage(1), 0)


def at_work(later: tuple[int, ...], card: Algorithm | None = None) -> SimulatedDevices:
    fleet = numbered([holding(number, later) for number in range(6)])
    return SimulatedDevices(card or find("flux")[0], fleet, learner(), "cpu", 3)


def run(later: tuple[int, ...], name: str = "flux-dynamic", **more: Any) -> list[State]:
    """The states of a run on six devices with digits turned by BEFORE, and by `later` after some rounds."""
    card, changes = find(name)
    states = list[State]()

    def watch(effect: Effect) -> None:
        if isinstance(effect, Save):
            assert isinstance(effect.state, State)
            states.append(effect.state)

    devices = at_work(later, card)
    first = server_half.start(first_model(), card.configure("default", {**SMALL, **changes, **more}))
    outcome = simulate(server_half, first, devices.calls(), RoundPolicy(minimum=6), 3, watch=watch)
    assert not outcome.failed
    return states


@pytest.fixture(scope="module")
def moved() -> list[State]:
    return run(AFTER)


def found(state: State) -> list[str]:
    return [key for _, key in sorted(state.assignments.items())]


def accuracy(state: State) -> float:
    return float(np.mean([each.accuracy for each in state.metrics.values()]))


def test_devices_that_drift_are_noticed_in_the_round_when_they_do_and_grouped_anew(
    moved: list[State],
) -> None:
    clustered = [state for state in moved if state.clustering is not None]
    assert all(adjusted_rand_score(BEFORE, found(s)) == 1.0 for s in clustered if s.progress < MOVES)
    last = moved[-1]
    assert adjusted_rand_score(AFTER, found(last)) == 1.0
    assert last.facts["reclustered"] == 1
    assert last.facts["clustering_round"] == MOVES
    assert last.remarks[0] == (
        f"after round {MOVES} the data of device-001, device-002 had drifted: the clusters were formed again"
    )


def test_a_new_cluster_goes_on_with_the_model_of_the_nearest_old_one(moved: list[State]) -> None:
    after = next(state for state in moved if state.drift)
    before = moved[moved.index(after) - 1]
    for device in ("device-000", "device-003"):  # their data stayed as they were
        old, new = (digest(state.models[state.assignments[device]]) for state in (before, after))
        assert old == new
    assert after.models.keys() == set(found(after))


@pytest.mark.parametrize("grouping", ["likelihood", "density"])
def test_where_all_devices_exchange_their_data_each_model_goes_with_its_data(
    moved: list[State], grouping: str
) -> None:
    state = moved[-1]
    clustering, before = state.clustering, state.assignments
    assert clustering is not None
    parameters = replace(state.parameters, grouping=grouping)
    partners = {"device-000": "device-002", "device-001": "device-003", "device-004": "device-005"}
    partners |= {other: device for device, other in partners.items()}
    described = {device: clustering.described[other] for device, other in partners.items()}
    _, after, sources = regrouped(parameters, clustering, before, state.progress, described)
    models = {device: sources[cluster] for device, cluster in after.items()}
    assert models == {device: before[other] for device, other in partners.items()}


def test_it_is_worth_it(moved: list[State]) -> None:
    assert accuracy(moved[-1]) > accuracy(run(AFTER, "flux")[-1]) + 0.1


def test_data_that_stay_never_trigger() -> None:
    last = run(BEFORE)[-1]
    assert last.facts["reclustered"] == 0
    assert last.remarks == ()


def test_other_data_of_the_same_distribution_do_not_trigger_and_those_of_another_do(
    moved: list[State],
) -> None:
    state = moved[-1]
    clustering = state.clustering
    assert clustering is not None
    task = Describe(clustering.encoder, clustering.projector, state.parameters.classes)
    devices = at_work(AFTER)
    fresh = {
        "device-000": data(8, (0,)),
        "device-003": data(9, (90,)),
        "device-004": data(10, (90,)),
    }
    described = {}
    for device, own in fresh.items():
        context = devices.context("device-000", own)
        described[device] = standard.perform(task, context).descriptor  # type: ignore[attr-defined]
    before = state.assignments
    _, after, _ = regrouped(state.parameters, clustering, before, state.progress, described)
    assert [device for device, cluster in after.items() if cluster != before[device]] == ["device-004"]


def test_a_device_that_is_away_is_taken_to_be_as_it_was(moved: list[State]) -> None:
    before = moved[moved.index(next(state for state in moved if state.drift)) - 1]
    plan = server_half.plan(before, ["device-001"])
    assert plan is not None
    fleet = numbered([holding(1, AFTER)])
    devices = SimulatedDevices(find("flux")[0], fleet, learner(), "cpu", 3)
    context = devices.context("device-000", data(0, (0,)))
    after = server_half.reduce(
        before, [Report("device-001", standard.perform(plan.tasks["device-001"], context))]
    )
    assert adjusted_rand_score((0, 0, 0, 90, 0, 90), found(after)) == 1.0


def watched(state: State, given: Mapping[str, Descriptor]) -> State:
    """The state after these devices have described their data again."""
    reports = [Report(device, Described(one, 90)) for device, one in sorted(given.items())]
    return server_half.reduce(replace(state, phase="watch"), reports)


def described(state: State, *degrees: int) -> list[Descriptor]:
    """Descriptors of samples that no device has had, turned by these degrees."""
    assert state.clustering is not None
    task = Describe(state.clustering.encoder, state.clustering.projector, state.parameters.classes)
    made = (at_work(AFTER).context("device-000", data(8, (turn,))) for turn in degrees)
    return [standard.perform(task, context).descriptor for context in made]  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def deserted(moved: list[State]) -> State:
    """All devices whose data were not turned have data now that are."""
    last = moved[-1]
    assert last.clustering is not None
    turned = last.clustering.described["device-003"]
    return watched(last, dict.fromkeys(("device-000", "device-001", "device-004"), turned))


def test_a_device_that_comes_while_others_describe_their_data_again_has_a_cluster(
    moved: list[State],
) -> None:
    last = moved[-1]
    (sample,) = described(last, 90)
    state = watched(last, {"late": sample})
    assert state.assignments == {**last.assignments, "late": last.assignments["device-003"]}
    assert state.drift == last.drift
    (strange,) = described(last, 180)
    fell = Guard(histories={key: LossHistory(rounds=2, falls=1) for key in state.models})
    alone = watched(replace(state, guard=fell), {"later": strange})
    begun = alone.assignments["later"]
    assert begun in alone.models.keys() - last.models.keys()
    assert {alone.guard.rate(key) for key in alone.models} == {0.5}, "it goes on with such a model"
    joined = server_half.reduce(state, [Report("third", Described(sample, 90))])
    assert joined.assignments["third"] == last.assignments["device-003"]


def test_a_cluster_without_devices_keeps_its_model_for_data_that_come_back(
    moved: list[State], deserted: State
) -> None:
    last = moved[-1]
    home = last.assignments["device-000"]
    assert {*deserted.assignments.values()} == {last.assignments["device-003"]}
    assert deserted.models.keys() == last.models.keys()
    assert digest(deserted.models[home]) == digest(last.models[home])
    assert (deserted.facts["clusters"], deserted.facts["kept"]) == (1, 1)
    back, other = described(last, 0), described(last, 180)
    again = watched(deserted, {"device-001": back[0]})
    assert again.assignments["device-001"] == home
    assert digest(again.models[home]) == digest(last.models[home])
    assert "kept" not in again.facts
    joined = server_half.reduce(
        replace(deserted, phase="clustered"), [Report("late", Described(back[0], 90))]
    )
    assert joined.assignments["late"] == home
    assert "kept" not in joined.facts
    strange = watched(deserted, {"device-001": other[0]})
    assert strange.assignments["device-001"] not in last.models
    assert strange.facts["kept"] == 1


def test_newcomers_are_told_of_a_cluster_without_devices(moved: list[State], deserted: State) -> None:
    home, (sample,) = moved[-1].assignments["device-000"], described(deserted, 0)
    answer = server_half.place(deserted, sample)
    assert isinstance(answer, ClusterAssignment)
    assert (answer.cluster, answer.abstained) == (home, False)
    lies, lay = server_half.densities(deserted), server_half.densities(moved[-1])
    assert lies is not None
    assert lay is not None
    index = [*deserted.models].index(home)
    far = [np.abs(lies.clusters["means"][index] - means).sum() for means in lay.clusters["means"]]
    assert np.argmin(far) == index, "its data lie where those of its devices lay"
    fewer = server_half.without(deserted, "device-005")
    assert fewer.clustering is not None
    assert "device-005" not in fewer.clustering.described
    assert [*dict(fewer.clustering.kept)] == [home]


def test_of_clusters_without_devices_those_that_lost_them_first_go_first(
    moved: list[State], deserted: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = moved[-1].assignments["device-000"]
    (strange,) = described(deserted, 180)
    away = watched(deserted, dict.fromkeys(sorted(deserted.assignments), strange))
    assert away.clustering is not None
    left = deserted.assignments["device-000"]
    assert [*dict(away.clustering.kept)] == [left, lost]
    stored = Shelf().trip(State, away)
    assert [*dict(stored.clustering.kept)] == [left, lost]
    monkeypatch.setattr(clustering, "KEPT", 1)
    away = watched(deserted, dict.fromkeys(sorted(deserted.assignments), strange))
    assert away.clustering is not None
    assert [*dict(away.clustering.kept)] == [left]
    assert away.models.keys() == {left, *away.assignments.values()}


def test_where_groups_become_one_those_clusters_stay_whose_data_are_gone(
    moved: list[State], monkeypatch: pytest.MonkeyPatch
) -> None:
    state, (strange,) = moved[-1], described(moved[-1], 180)
    monkeypatch.setattr(clustering, "find_groups", lambda *_: np.zeros(6, np.int64))
    for given, kept in (({}, 0), (dict.fromkeys(state.assignments, strange), 2)):
        after = watched(state, given)
        assert (after.facts["clusters"], after.facts.get("kept", 0)) == (1, kept)


def test_one_device_that_alternates_frees_none_and_hides_no_fall(moved: list[State]) -> None:
    before = moved[moved.index(next(state for state in moved if state.drift)) - 1]
    held, held_in = "device-003", before.assignments["device-003"]
    histories = {
        key: LossHistory(first=2.0, best=0.1, last=0.1, rounds=5, knows=True) for key in before.models
    }
    state = replace(before, guard=Guard(strikes={held_in: {held: STRIKES}}, histories=histories))
    clustering = state.clustering
    assert clustering is not None
    own, other = (clustering.described[device] for device in ("device-001", "device-000"))
    for descriptor, drifts in ((other, 1), (own, 2), (other, 3)):
        state = server_half.reduce(
            replace(state, phase="watch"), [Report("device-001", Described(descriptor, 90))]
        )
        assert len(state.drift) == drifts
        assert state.guard.held(held_in) == {held}
        assert state.guard.histories == histories


@pytest.mark.parametrize("more", [{}, {"privacy": "strict"}], ids=["described", "undescribed"])
def test_flux_trains_one_model_again_where_the_data_of_most_have_moved(more: dict[str, Any]) -> None:
    states = run(MIXED, "flux", **more, rounds=12)
    before = [state for state in states if state.progress == MOVES and state.phase != "evaluate"]
    assert adjusted_rand_score(BEFORE, found(before[-1])) == 1.0
    last = states[-1]
    assert (last.clustering is None) == bool(more)
    assert len(last.models) == len({*found(last)}) == len(last.drift) == 1
    assert last.clustering is None or last.clustering.names == (*last.models,)


@pytest.mark.parametrize("falls", [False, True])
def test_flux_keeps_its_groups_where_it_is_the_models_that_fail(falls: bool) -> None:
    states = run(MIXED, "flux")
    before = next(state for state in states if state.progress == MOVES)
    best = LossHistory(first=1.0, best=0.1, last=0.1, rounds=MOVES, knows=True)
    before = replace(before, guard=Guard(histories=dict.fromkeys(before.models, best) if falls else {}))
    plan = server_half.plan(before, sorted(before.assignments))
    assert plan is not None
    moved = contexts(find("flux")[0], [Views.of(holding(number, MIXED).stage(1)) for number in range(6)])
    reports = [
        Report(device, perform(plan.tasks[device], MOVES))
        for device, perform in zip(plan.tasks, moved.values(), strict=True)
    ]
    after = server_half.reduce(before, reports)
    assert (len(after.models), len(after.drift)) == ((2, 0) if falls else (1, 1))


def test_flux_keeps_its_groups_where_few_have_moved_or_none() -> None:
    for later in (AFTER, BEFORE):
        last = run(later, "flux")[-1]
        assert adjusted_rand_score(BEFORE, found(last)) == 1.0
        assert last.drift == ()


def test_the_papers_noise_hides_drift_so_both_are_refused() -> None:
    card, changes = find("flux-dynamic")
    wrong = {**changes, "privacy": "paper", "epsilon": 1.0, "grouping": "density"}
    with pytest.raises(ConfigError, match="watch=0"):
        server_half.start(first_model(), card.configure("default", wrong))
    with pytest.raises(ConfigError, match="watch"):
        server_half.start(first_model(), replace(card.parameters(), watch=-1))
