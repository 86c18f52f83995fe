"""FMCL (M. Ali et al.), section by section, on numbers by hand and on real devices of few classes each."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.algorithm import Report
from shoal.core.algorithms.fmcl import ALGORITHM, Parameters, clustering
from shoal.core.algorithms.fmcl import server as server_half
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import BadPayload, ConfigError, DeviceFault, Refused
from shoal.core.exchange.admit import admit_message
from shoal.core.exchange.messages import Represent, Represented, Train, Trained
from shoal.core.exchange.parts import ClusterAssignment, FloatArray, Prototypes
from shoal.core.types import Tensors
from shoal.simulation import images
from shoal.simulation.images import unit
from tests.fleet import contexts, first_model, learner

PLAIN = Parameters()


def holding(**classes: tuple[float, float, float]) -> Prototypes:
    """c3=(x, y, samples): the mean embedding of class 3 and how many samples it has."""
    rows = sorted((int(name[1:]), *value) for name, value in classes.items())
    table = np.array(rows, float)
    return Prototypes(table[:, 0], table[:, 1:3], table[:, 3])


def square(*pairs: float) -> FloatArray:
    """A symmetric matrix from its upper triangle, row by row."""
    size = round((1 + np.sqrt(1 + 8 * len(pairs))) / 2)
    found = np.zeros((size, size))
    found[np.triu_indices(size, 1)] = pairs
    return found + found.T


def represented(**held: Prototypes) -> list[Report]:
    return [Report(device, Represented(one, int(one.counts.sum()))) for device, one in sorted(held.items())]


def model(value: float) -> Tensors:
    return {"w": np.full(2, value, np.float32)}


# -- Algorithm 3: the distance ------------------------------------------------------------------------------


def test_algorithm_3_by_hand() -> None:
    """a: half class 0, half class 1. b: three quarters class 1, a quarter class 2. Shared: class 1."""
    a = holding(c0=(1, 0, 5), c1=(3, 4, 5))
    b = holding(c1=(4, 3, 6), c2=(0, 1, 2))
    shared = 0.5
    cosine = 1 - (3 * 4 + 4 * 3) / (5 * 5 + 1e-3)
    expected = shared * cosine / (shared + 1e-3) * (1 / shared)
    assert clustering.distances(PLAIN, [a, b])[0, 1] == pytest.approx(expected)
    without = clustering.distances(Parameters(overlap=False), [a, b])[0, 1]
    assert without == pytest.approx(expected * shared)


def test_algorithm_3_a_small_overlap_makes_far_and_beta_is_the_limit() -> None:
    one = holding(c0=(1, 0, 999), c1=(3, 4, 1))
    other = holding(c1=(4, 3, 1), c2=(0, 1, 999))
    near, without = (
        clustering.distances(each, [one, other])[0, 1] for each in (PLAIN, Parameters(overlap=False))
    )
    assert near == pytest.approx(100 * without)


def test_algorithm_3_the_same_means_are_at_no_distance_but_for_epsilon() -> None:
    a = holding(c0=(3, 4, 5), c1=(0, 2, 5))
    apart = clustering.distances(PLAIN, [a, a])
    assert 0.0 <= apart[0, 1] < 1e-3
    assert np.array_equal(apart, apart.T)


def test_algorithm_3_d_big_comes_from_the_distances_of_those_that_share() -> None:
    apart = square(1, 2, np.inf, 3, 4, np.inf)
    finite = [1, 2, 3, 4]
    shared = Parameters(disjoint="shared")
    expected = min(2 * np.percentile(finite, 95), np.percentile(finite, 99))
    assert clustering.beyond(shared, [], apart) == expected
    for parameters in (shared, PLAIN):
        assert clustering.beyond(parameters, [], square(np.inf, np.inf, np.inf)) == 1.0


def test_by_default_those_that_share_nothing_are_at_least_as_far_apart_as_two_classes_are() -> None:
    """Two pairs of equal devices: the paper's D_big is what sampling makes of equal ones."""
    held = [holding(c0=(1, 0, 5)), holding(c0=(1, 0.1, 5)), holding(c1=(0, 1, 5)), holding(c1=(0.1, 1, 5))]
    apart = clustering.distances(PLAIN, held)
    assert clustering.beyond(Parameters(disjoint="shared"), held, apart) < 0.01
    assert clustering.beyond(PLAIN, held, apart) == pytest.approx(clustering.between_classes(held))
    assert clustering.between_classes(held) == pytest.approx(1 - 0.1 / (1 + 0.0025), abs=0.01)
    assert clustering.between_classes(held[:2]) == 0.0


def test_embeddings_of_different_widths_share_nothing() -> None:
    wide = Prototypes(np.array([0.0]), np.array([[1.0, 0.0, 0.0]]), np.array([5.0]))
    apart = clustering.distances(PLAIN, [holding(c0=(1, 0, 5)), wide])
    assert np.isinf(apart[0, 1])


