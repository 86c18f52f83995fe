"""FEROMA (Li et al. 2026), section by section, on a real fleet of rotated digits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import Report, densities
from shoal.core.algorithms.feroma import ALGORITHM, Parameters
from shoal.core.algorithms.feroma import server as server_half
from shoal.core.algorithms.feroma.memory import ABSENCE
from shoal.core.algorithms.feroma.state import State
from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import Refused
from shoal.core.exchange.messages import Describe, Described, LatentsCounted, Train, Trained
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.guard import Guard
from shoal.core.server_kit.clustered import GLOBAL
from tests.fleet import data, first_model
from tests.paper.feroma_fleet import (
    LIKE,
    SMALL,
    Seen,
    answered,
    context,
    owner,
    placed,
    profile,
    row,
    run,
    scaler,
    usual,
)


@pytest.fixture(scope="module")
def seen() -> Seen:
    return usual()


@pytest.fixture(scope="module")
def finished(seen: Seen) -> State:
    return seen.states[-1]


# -- Algorithm 1 ------------------------------------------------------------------------------------------


def test_the_order_of_a_run(seen: Seen) -> None:
    of = "training round"
    rounds = [
        (f"{of} {n} of 6: devices describe their data", f"{of} {n} of 6: from models of like data")
        for n in range(2, 7)
    ]
    assert seen.titles == [
        f"{of} 1 of 6: one model for all",
        "bounds of the latent values",
        *(title for pair in rounds for title in pair),
        "after the last round: devices describe their data",
        "final evaluation",
    ]


def test_the_first_mapped_round_starts_from_the_warm_up_s_model(seen: Seen) -> None:
    first = next(state for state in seen.states if state.phase == "mixed")
    plan = server_half.plan(first, ["d0", "d1"])
    assert plan is not None
    assert all(task.model is first.models[GLOBAL] for task in plan.tasks.values())  # type: ignore[attr-defined]


def test_after_a_fall_in_the_warm_up_devices_go_on_with_half_the_rate(seen: Seen) -> None:
    before = next(state for state in seen.states if state.phase == "mixed" and state.progress == 1)
    fell = replace(before, guard=Guard(histories={GLOBAL: LossHistory(rounds=1, falls=1)}))

    def rate(state: State) -> float:
        plan = server_half.plan(state, ["d0"])
        assert plan is not None
        task = plan.tasks["d0"]
        assert isinstance(task, Train)
        return task.settings.learning_rate

    assert rate(fell) == 0.5 * rate(before)


def test_line_13_each_device_starts_from_the_models_of_devices_with_like_data(seen: Seen) -> None:
    mixed = [state for state in seen.states if state.phase == "mixed" and state.rows]
    assert len(mixed) == 4
    for state in mixed:
        for device, weights in state.starts.items():
            share = sum(w for key, w in weights.items() if state.rows[key].device in LIKE[device])
            assert share > 0.8


def test_line_13_is_the_product_of_the_weights_and_the_models_by_device(seen: Seen) -> None:
    state = [state for state in seen.states if state.phase == "mixed" and state.rows][-1]
    plan = server_half.plan(state, sorted(LIKE))
    assert plan is not None
    keys = sorted(state.rows)
    matrix = np.array([[state.starts[device].get(key, 0.0) for key in keys] for device in sorted(LIKE)])
    for name, like in first_model().items():
        stacked = np.stack([state.models[key][name].astype(np.float64).ravel() for key in keys])
        found = [plan.tasks[device].model[name].ravel() for device in sorted(LIKE)]  # type: ignore[attr-defined]
        np.testing.assert_allclose(np.stack(found), matrix @ stacked, atol=1e-6)
        assert found[0].dtype == like.dtype


def test_models_and_profiles_are_kept_by_device_in_whatever_order_reports_stand(seen: Seen) -> None:
    state = [state for state in seen.states if state.phase == "mixed"][-1]
    reports = [Report(device, _trained(value)) for value, device in enumerate(sorted(state.profiles))]
    for order in (reports, reports[::-1]):
        after = server_half.reduce(state, order)
        for value, device in enumerate(sorted(state.profiles)):
            key = after.assignments[device]
            assert after.rows[key].device == device
            assert after.rows[key].profile is state.profiles[device]
            assert all((array == value).all() for array in after.models[key].values())


def _trained(value: float) -> Trained:
    model = {name: np.full_like(array, value) for name, array in first_model().items()}
    return Trained(model, 10, 0.5)


def test_devices_end_with_the_mean_of_like_models_and_the_paper_s_with_their_own(finished: State) -> None:
    assert finished.phase == "done"
    assert set(finished.metrics) == set(LIKE)
    alone = run(preset="paper", dims=5).state
    accuracy = [np.mean([each.accuracy for each in state.metrics.values()]) for state in (finished, alone)]
    assert min(accuracy) > 0.6
    assert not alone.sources
    for device in LIKE:
        own = finished.assignments[device]
        assert digest(finished.models[own]) != digest(finished.sources[own])


def test_devices_with_like_data_end_as_one_cluster_of_which_newcomers_are_told_where_its_data_lie(
    seen: Seen, finished: State
) -> None:
    before = next(state for state in reversed(seen.states) if state.starts)
    assert len(set(before.assignments.values())) == len(LIKE)
    for device, like in LIKE.items():
        assert {each for each in LIKE if finished.assignments[each] == finished.assignments[device]} == like
    assert set(finished.models) - {GLOBAL} == set(finished.rows) == set(finished.assignments.values())
    assert {row.examples for row in finished.rows.values()} == {
        sum(before.rows[before.own(device)].examples for device in LIKE[first]) for first in ("d0", "d1")
    }
    assert finished.descriptors.keys() == LIKE.keys(), "the map of the run shows all devices"
    where = densities(server_half, finished)
    assert where is not None
    assert len(where.clusters["shares"]) == 2

    left = server_half.without(finished, "d2")
    assert left.descriptors.keys() == LIKE.keys() - {"d2"}
    first = next(row.device for row in finished.rows.values())
    assert server_half.without(finished, first).descriptors.keys() == LIKE.keys(), "of a model"


def test_a_device_that_was_given_another_one_s_model_has_that_one_s_cluster_at_the_end(seen: Seen) -> None:
    last = [state for state in seen.states if state.phase == "profile"][-1]
    assert last.progress == last.rounds
    state = replace(last, assignments={**last.assignments, "away": last.assignments["d2"]})
    plan = server_half.plan(state, sorted(LIKE))
    assert plan is not None
    reports = [Report(name, answered(task, data(int(name[1])))) for name, task in plan.tasks.items()]
    after = server_half.reduce(state, reports)
    assert after.assignments["away"] == after.assignments["d2"] == last.assignments["d0"]
    assert {*after.assignments.values()} <= after.models.keys()


# -- devices that come and go -----------------------------------------------------------------------------


def test_a_late_joiner_describes_itself_and_then_starts_from_like_models(seen: Seen) -> None:
    state = [state for state in seen.states if state.phase == "mixed"][-1]
    plan = server_half.plan(state, ["d0", "late"])
    assert plan is not None
    assert isinstance(plan.tasks["d0"], Train)
    task = plan.tasks["late"]
    assert isinstance(task, Describe)
    after = server_half.reduce(state, [Report("late", answered(task, data(7)))])
    assert after.progress == state.progress, "no device trained, so the round is still to come"
    assert after.phase == "mixed"
    share = sum(w for key, w in after.starts["late"].items() if after.rows[key].device in LIKE["d1"])
    assert share > 0.8
    again = server_half.plan(after, ["late"])
    assert again is not None
    assert isinstance(again.tasks["late"], Train)


def test_a_device_that_stays_away_is_gone_and_its_distribution_is_not(seen: Seen) -> None:
    state = [state for state in seen.states if state.phase == "mixed"][-1]
    far = {name: np.full_like(array, 1.0) for name, array in first_model().items()}
    rows = {"gone": replace(row(0.0, round=0, device="away"), profile=profile(500.0))}
    rows |= {f"x{i}": row(float(i), 99, f"d{i}") for i in range(2)}
    state = replace(
        state,
        parameters=replace(state.parameters, classes=2),
        encoder=replace(state.encoder, scaler=scaler(0.0, 500.0)),  # type: ignore[type-var]
        rows=rows,
        models={GLOBAL: far, **dict.fromkeys(rows, far)},
        assignments={"away": "gone", "d0": "x0", "d1": "x1"},
        profiles={"d0": profile(0.0)},
        starts={"d0": {"x0": 1.0}},
        progress=ABSENCE,
    )
    after = server_half.reduce(state, [Report("d0", _trained(0.0))])
    assert after.rows["gone"].device == ""
    assert after.assignments["away"] == "gone"
    forgetful = replace(state, parameters=replace(state.parameters, keep=0))
    after = server_half.reduce(forgetful, [Report("d0", _trained(0.0))])
    assert "gone" not in after.rows
    assert "gone" not in after.models
    assert after.assignments["away"] in after.rows


# -- appendix C: distributions that were seen once --------------------------------------------------------


def drifted(seen: Seen) -> State:
    """The end of a run in whose last round d1, d3 and d5 describe upright digits, like all others."""
    state = [state for state in seen.states if state.phase == "profile" and state.rows][-2]
    devices = {name: data(int(name[1]), angles=(0,)) for name in LIKE}
    for _ in range(2):
        plan = server_half.plan(state, sorted(devices))
        assert plan is not None
        state = server_half.reduce(
            state, [Report(name, answered(task, devices[name])) for name, task in sorted(plan.tasks.items())]
        )
    return state


def test_a_device_whose_data_drift_starts_from_those_who_had_such_data(seen: Seen) -> None:
    state = [state for state in seen.states if state.phase == "profile" and state.rows][-2]
    plan = server_half.plan(state, ["d1"])
    assert plan is not None
    after = server_half.reduce(state, [Report("d1", answered(plan.tasks["d1"], data(1, angles=(0,))))])
    share = sum(w for key, w in after.starts["d1"].items() if after.rows[key].device in LIKE["d0"])
    assert share > 0.8


def test_appendix_c_a_distribution_that_nobody_has_any_more_keeps_its_model_for_newcomers(seen: Seen) -> None:
    state = drifted(seen)
    kept = {key for key, each in state.rows.items() if not each.device}
    assert len(kept) == 1, "three rows of one distribution are one"
    answer = placed(state, Dataset(data(9).x))
    assert answer.cluster in kept
    assert not answer.abstained
    assert owner(state, placed(state, Dataset(data(8).x))) in LIKE


# -- section 3.2.2 and Algorithm 2: newcomers -------------------------------------------------------------


@pytest.mark.parametrize("number", [6, 7, 8, 9])
@pytest.mark.parametrize("measure", ["likeness", "euclidean"])
def test_algorithm_2_an_unlabelled_newcomer_gets_a_model_of_like_data(
    finished: State, number: int, measure: str
) -> None:
    state = replace(finished, parameters=replace(finished.parameters, distance_at_test=measure))
    answer = placed(state, Dataset(data(number).x))
    assert owner(state, answer) in LIKE[f"d{number % 2}"]
    assert not answer.abstained
    assert answer.distance < answer.runner_up_distance
    assert owner(state, replace(answer, cluster=answer.runner_up)) not in LIKE[f"d{number % 2}"]


def test_a_newcomer_unlike_anything_seen_is_told_so_and_the_paper_s_always_gets_a_model(
    finished: State,
) -> None:
    noise = Dataset(np.random.default_rng(0).uniform(0, 40, (60, 1, 8, 8)).astype(np.float32))
    answer = placed(finished, noise)
    assert answer.abstained
    assert "no device has had such data" in answer.reason
    lenient = replace(finished.parameters, as_published=True)
    assert not placed(replace(finished, parameters=lenient), noise).abstained


def test_a_run_that_has_mapped_nothing_yet_refuses_to_place() -> None:
    with pytest.raises(Refused, match="try again in a few rounds"):
        server_half.place(server_half.start(first_model(), Parameters()), None)


def test_a_run_in_which_no_device_can_be_described_says_so() -> None:
    """With a guarantee, devices with few samples answer without a profile, and there is nothing to map to."""
    parameters = Parameters(privacy="balanced", inputs="raw", warm_up=0.0)
    state = server_half.start(first_model(), parameters)
    counted = [Report(device, LatentsCounted(30)) for device in ("a", "b")]
    state = server_half.reduce(state, counted)
    few = [Report(device, Described(None, 20)) for device in ("a", "b")]
    with pytest.raises(Refused, match="no device has enough samples"):
        server_half.reduce(state, few)


# -- appendix E: a few labels -----------------------------------------------------------------------------


def renamed(own: Dataset, group: int) -> Dataset:
    """The classes of group 1 go by exchanged names."""
    assert own.y is not None
    return Dataset(own.x, (own.y + 3 * group) % 10)


@pytest.fixture(scope="module")
def concepts() -> State:
    """d0, d2 and d4 call the digits by their names, the others by exchanged ones."""
    parameters = ALGORITHM.configure("default", {**SMALL, "labels_at_test": True})
    device_half = ALGORITHM.device()
    contexts = {f"d{n}": context(renamed(data(n, angles=(0,)), n % 2)) for n in range(6)}

    def device(own: DeviceContext) -> Any:
        return lambda message, seed: device_half.perform(message, own.for_task(seed))

    devices = {name: device(own) for name, own in contexts.items()}
    state = server_half.start(first_model(), parameters)
    return simulate(server_half, state, devices, RoundPolicy(minimum=6), 3).state  # type: ignore[return-value]


@pytest.mark.parametrize("group", [0, 1])
def test_appendix_e_a_few_labels_tell_what_images_alone_do_not(concepts: State, group: int) -> None:
    question = server_half.place(concepts, None)
    assert isinstance(question, Describe)
    assert question.classes == 10
    own = renamed(data(8, angles=(0,)), group)
    answer = placed(concepts, own)
    assert owner(concepts, answer) in LIKE[f"d{group}"]
    blind = replace(concepts, parameters=replace(concepts.parameters, labels_at_test=False))
    answer = placed(blind, Dataset(own.x))
    assert answer.abstained
    assert "labels_at_test" in answer.reason
