"""FedRC by its paper: Guo, Tang and Lin, ICML 2024. Each test names the section that it holds us to."""

from dataclasses import fields, replace

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from shoal.core.algorithms.fedrc import device as device_half
from shoal.core.algorithms.fedrc import server as server_half
from shoal.core.algorithms.fedrc.messages import Measured, Mix, Mixed, Weigh
from shoal.core.algorithms.fedrc.state import State, table
from shoal.core.algorithms.fedrc.weights import as_one, begun, log_shares, recalled, weighed
from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import tensors_of
from shoal.core.device_kit.mixture import responsibilities, train_share
from shoal.core.device_kit.training.train import train
from shoal.core.engine.simulate import Outcome
from shoal.core.errors import BadPayload, DeviceFault, Refused
from shoal.core.exchange.admit import admit_message
from shoal.core.exchange.messages import Message, Scored
from shoal.core.exchange.parts import ClusterAssignment, MixtureCounts
from shoal.core.exchange.tensors import digest
from shoal.core.types import Tensors
from tests.paper.fedrc_fleet import (
    DEVICES,
    LEARNER,
    MIX,
    MIXING,
    MODELS,
    SETTINGS,
    begin,
    concept,
    context,
    mixed,
    reported,
    run,
    unseen,
)


@pytest.fixture(scope="module")
def memories() -> dict[str, Tensors]:
    return {}


@pytest.fixture(scope="module")
def outcome(memories: dict[str, Tensors]) -> Outcome:
    return run("fedrc", memories=memories, rounds=20)


def found(outcome: Outcome) -> list[str]:
    return [outcome.state.assignments[f"d{number}"] for number in range(DEVICES)]


# -- section 4.3: the two steps -----------------------------------------------------------------------------


def test_eq_3_a_sample_belongs_to_models_by_their_last_weight_and_how_well_they_explain_it() -> None:
    losses = np.log([[2.0, 4.0], [4.0, 2.0]])
    gamma = responsibilities(losses, np.array([0.5, 0.5]))
    np.testing.assert_allclose(gamma, [[2 / 3, 1 / 3], [1 / 3, 2 / 3]])
    gamma = responsibilities(losses, np.array([0.8, 0.2]))
    np.testing.assert_allclose(gamma, [[8 / 9, 1 / 9], [2 / 3, 1 / 3]])


def test_eq_2_and_3_what_is_usual_with_a_model_explains_nothing() -> None:
    """Two models explain a label alike; with one of them the class is nine times as usual."""
    shares = log_shares(MixtureCounts(np.array([[0.9, 0.1], [0.1, 0.9]])), np.array([0, 1]))
    gamma = responsibilities(np.zeros((2, 2)), np.array([0.5, 0.5]), shares)
    np.testing.assert_allclose(gamma, [[0.1, 0.9], [0.9, 0.1]])


def test_eq_4_the_weights_are_the_means_and_count_in_the_next_round() -> None:
    losses = np.log([[2.0, 4.0], [2.0, 4.0]])
    once = weighed(begun(("a", "b"), "equal", 0), losses, None, replace(MIXING, floor=0.0))
    np.testing.assert_allclose(once.omega, [2 / 3, 1 / 3])
    again = weighed(once, losses, None, replace(MIXING, floor=0.0))
    np.testing.assert_allclose(again.omega, [4 / 5, 1 / 5])


def test_a_weight_counts_the_floor_at_least_and_the_papers_zero_stays_zero() -> None:
    losses = np.array([[0.0, 800.0]])
    for floor, back in ((0.0, 0.0), (0.2, 1.0)):
        mixing = replace(MIXING, floor=floor)
        gone = weighed(begun(("a", "b"), "equal", 0), losses, None, mixing)
        assert gone.omega.tolist() == [1.0, 0.0]
        assert weighed(gone, -losses, None, mixing).omega.tolist() == [1.0 - back, back]
    even = weighed(gone, np.zeros((1, 2)), None, replace(MIXING, floor=0.2))
    np.testing.assert_allclose(even.omega, [1 / 1.2, 0.2 / 1.2])