def test_two_encoders_of_one_width_are_never_compared_and_the_fewer_are_refused() -> None:
    """Questions to late joiners and newcomers name the encoder, and answers by another one are refused."""
    usual, odd = "ab" * 32, "cd" * 32
    by = {"a": usual, "b": usual, "c": odd, "d": ""}
    places = {"a": (1, 0, 5), "b": (0, 1, 5), "c": (0, 1, 5), "d": (0, 1, 5)}
    reports = represented(**{name: replace(holding(c0=places[name]), encoder=by[name]) for name in by})
    state = server_half.reduce(server_half.start(model(0.0), Parameters(inputs="raw", clusters=2)), reports)
    assert set(state.assignments) == {"a", "b", "d"}, "d is a device that does not say"
    plan = server_half.plan(state, ["a", "c"])
    assert plan is not None
    for question in (plan.tasks["c"], server_half.place(state, None)):
        assert isinstance(question, Represent)
        assert question.digest == usual
        with pytest.raises(BadPayload, match=f"by the encoder {usual[:12]}, and this one by"):
            admit_message(question, reports[2].message)
        admit_message(question, reports[1].message)


# -- Algorithms 4 and 5: groups and their number ------------------------------------------------------------


def test_classes_that_one_device_alone_names_cost_nothing_and_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked, look = [], clustering._of_class
    monkeypatch.setattr(clustering, "_of_class", lambda *given: looked.append(1) or look(*given))
    held = [holding(c0=(1.0, 0.0, 5.0), c1=(0.0, 1.0, 5.0)), holding(c0=(1.0, 1.0, 4.0), c2=(0.0, 1.0, 6.0))]
    many = Prototypes(np.arange(100.0, 4100.0), np.ones((4000, 2)), np.ones(4000))
    apart = clustering.distances(Parameters(), [*held, many])
    assert np.array_equal(apart[:2, :2], clustering.distances(Parameters(), held))
    assert np.isinf(apart[2, :2]).all()
    assert len(looked) == 2, "c0, in each of the two calls"


