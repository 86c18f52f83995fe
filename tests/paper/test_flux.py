"""FLUX (Fenoglio et al. 2025), section by section, on a real fleet of rotated digits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import adjusted_rand_score

from shoal.core.algorithm import Report, find
from shoal.core.algorithms.flux import ALGORITHM, Parameters, clustering
from shoal.core.algorithms.flux import server as server_half
from shoal.core.algorithms.flux.state import State
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.events import Effect, Save
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import ConfigError, Refused
from shoal.core.exchange.messages import Describe, Described, Evaluate, Evaluated, Train, Trained
from shoal.core.exchange.parts import ClusterAssignment, Descriptor, LatentBounds, Moments
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.guard import STRIKES, Guard
from shoal.core.server_kit.history.changes import changes, parents_of
from tests.fleet import data, first_model, fleet, learner

SMALL = {"rounds": 6, "epochs": 3, "learning_rate": 0.1, "batch_size": 16, "privacy": "off", "inputs": "raw"}
"""As in the paper, and on so few samples, without noise; see test_flux_private.py for that."""
ANGLES = (0, 90)
TRUTH = [0, 1, 0, 1, 0, 1]


def finish(angles: tuple[int, ...] = ANGLES, **changes: Any) -> State:
    parameters = ALGORITHM.configure("default", {**SMALL, **changes})
    state = server_half.start(first_model(), parameters)
    outcome = simulate(server_half, state, fleet(ALGORITHM, 6, angles), RoundPolicy(minimum=6), 3)
    assert not outcome.failed
    assert isinstance(outcome.state, State)
    return outcome.state


@pytest.fixture(scope="module")
def finished() -> State:
    return finish()


@pytest.mark.parametrize(("preset", "described"), [("default", 6), ("paper", 3)])
def test_clusters_are_of_all_devices_where_a_round_draws_few_of_them(preset: str, described: int) -> None:
    parameters = ALGORITHM.configure(preset, SMALL)
    state = server_half.start(first_model(), parameters)
    seen = list[State]()

    def watch(effect: Effect) -> None:
        if isinstance(effect, Save) and isinstance(effect.state, State) and effect.state.clustering:
            seen.append(effect.state)

    policy = RoundPolicy(devices=3, minimum=3)
    outcome = simulate(server_half, state, fleet(ALGORITHM, 6, ANGLES), policy, 3, watch=watch)
    assert not outcome.failed
    formed = seen[0]
    assert formed.clustering is not None
    assert len(formed.clustering.described) == described
    if preset == "default":
        assert adjusted_rand_score(TRUTH, [formed.assignments[f"d{i}"] for i in range(6)]) == 1.0


def newcomer(number: int, angles: tuple[int, ...] = ANGLES, samples: int = 90) -> DeviceContext:
    return DeviceContext(
        learner(), Views.of(Dataset(data(number, angles, samples).x)), "cpu", 0, np.random.default_rng(0)
    )


def place(state: State, context: DeviceContext) -> ClusterAssignment:
    question = server_half.place(state, None)
    assert isinstance(question, Describe)
    assert question.classes == 0
    answer = standard.perform(question, context)
    assert isinstance(answer, Described)
    assignment = server_half.place(state, answer.descriptor)
    assert isinstance(assignment, ClusterAssignment)
    return assignment


# -- section 4.2.1 and appendix D: the training phase ---------------------------------------------------


def test_devices_of_one_distribution_share_a_cluster_without_anyone_being_told(finished: State) -> None:
    found = [finished.assignments[f"d{i}"] for i in range(6)]
    assert adjusted_rand_score(TRUTH, found) == 1.0
    assert finished.facts["clusters"] == 2


def test_clustered_models_beat_the_one_global_model_for_every_device(finished: State) -> None:
    assert finished.clustering is not None
    shared = finished.clustering.encoder
    for number in range(6):
        context = DeviceContext(learner(), Views.of(data(number)), "cpu", 0, np.random.default_rng(0))
        own = finished.models[finished.assignments[f"d{number}"]]
        accuracy = [standard.perform(Evaluate(model), context).accuracy for model in (own, shared)]  # type: ignore[attr-defined]
        assert accuracy[0] >= accuracy[1]


def test_algorithm_1_the_encoder_is_the_model_before_the_clustering_round_and_stays_frozen(
    finished: State,
) -> None:
    assert finished.clustering is not None
    assert finished.clustering.round == finished.facts["clustering_round"]
    assert digest(finished.clustering.encoder) not in {digest(model) for model in finished.models.values()}


@pytest.mark.parametrize(
    ("as_published", "accuracies", "expected"),
    [
        (True, [0.136, 0.152, 0.27], True),  # a slow start fires it: what the authors' code does
        (False, [0.136, 0.152, 0.27], False),  # eq. 14 looks only at r' >= 3
        (False, [0.2, 0.5, 0.55], True),
        (True, [0.2, 0.5], False),  # r >= 3
        (False, [0.1, 0.3, 0.5, 0.7], False),
        (False, [0.1, 0.3, 0.5, 0.52], True),
    ],
)
def test_equation_14_when_warm_up_ends(as_published: bool, accuracies: list[float], expected: bool) -> None:
    measured = {str(r + 1): value for r, value in enumerate(accuracies)}
    parameters = Parameters(rounds=10, as_published=as_published)
    assert clustering.warm_up_is_over(parameters, measured, len(accuracies)) is expected


def test_equation_14_no_later_than_four_fifths_of_the_rounds_and_never_too_late_to_cluster() -> None:
    climbing = {str(r): 0.1 * r for r in range(1, 11)}
    over = [clustering.warm_up_is_over(Parameters(rounds=10), climbing, r) for r in range(1, 10)]
    assert over == [False] * 7 + [True] * 2
    assert clustering.warm_up_is_over(Parameters(rounds=2), climbing, 1)
    assert clustering.warm_up_is_over(Parameters(rounds=1), {}, 0)
    flat = {str(number): 0.1 for number in range(1, 20)}
    assert clustering.warm_up_is_over(Parameters(rounds=10), flat, 4)
    lost = [clustering.warm_up_is_over(Parameters(rounds=10), flat, r, lost=True) for r in range(1, 10)]
    assert lost == [False] * 7 + [True] * 2, "a model that is worse than at first describes nothing"


def test_the_accuracies_of_the_warm_up_come_with_the_next_round_or_in_exchanges_of_their_own() -> None:
    """The same figures decide either way: those of eq. 14. The presets of the paper wait for them."""
    plain, apart = finish(rounds=10), finish(rounds=10, warm_up="accuracy")
    assert plain.accuracies["1"] == apart.accuracies["1"], "later rounds shuffle in another way"
    assert plain.clustering is not None
    assert apart.clustering is not None
    assert max(map(int, plain.accuracies)) == plain.clustering.round - 2, "those of one round ago decided"
    assert max(map(int, apart.accuracies)) == apart.clustering.round - 1
    enough = [
        clustering.warm_up_is_over(Parameters(), plain.accuracies, n) for n in (2, plain.clustering.round)
    ]
    assert enough == [False, True]
    assert ALGORITHM.configure("paper").measured_apart
    assert not ALGORITHM.configure().measured_apart


def test_a_run_of_one_round_clusters_in_it() -> None:
    state = finish(rounds=1)
    assert state.progress == 1
    assert state.facts["clustering_round"] == 1


def test_c11_the_descriptor_is_made_with_the_servers_projector_on_every_device(finished: State) -> None:
    assert finished.clustering is not None
    question = server_half.place(finished, None)
    assert isinstance(question, Describe)
    answer = standard.perform(question, newcomer(0))
    assert isinstance(answer, Described)
    assert answer.descriptor.projector == digest(finished.clustering.projector)


def test_one_device_with_another_network_does_not_spoil_the_bounds_of_all() -> None:
    state = replace(server_half.start(first_model(), Parameters(privacy="off", inputs="raw")), phase="bounds")

    def measured(device: str, width: int) -> Report:
        bounds = LatentBounds(np.zeros(1), np.full(1, float(width)))
        return Report(device, Evaluated(0.5, 1.0, 3, bounds, width))

    after = server_half.reduce(state, [measured("d0", 32), measured("d1", 999), measured("d2", 32)])
    assert after.latents == 32
    assert after.bounds is not None
    assert after.bounds.high[0] == pytest.approx(32 * 1.02)


def test_section_421_a_device_unlike_all_others_is_a_cluster_of_its_own() -> None:
    parameters = ALGORITHM.configure("default", SMALL)
    angles = (0, 0, 0, 90, 90, 180)
    devices = fleet(ALGORITHM, 6, angles)
    state = server_half.start(first_model(), parameters)
    outcome = simulate(server_half, state, devices, RoundPolicy(minimum=6), 3)
    found = [outcome.state.assignments[f"d{i}"] for i in range(6)]
    assert found.count(found[5]) == 1


def test_flux_prior_forms_the_number_of_clusters_that_it_is_told() -> None:
    card, changes = find("flux-prior")
    assert card is ALGORITHM
    with pytest.raises(ConfigError, match="must be given the number of clusters"):
        server_half.start(first_model(), card.configure("default", changes))
    assert finish(clusters=3).facts["clusters"] == 3


def test_d3_soft_mixing_trains_devices_of_one_group_mostly_with_its_model() -> None:
    state = finish(mixing="soft")
    assert state.clustering is not None
    for device in state.assignments:
        weights = clustering.mixing_weights(state.clustering, device)
        assert max(weights, key=weights.__getitem__) == state.assignments[device]
        assert sum(weights.values()) == pytest.approx(1.0)


# -- late joiners -----------------------------------------------------------------------------------------


def test_algorithm_1_line_26_a_late_joiner_describes_and_then_trains_with_its_group(finished: State) -> None:
    running = replace(
        finished, phase="clustered", progress=4, parameters=replace(finished.parameters, rounds=9)
    )
    plan = server_half.plan(running, ["d0", "late"])
    assert plan is not None
    assert isinstance(plan.tasks["d0"], Train)
    task = plan.tasks["late"]
    assert isinstance(task, Describe)
    assert task.classes == 10
    context = DeviceContext(
        learner(), Views.of(data(7)), "cpu", 0, np.random.default_rng(0)
    )  # rotated by 90 degrees
    after = server_half.reduce(running, [Report("late", standard.perform(task, context))])
    assert after.assignments["late"] == finished.assignments["d1"]
    assert after.progress == running.progress, "no device trained, so the round is still to come"
    again = server_half.plan(after, ["late"])
    assert again is not None
    assert isinstance(again.tasks["late"], Train)


def test_a_late_joiner_that_begins_a_cluster_leaves_what_is_known_of_the_others(finished: State) -> None:
    held = finished.assignments["d1"]
    histories = {
        key: LossHistory(first=2.0, best=0.1, last=0.1, rounds=5, knows=True)
        for key in finished.clustering.names  # type: ignore[union-attr]
    }
    running = replace(
        finished,
        phase="clustered",
        progress=4,
        parameters=replace(finished.parameters, rounds=9),
        guard=Guard(strikes={held: {"d1": STRIKES}}, histories=histories),
    )
    plan = server_half.plan(running, ["late"])
    assert plan is not None
    stranger = DeviceContext(learner(), Views.of(data(8, (180,))), "cpu", 0, np.random.default_rng(0))
    after = server_half.reduce(running, [Report("late", standard.perform(plan.tasks["late"], stranger))])
    new = after.assignments["late"]
    assert new not in running.models
    old = after.begun[new]
    assert digest(after.models[new]) == digest(running.models[old])
    assert parents_of(running, after)[new] == (old,)
    assert [event.text for event in changes(running, after)] == [
        f"late began {new}, which continues the model of {old}"
    ]
    assert after.guard.held(held) == {"d1"}
    assert histories.items() <= after.guard.histories.items()


@pytest.mark.parametrize(("number", "share"), [(8, 1.0), (9, 0.5), (10, 0.5)])
def test_the_model_of_a_single_device_takes_half_a_step_in_the_last_fifth_of_a_run(
    finished: State, number: int, share: float
) -> None:
    parameters = replace(finished.parameters, rounds=10, aggregation="mean", pooling=0.0)
    running = replace(finished, phase="clustered", progress=number - 1, parameters=parameters)
    before = running.models[running.assignments["d0"]]
    trained = Trained({name: tensor + 1.0 for name, tensor in before.items()}, 90, 1.0)
    after = server_half.reduce(running, [Report("d0", trained)]).models[running.assignments["d0"]]
    for name, tensor in before.items():
        np.testing.assert_allclose(after[name] - tensor, share, rtol=1e-5)


def test_a_model_that_goes_back_in_the_last_fifth_of_a_run_goes_all_the_way(finished: State) -> None:
    parameters = replace(finished.parameters, rounds=10, aggregation="clipped")
    key = finished.assignments["d0"]
    good = {name: tensor - 1.0 for name, tensor in finished.models[key].items()}
    history = LossHistory(first=2.0, best=0.1, last=3.0, rounds=8, falls=1, fell=True, good=good, knows=True)
    running = replace(
        finished, phase="clustered", progress=8, parameters=parameters, guard=Guard(histories={key: history})
    )
    after = server_half.reduce(running, [Report("d0", Trained(running.models[key], 90, 3.0))])
    assert after.guard.histories[key].falls == 2
    for name, tensor in good.items():
        np.testing.assert_array_equal(after.models[key][name], tensor)


# -- section 4.2.2 and Algorithm 2: the inference phase ---------------------------------------------------


@pytest.mark.parametrize("number", [6, 7, 8, 9])
def test_algorithm_2_an_unlabelled_newcomer_gets_its_groups_model(finished: State, number: int) -> None:
    answer = place(finished, newcomer(number))
    assert answer.cluster == finished.assignments[f"d{number % 2}"]
    assert not answer.abstained
    assert answer.distance < answer.runner_up_distance
    assert 0.0 < answer.confidence <= 1.0


def test_a_newcomer_unlike_anything_seen_is_told_so_and_the_paper_preset_always_answers(
    finished: State,
) -> None:
    noise = np.random.default_rng(0).uniform(0, 40, (60, 1, 8, 8)).astype(np.float32)
    stranger = DeviceContext(learner(), Views.of(Dataset(noise)), "cpu", 0, np.random.default_rng(0))
    answer = place(finished, stranger)
    assert answer.abstained
    assert "no cluster has seen such data" in answer.reason
    always = replace(finished.parameters, placing="distance", as_published=True)
    nearest = place(replace(finished, parameters=always), stranger)
    assert not nearest.abstained
    assert (nearest.cluster, nearest.distance) == (answer.cluster, answer.distance)


def test_few_samples_of_what_all_devices_have_are_no_strangers() -> None:
    alike = finish(angles=(0,), clusters=1)
    assert alike.facts["clusters"] == 1
    newcomers = [newcomer(number, (0,), samples) for number in (6, 7, 8) for samples in (1, 5, 40)]
    assert not any(place(alike, context).abstained for context in newcomers)


def test_a_newcomer_half_way_between_two_clusters_is_told_so(finished: State) -> None:
    assert finished.clustering is not None
    free = finished.clustering.label_free
    centroids = finished.clustering.centroids.copy()
    centroids[:, :free] = centroids[:1, :free]  # both clusters look the same without labels
    answer = place(
        replace(finished, clustering=replace(finished.clustering, centroids=centroids)), newcomer(6)
    )
    assert answer.abstained
    assert "equally near" in answer.reason


def test_a_run_without_clusters_refuses_to_place_and_says_when_to_come_back() -> None:
    state = server_half.start(first_model(), Parameters())
    with pytest.raises(Refused, match="not formed its clusters"):
        server_half.place(state, None)


# -- appendix C.1.3, S4: the papers' noise ----------------------------------------------------------------


def test_noise_is_asked_of_devices_and_newcomers_and_the_paper_preset_spares_newcomers() -> None:
    for preset, expected in (("default", "paper"), ("paper", "off")):
        changes = {**SMALL, "privacy": "paper", "epsilon": 1e6, "grouping": "density"}
        parameters = ALGORITHM.configure(preset, changes)
        state = server_half.start(first_model(), parameters)
        outcome = simulate(server_half, state, fleet(ALGORITHM), RoundPolicy(minimum=6), 3)
        question = server_half.place(outcome.state, None)
        assert isinstance(question, Describe)
        assert question.privacy.mode == expected


def test_grouping_by_test_refuses_noise_of_unknown_size() -> None:
    with pytest.raises(ConfigError, match="grouping=density"):
        server_half.start(first_model(), Parameters(privacy="paper", epsilon=1.0))


def test_wrong_parameters_are_refused_before_the_run_starts() -> None:
    for name, value in (("mixing", "mild"), ("placing", "vector"), ("classes", -1), ("scaling", -1.0)):
        with pytest.raises(ConfigError, match=name):
            server_half.start(first_model(), ALGORITHM.configure("default", {name: value}))


# -- edges: few devices, few samples ----------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 2])
def test_one_or_two_devices_are_no_special_case(devices: int) -> None:
    parameters = ALGORITHM.configure("default", SMALL)
    state = server_half.start(first_model(), parameters)
    outcome = simulate(server_half, state, fleet(ALGORITHM, devices, (0,)), RoundPolicy(minimum=devices), 3)
    assert not outcome.failed
    assert len(outcome.state.assignments) == devices


def test_descriptors_of_one_sample_a_class_still_cluster() -> None:
    chance = np.random.default_rng(0)
    described = {
        f"d{i}": Descriptor(
            Moments(
                np.vstack([chance.normal(size=(1, 4)) + 10 * (i % 2), np.zeros((3, 4))]),
                np.vstack([np.ones((1, 4)), np.zeros((3, 4))]),
                np.array([3.0, 1.0, 1.0, 1.0]),
            ),
            "0" * 64,
        )
        for i in range(4)
    }
    projector = {"mean": np.zeros(4), "components": np.eye(4)}
    found, assignments = clustering.form_clusters(Parameters(classes=3), 1, {}, projector, described)
    assert assignments["d0"] == assignments["d2"] != assignments["d1"] == assignments["d3"]
    assert np.isfinite(found.centroids).all()