def test_eq_5_a_model_is_trained_on_the_samples_that_it_explains() -> None:
    ours = context(0)
    samples = ours.samples("train")
    same, _ = train_share(ours, MODELS[0], samples, np.zeros(len(samples)), SETTINGS)
    assert digest(same) == digest(MODELS[0])
    everything, _ = train_share(ours, MODELS[0], samples, np.ones(len(samples)), SETTINGS)
    network = ours.load(MODELS[0])
    train(LEARNER, network, samples, SETTINGS, ours.seed)
    for name, array in tensors_of(network).items():
        np.testing.assert_allclose(everything[name], array, atol=1e-6)


def test_eq_5_gamma_is_the_step_and_weighting_by_mass_takes_it_to_the_full_rate() -> None:
    """Equal models explain a third each. By mass, each is trained as if it were the only one."""
    alike = replace(MIX, models=(MODELS[0],) * 3)
    ours = context(0)
    samples = ours.samples("train")
    for weighting, share in (("samples", 1 / 3), ("mass", 1.0)):
        answer = mixed(replace(alike, mixing=replace(MIXING, weighting=weighting)))
        due, _ = train_share(ours, MODELS[0], samples, np.full(len(samples), share), SETTINGS)
        assert {digest(model) for model in answer.models} == {digest(due)}


def test_by_default_a_device_is_weighed_as_one_at_first_so_that_its_classes_stay_together() -> None:
    """Two samples, each better explained by another model: together by the first one, by half a nat."""
    losses = np.array([[0.0, 2.0], [1.0, 0.0]])
    each = weighed(begun(("a", "b"), "equal", 0), losses, None, MIXING)
    assert each.gamma is not None
    assert np.argmax(each.gamma, axis=1).tolist() == [0, 1]
    whole = as_one(begun(("a", "b"), "equal", 0), losses, None, MIXING)
    assert whole.gamma is not None
    due = 1.0 / (1.0 + np.exp(-3.0 * 0.5))
    np.testing.assert_allclose(whole.gamma, [[due, 1.0 - due]] * 2)
    np.testing.assert_allclose(whole.omega, [due, 1.0 - due])


def test_as_one_what_is_usual_explains_nothing_and_earlier_rounds_count_for_half() -> None:
    losses, shares = np.log([[2.0, 2.0]]), np.log([[0.8, 0.4]])
    first = as_one(begun(("a", "b"), "equal", 0), losses, shares, MIXING)
    assert first.costs is not None
    np.testing.assert_allclose(first.costs, np.log([1.6, 0.8]))
    again = recalled(first.tensors(), ("a", "b"), 1)
    assert again is not None
    second = as_one(again, losses, None, MIXING)
    assert second.costs is not None
    np.testing.assert_allclose(second.costs, np.log([2.0, 2.0]) / 2.0 + np.log([1.6, 0.8]) / 2.0)
    assert weighed(second, losses, None, MIXING).costs is None


def test_as_one_a_model_that_was_ruined_for_a_round_is_taken_up_again() -> None:
    ruined = as_one(begun(("a", "b"), "equal", 0), np.array([[0.5, 1e38]]), None, MIXING)
    assert ruined.omega[1] < 1e-20
    found = ruined
    for _ in range(12):
        found = as_one(found, np.array([[0.5, 0.5]]), None, MIXING)
    assert found.omega[1] == pytest.approx(0.5, abs=0.01)


def test_as_one_drawn_weights_stand_in_the_first_round_and_as_one_says_for_how_many_rounds() -> None:
    drawn = begun(("a", "b"), "random", 7)
    first = as_one(drawn, np.array([[0.0, 9.0]]), None, replace(MIXING, first="random"))
    np.testing.assert_allclose(first.omega, drawn.omega)
    assert first.costs is None
    said = []
    for progress in range(3):
        planned = server_half.plan(replace(begin(as_one=2), progress=progress), ["d0"])
        assert planned is not None
        task = planned.tasks["d0"]
        assert isinstance(task, Mix)
        said.append(task.mixing.as_one)
    assert said == [True, True, False]