def blocks(*sizes: int, near: float = 0.1, far: float = 1.0) -> FloatArray:
    """Groups of this many devices, near each other and far from the others; no two distances are equal."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    apart = np.where(truth[:, None] == truth[None], near, far)
    noise = np.random.default_rng(0).uniform(0.98, 1.02, apart.shape)
    apart = apart * (noise + noise.T) / 2
    np.fill_diagonal(apart, 0.0)
    return apart


@pytest.mark.parametrize("sizes", [(4, 4), (3, 4, 5), (4, 4, 4, 4), (3, 3, 3, 3, 3)])
def test_algorithm_5_finds_as_many_groups_as_there_are(sizes: tuple[int, ...]) -> None:
    labels = clustering.group(PLAIN, blocks(*sizes))
    assert labels.tolist() == np.repeat(np.arange(len(sizes)), sizes).tolist()


def test_section_45_in_the_papers_window_two_groups_that_are_far_apart_cannot_be_found() -> None:
    assert clustering.group(Parameters(search="window"), blocks(4, 4)).max() == 2
    assert clustering.group(PLAIN, blocks(4, 4)).max() == 1


@pytest.mark.parametrize(("near", "window"), [(0.9, range(1, 4)), (0.3, range(2, 7)), (0.01, range(3, 11))])
def test_section_45_the_window_follows_the_spread_of_distances(
    near: float, window: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def silhouette(apart: FloatArray, clusters: int) -> float:
        tried.append(clusters)
        return 0.5

    monkeypatch.setattr(clustering, "silhouette", silhouette)
    clustering.how_many(blocks(6, 6, near=near), "window")
    assert tried == list(window)


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([0.1, 0.3, 0.2, 0.5, 0.4], 5),  # two peaks: the higher
        ([0.1, 0.5, 0.5, 0.2, 0.1], 3),  # a plateau: the smaller K
        ([0.1, 0.2, 0.3, 0.4, 0.9], 6),  # no peak: the best of the window
        ([0.9, 0.1, 0.3, 0.2, 0.8], 4),  # the ends of the window are no peaks
        ([0.1, 0.4, 0.4, 0.5, 0.5], 5),  # a step on the way up is none either
    ],
)
def test_algorithm_5_line_11_the_largest_local_maximum(
    scores: list[float], expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_number = dict(zip(range(2, 7), scores, strict=True))
    monkeypatch.setattr(clustering, "silhouette", lambda apart, clusters: by_number[clusters])
    assert clustering.how_many(blocks(6, 6, near=0.3), "window") == expected


def test_one_device_two_devices_and_devices_that_are_all_the_same_are_one_group() -> None:
    assert clustering.group(PLAIN, np.zeros((1, 1))).tolist() == [0]
    assert clustering.group(PLAIN, square(0.7)).tolist() == [0, 0]
    assert clustering.group(PLAIN, np.zeros((5, 5))).tolist() == [0] * 5
    assert clustering.group(PLAIN, 1.0 - np.eye(5)).tolist() == [0] * 5, "all share nothing: D_big is all"
    assert clustering.group(Parameters(clusters=9), square(1, 2, 3)).tolist() == [0, 1, 2]


# -- the run ------------------------------------------------------------------------------------------------

SMALL = {"inputs": "raw", "rounds": 3, "epochs": 3, "learning_rate": 0.1, "batch_size": 16}
KINDS = ((0, 1, 2), (3, 4, 5), (6, 7, 8))


def few_classes(number: int, kinds: int = 3) -> Dataset:
    """60 digits of three classes, no image twice."""
    train, _ = images.digits()
    rows = np.flatnonzero(np.isin(train.y, KINDS[number % kinds]))
    own = train.subset(rows[number // kinds * 60 :][:60])
    return Dataset(unit(own.x), own.y)


@pytest.fixture(scope="module")
def finished() -> server_half.State:
    state = server_half.start(first_model(), ALGORITHM.configure("default", SMALL))
    fleet = contexts(ALGORITHM, [Views.of(few_classes(number)) for number in range(9)])
    outcome = simulate(server_half, state, fleet, RoundPolicy(minimum=9), 3)
    assert not outcome.failed
    assert isinstance(outcome.state, server_half.State)
    return outcome.state


def test_section_3_devices_with_the_same_classes_share_a_model_and_k_is_found(
    finished: server_half.State,
) -> None:
    found = [finished.assignments[f"d{number}"] for number in range(9)]
    assert found == ["c0", "c1", "c2"] * 3
    assert finished.facts["clusters"] == 3


def test_prototypes_are_asked_for_once_before_any_training() -> None:
    state = server_half.start(model(0.0), Parameters(inputs="raw", rounds=1))
    plan = server_half.plan(state, ["a", "b"])
    assert plan is not None
    assert isinstance(plan.tasks["a"], Represent)
    state = server_half.reduce(state, represented(a=holding(c0=(1, 0, 5)), b=holding(c0=(0, 1, 5))))
    assert state.progress == 0
    plan = server_half.plan(state, ["a", "b"])
    assert plan is not None
    assert isinstance(plan.tasks["a"], Train)


def test_a_newcomer_with_labels_is_placed_and_one_without_is_told_what_would_help(
    finished: server_half.State,
) -> None:
    question = server_half.place(finished, None)
    for number in (9, 10, 11):
        newcomer = DeviceContext(learner(), Views.of(few_classes(number)), "cpu", 0, np.random.default_rng(0))
        answer = standard.perform(question, newcomer)
        assert isinstance(answer, Represented)
        placed = server_half.place(finished, answer.prototypes)
        assert isinstance(placed, ClusterAssignment)
        assert placed.cluster == f"c{number % 3}"
        assert placed.confidence > 0.5
    blind = Views.of(Dataset(few_classes(9).x))
    with pytest.raises(DeviceFault, match="needs labels, and the data have none"):
        standard.perform(question, DeviceContext(learner(), blind, "cpu", 0, np.random.default_rng(0)))


def test_a_newcomer_that_shares_no_class_is_told_that_none_fits(finished: server_half.State) -> None:
    nines = Prototypes(np.array([9.0]), np.ones((1, 16)), np.array([7.0]))
    placed = server_half.place(finished, nines)
    assert isinstance(placed, ClusterAssignment)
    assert placed.abstained
    assert "shares no class" in placed.reason


def test_before_the_groups_are_formed_nobody_is_placed() -> None:
    with pytest.raises(Refused, match="not formed"):
        server_half.place(server_half.start(model(0.0), Parameters(inputs="raw")), None)


def test_a_late_device_represents_first_and_trains_in_the_next_round() -> None:
    parameters = Parameters(inputs="raw", rounds=3, clusters=2, aggregation="mean")
    state = server_half.start(model(0.0), parameters)
    state = server_half.reduce(
        state, represented(a=holding(c0=(1, 0, 5)), b=holding(c0=(0, 1, 5)), c=holding(c0=(0, 1.1, 5)))
    )
    assert state.assignments == {"a": "c0", "b": "c1", "c": "c1"}
    plan = server_half.plan(state, ["a", "late"])
    assert plan is not None
    assert isinstance(plan.tasks["late"], Represent)
    reports = [Report("a", Trained(model(4.0), 5, 0.1)), *represented(late=holding(c0=(0.9, 0.1, 1)))]
    state = server_half.reduce(state, reports)
    assert state.assignments["late"] == "c0"
    assert state.progress == 1
    state = server_half.reduce(state, represented(later=holding(c0=(0.1, 0.9, 1))))
    assert (state.assignments["later"], state.progress) == ("c1", 1), (
        "no device trained: the round is to come"
    )


def test_a_device_of_one_sample_and_a_class_of_one_sample_take_part() -> None:
    state = server_half.start(model(0.0), Parameters(inputs="raw"))
    one = holding(c4=(1, 0, 1))
    state = server_half.reduce(state, represented(a=one))
    assert state.assignments == {"a": "c0"}
    state = server_half.start(model(0.0), Parameters(inputs="raw"))
    many = holding(c4=(1, 0.1, 1), c5=(0, 1, 99))
    state = server_half.reduce(state, represented(a=one, b=many, c=many, d=many))
    assert set(state.assignments) == set("abcd")


def test_parameters_that_cannot_work_are_refused() -> None:
    for change in ({"clusters": -1}, {"rounds": 0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            server_half.start(model(0.0), ALGORITHM.configure("default", change))