# -- Algorithm 1 --------------------------------------------------------------------------------------------


REPORTS = [
    reported("d0", "c0 c1", [[6.0, 0.0], [0.0, 2.0]], 3.0, 1.0),
    reported("d1", "c0 c1", [[1.0, 1.0], [0.0, 2.0]], 7.0, 4.0),
]


def test_line_11_the_server_weighs_by_samples_in_the_paper_and_by_what_a_model_explains_by_default() -> None:
    paper = server_half.reduce(begin(weighting="samples", aggregation="mean", first="equal"), REPORTS)
    np.testing.assert_allclose(
        [m["w"][0] for m in paper.models.values()], [(8 * 3 + 4 * 7) / 12, (8 + 16) / 12]
    )
    ours = server_half.reduce(begin(aggregation="mean"), REPORTS)
    np.testing.assert_allclose([m["w"][0] for m in ours.models.values()], [(18 + 14) / 8, (2 + 8) / 4])
    assert ours.assignments == {"d0": "c0", "d1": "c0"}


def test_a_model_that_nobody_trained_stays_as_it_is() -> None:
    state = begin()
    after = server_half.reduce(state, [reported("d0", "c1", [[0.0, 0.0], [4.0, 4.0]], 2.0)])
    assert after.models["c0"] is state.models["c0"]
    assert after.models["c1"]["w"].tolist() == [2.0]


def test_eq_2_the_table_is_of_all_devices_also_of_those_that_were_not_asked_this_time() -> None:
    state = server_half.reduce(begin(smoothing=0.0), REPORTS)
    state = server_half.reduce(state, [reported("d1", "c0", [[3.0, 1.0], [0.0, 0.0]], 7.0)])
    found = table(state)
    assert found is not None
    np.testing.assert_allclose(found.counts, [[9 / 10, 1 / 10], [0.0, 1.0]], atol=1e-8)
    smoothed = table(replace(state, parameters=replace(state.parameters, smoothing=1.0)))
    assert smoothed is not None
    np.testing.assert_allclose(smoothed.counts, [[10 / 12, 2 / 12], [1 / 4, 3 / 4]])
    assert table(begin()) is None
    assert table(replace(state, parameters=replace(state.parameters, table=False))) is None


def test_no_device_counts_for_more_of_the_table_than_another() -> None:
    """One of ten says that it has a thousand times as many samples as the others."""
    honest = [reported(f"d{n}", "c0", [[5.0, 5.0], [0.0, 0.0]], 1.0) for n in range(9)]
    hostile = reported("d9", "c0", [[0.0, 10_000.0], [0.0, 0.0]], 1.0)
    found = table(server_half.reduce(begin(smoothing=0.0), [*honest, hostile]))
    assert found is not None
    np.testing.assert_allclose(found.counts[0], [0.45, 0.55])


def test_a_device_that_begins_late_has_equal_weights() -> None:
    state = begin()
    first, later = (server_half.plan(each, ["d0"]) for each in (state, server_half.reduce(state, REPORTS)))
    assert first is not None
    assert later is not None
    tasks = first.tasks["d0"], later.tasks["d0"]
    assert [task.mixing.first for task in tasks if isinstance(task, Mix)] == ["random", "equal"]


def test_nobody_is_placed_before_the_first_round_and_without_a_question_by_one_model() -> None:
    with pytest.raises(Refused, match="not trained"):
        server_half.place(begin(), None)
    alone = server_half.place(replace(begin(), models={"c1": {"w": np.zeros(1)}}, progress=3), None)
    assert isinstance(alone, ClusterAssignment)
    assert alone.cluster == "c1"


def test_gamma_never_leaves_and_omega_is_remembered_on_the_device() -> None:
    assert {item.name for item in fields(Mixed)} == {"models", "keys", "counts", "examples", "loss", "scores"}
    ours = context(0)
    answer = device_half.perform(MIX, ours)
    assert isinstance(answer, Mixed)
    assert answer.counts.counts.shape == (3, 10)
    assert ours.remembered is not None
    assert {name: array.shape for name, array in ours.remembered.items()} == {
        f"omega.c{k}": (1,) for k in range(3)
    }
    labels = ours.samples("train").labels.numpy()
    np.testing.assert_allclose(answer.counts.counts.sum(axis=0), np.bincount(labels, minlength=10))
    np.testing.assert_allclose(
        answer.counts.counts.sum(axis=1) / len(labels),
        [ours.remembered[f"omega.c{k}"][0] for k in range(3)],
    )


def test_only_models_that_explain_something_here_are_trained_and_sent() -> None:
    memory = {"omega.c0": np.array([0.995]), "omega.c1": np.array([5e-3]), "omega.c2": np.array([1e-6])}
    for skip, keys in ((0.01, "c0"), (0.0, "c0 c1 c2")):
        mixing = replace(MIXING, floor=0.0, skip=skip)
        assert mixed(replace(MIX, models=(MODELS[0],) * 3, mixing=mixing), memory=memory).keys == keys


# -- the whole of it: section 5 -----------------------------------------------------------------------------


def test_every_concept_has_a_model_of_its_own_whatever_classes_its_devices_have(outcome: Outcome) -> None:
    truth = [concept(number) for number in range(DEVICES)]
    assert adjusted_rand_score(truth, found(outcome)) == 1.0
    assert len(outcome.state.models) == 3  # of six, and the number of concepts was not given
    one = run("fedavg", epochs=1, rounds=10)
    ours, theirs = (
        np.mean([each.accuracy for each in state.metrics.values()]) for state in (outcome.state, one.state)
    )
    assert ours > theirs + 0.4


def test_once_the_clusters_stand_one_model_goes_up(outcome: Outcome) -> None:
    state, memories = outcome.state, dict[str, Tensors]()
    assert isinstance(state, State)
    last = server_half.plan(replace(state, phase="train"), ["d0"])
    assert last is not None
    task = last.tasks["d0"]
    assert isinstance(task, Mix)
    omega = {f"omega.{key}": np.array([float(key == found(outcome)[0])]) for key in state.models}
    assert mixed(task, memory={**memories, **omega}).keys == found(outcome)[0]


def test_newcomers_with_labels_are_placed_by_the_e_step_and_others_are_told_what_would_work(
    outcome: Outcome,
) -> None:
    """H.2. Placed on another's balanced digits, by nine tenths of them."""
    state = outcome.state
    assert isinstance(state, State)
    question = server_half.place(state, None)
    assert isinstance(question, Weigh)
    for device in range(3):
        answer = device_half.perform(question, context(device, unseen(concept(device))))
        assert isinstance(answer, Scored)
        admit_message(question, answer)
        placed = server_half.place(state, answer.scores)
        assert isinstance(placed, ClusterAssignment)
        assert placed.cluster == found(outcome)[device]
        assert placed.confidence > 0.5
        assert placed.distance < placed.runner_up_distance
    with pytest.raises(DeviceFault, match="needs labels, and the data have none") as refused:
        device_half.perform(question, context(0, Dataset(unseen(0).x)))
    assert "one with flux" in refused.value.hint


def test_h2_prediction_is_the_weighted_sum_of_probabilities_or_the_heaviest_model_or_tuned(
    outcome: Outcome, memories: dict[str, Tensors]
) -> None:
    state = outcome.state
    assert isinstance(state, State)
    answers = {}
    for predict in ("ensemble", "hard", "tuned"):
        task = replace(server_half.measure(state, ""), predict=predict)
        answer = device_half.perform(task, context(0, memory=memories["d0"]))
        assert isinstance(answer, Measured)
        admit_message(task, answer)
        assert answer.accuracy == getattr(answer, predict)
        answers[predict] = answer.accuracy
    assert set(state.figures) == set(answers)
    assert state.metrics["d0"].accuracy == answers["ensemble"]
    with pytest.raises(BadPayload, match="ensemble or hard or tuned"):
        device_half.perform(replace(server_half.measure(state, ""), predict="soft"), context(0))


def test_newcomers_are_measured_without_the_table_where_the_run_does_not_use_it_for_them(
    outcome: Outcome,
) -> None:
    """The authors' code weighs newcomers without the table; a device of the run uses it all the same."""
    state = outcome.state
    assert isinstance(state, State)
    uneven = np.tile(np.linspace(1e-6, 1.0, 10), (len(state.models), 1))
    uneven[::2] = uneven[::2, ::-1]
    informed = replace(
        server_half.measure(state, ""), table=MixtureCounts(uneven / uneven.sum(axis=1)[:, None])
    )
    unaware = replace(informed, mixing=replace(informed.mixing, newcomers_by_class=False))
    without = replace(informed, table=None)

    def loss(task: Message, memory: Tensors | None) -> float:
        answer = device_half.perform(task, context(0, memory=memory))
        assert isinstance(answer, Measured)
        return answer.loss

    assert loss(unaware, None) == loss(without, None) != loss(informed, None)
    memory = {f"omega.{key}": np.full(1, 1 / len(state.models)) for key in state.models}
    assert loss(unaware, memory) == loss(informed, memory) != loss(without, memory)


def test_one_more_training_helps_a_device_on_its_own_classes() -> None:
    """FedRC-FT, Table 1: better where it was trained. Measured on the training part of a device, while there
    is something left to learn."""
    state = run("fedrc", rounds=3).state
    assert isinstance(state, State)
    task = replace(server_half.measure(state, ""), part="train")
    answer = device_half.perform(task, context(4))
    assert isinstance(answer, Measured)
    assert answer.tuned > answer.ensemble


# -- appendix E, H.3, H.4 -----------------------------------------------------------------------------------


def test_e_noise_of_the_size_that_is_asked_for_hides_the_counts() -> None:
    """1,000 draws: the bounds are five standard errors."""
    noisy = replace(MIX, mixing=replace(MIXING, noise=5.0, weighting="samples"))
    added = np.stack([mixed(noisy, d).counts.counts - mixed(MIX, d).counts.counts for d in range(2)])
    assert (np.abs(added) > 1e-3).all()
    more = np.stack([device_half._noised(np.zeros((20, 10)), 5.0, context(device)) for device in range(5)])
    assert more.std() == pytest.approx(5.0, rel=0.12)
    assert abs(more.mean()) < 0.8


def test_h3_adam_moves_gamma_by_the_equations_98_to_103() -> None:
    adam = replace(MIXING, adam=True, beta1=0.5, beta2=0.5, floor=0.0)
    losses = np.log([[2.0, 4.0]])
    first = weighed(begun(("a", "b"), "equal", 0), losses, None, adam)
    assert first.gamma is not None
    np.testing.assert_allclose(first.gamma, [[1.0, 0.0]])  # a step of 1 either way, and no further than 0
    second = weighed(first, losses, None, adam)
    assert second.gamma is not None
    step = np.array([1.0, 0.0]) - [1.0, 0.0]  # eq. 98 has 1 and 0 as the weights are these
    velocity = 0.5 * step + 0.5 * (0.5 * np.array([-1 / 6, 1 / 6]))
    square = 0.5 * step**2 + 0.5 * (0.5 * np.full(2, 1 / 36))
    moved = np.maximum([1.0, 0.0] - velocity / 0.5 / (np.sqrt(square / 0.5) + 1e-8), 0.0)
    np.testing.assert_allclose(second.gamma[0], moved / moved.sum())


def test_h3_what_adam_needs_is_remembered_and_begun_anew_with_other_data() -> None:
    answer = weighed(
        begun(("a", "b"), "equal", 0), np.log([[2.0, 4.0]] * 3), None, replace(MIXING, adam=True)
    )
    again = recalled(answer.tensors(), ("a", "b"), 3)
    assert again is not None
    assert again.velocity is not None
    assert answer.velocity is not None
    np.testing.assert_allclose(again.velocity, answer.velocity)
    other = recalled(answer.tensors(), ("a", "b"), 4)
    assert other is not None
    assert other.velocity is None
    assert recalled(answer.tensors(), ("a", "z"), 3) is None
