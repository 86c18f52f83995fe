"""One way to place newcomers in all runs with several models, and when the algorithm's own way is asked."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import discover, find
from shoal.core.algorithms.flux.clustering import form_clusters
from shoal.core.data.scale import DEVIATION, MEAN
from shoal.core.errors import BadPayload, ConfigError, Refused
from shoal.core.exchange.choosing import Choose, Wish
from shoal.core.exchange.choosing.vote import Vote
from shoal.core.exchange.messages import Describe, Score
from shoal.core.exchange.parts import Ballot, ClusterAssignment, Descriptor, Moments, Scores
from shoal.core.exchange.tensors import manifest_of
from shoal.core.server_kit import placing
from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.guard import Guard

ONE = {"w": np.array([1.0, 2.0], np.float32), "steps": np.array(3)}
HOMES = {"a": "c0", "b": "c0", "c": "c1"}


def models(count: int) -> list[dict[str, Any]]:
    return [{"w": np.full(2, float(index), np.float32), "steps": np.array(index)} for index in range(count)]


def state(clusters: int = 3, **changes: Any) -> Any:
    card = find("ifca")[0]
    parameters = card.configure("default", {"clusters": clusters, **changes})
    first, *others = models(clusters)
    return replace(card.server().start(first, parameters, *others), assignments=HOMES)  # type: ignore[type-var]


IFCA = find("ifca")[0].server()


def test_a_newcomer_that_wishes_to_is_given_all_models_and_the_common_one() -> None:
    answer = placing.place(IFCA, state(), Wish(64), 64)
    assert isinstance(answer, Choose)
    assert answer.keys == ("c0", "c1", "c2", "global")
    assert answer.shares == (2.0, 1.0, 1.0), "a cluster without devices may still suit"
    assert answer.models[-1]["w"].tolist() == pytest.approx([0.75, 0.75])  # (2 x 0 + 1 + 2) / 4
    assert [model["w"].tolist() for model in answer.models[:3]] == [[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]


def test_a_common_model_that_the_run_keeps_is_taken_and_is_no_cluster() -> None:
    kept = state()
    kept = replace(kept, models={"global": ONE, **kept.models})
    answer = placing.place(IFCA, kept, Wish(3), 64)
    assert isinstance(answer, Choose)
    assert answer.keys == ("c0", "c1", "c2", "global")
    assert answer.models[-1] is ONE
    assert placing.clusters(replace(kept, models={"global": ONE})) == {"global": ONE}


def test_the_common_model_of_clusters_with_scales_of_their_own_has_that_of_all() -> None:
    def scale(mean: float, deviation: float) -> dict[str, Any]:
        return {MEAN: np.float32([mean]), DEVIATION: np.float32([deviation])}

    known = state()
    own = {key: {**model, **scale(10.0**n, 10.0**n)} for n, (key, model) in enumerate(known.models.items())}
    all_of = scale(28.0, 49.0)
    found = placing.common_model(replace(known, models=own, scale=all_of))
    assert list(found) == ["w", "steps", MEAN, DEVIATION]
    assert {name: found[name].tolist() for name in all_of} == {MEAN: [28.0], DEVIATION: [49.0]}
    assert found["w"].tolist() == pytest.approx([0.75, 0.75])
    assert [array.dtype for array in found.values()] == [array.dtype for array in own["c0"].values()]


@pytest.mark.parametrize(
    ("wish", "most", "changes"), [(2, 64, {}), (64, 2, {}), (64, 64, {"placing": "paper"})]
)
def test_otherwise_the_algorithm_decides_as_its_paper_says(
    wish: int, most: int, changes: dict[str, Any]
) -> None:
    asked = state(**changes)
    assert isinstance(placing.place(IFCA, asked, Wish(wish), most), Score)
    assert isinstance(placing.place(IFCA, asked, None, most), Score), "a device that cannot try models"
    found = placing.place(IFCA, asked, Scores(np.array([3.0, 0.5, 2.0]), 9), most)
    assert isinstance(found, ClusterAssignment)
    assert found.cluster == "c1"


def test_a_run_with_one_model_has_nothing_to_choose_and_one_without_clusters_refuses() -> None:
    found = placing.place(IFCA, state(1), Wish(64), 64)
    assert isinstance(found, ClusterAssignment)
    assert found.cluster == "c0"
    flux, _ = find("flux")
    with pytest.raises(Refused, match="not formed its clusters"):
        placing.place(flux.server(), flux.server().start(ONE, flux.configure()), Wish(64), 64)


def test_what_reproduces_a_paper_keeps_the_papers_way_and_what_we_recommend_does_not() -> None:
    for card in discover().values():
        if not hasattr(card.parameters, "placing"):
            continue
        assert card.parameters().placing == "own_models", card.name
        for preset, changes in card.presets.items():
            theirs = preset != "private"
            assert (changes.get("placing", "own_models") != "own_models") == theirs, (card.name, preset)


@pytest.mark.parametrize(
    ("count", "names", "shares"),
    [
        (2, "c0 c1 global", (1.0, 1.0)),
        (3, "c0 c1 global", (1.0,)),
        (3, "c0 c0 global", (1.0, 1.0)),
        (3, "c0 c1 global", (1.0, 0.0)),
        (3, "c0 c1 global", (1.0, np.inf)),
        (1, "global", ()),
    ],
)
def test_a_choice_that_is_none_is_refused(count: int, names: str, shares: tuple[float, ...]) -> None:
    with pytest.raises(BadPayload, match="a choice among"):
        Choose(tuple(models(count)), names, shares)


def test_densities_come_for_each_cluster_with_their_encoder_and_projector() -> None:
    clusters = {"shares": np.ones((2, 1)), "means": np.ones((2, 1, 3)), "variances": np.ones((2, 1, 3))}
    Choose(tuple(models(3)), "c0 c1 global", (1.0, 1.0), ONE, ONE, clusters)
    with pytest.raises(BadPayload, match="2 densities of 1 clusters"):
        Choose(tuple(models(2)), "c0 global", (1.0,), ONE, ONE, clusters)
    for some in ((ONE, None, None), (ONE, ONE, None), (None, None, clusters)):
        with pytest.raises(BadPayload, match="or not at all"):
            Choose(tuple(models(3)), "c0 c1 global", (1.0, 1.0), *some)


@pytest.mark.parametrize("models", [0, -1, 1025])
def test_a_wish_has_a_limit(models: int) -> None:
    with pytest.raises(BadPayload, match="1 to 1024 can be wished for"):
        Wish(models)


# -- a vote, where a newcomer may not have all models --------------------------------------------------------


def flux(**changes: Any) -> Any:
    """A run of FLUX with three clusters of two devices, whose data are far apart."""
    card = find("flux")[0]
    parameters = card.configure("default", {"classes": 1, "dims": 2, "privacy": "off", **changes})
    model = {"w": np.eye(3, 2, dtype=np.float32)}
    described = {
        name: Descriptor(
            Moments(np.full((2, 2), float(place)), np.ones((2, 2)), np.array([50.0, 50.0])), "ab" * 32
        )
        for name, place in zip("abcdef", (0, 0, 9, 9, 20, 20), strict=True)
    }
    projector = {"mean": np.zeros(2), "components": np.eye(2)}
    clustering, homes = form_clusters(parameters, 1, model, projector, described)
    started = card.server().start(model, parameters)
    models = dict.fromkeys(clustering.names, model)
    return replace(started, clustering=clustering, assignments=homes, models=models, phase="clustered")


FLUX = find("flux")[0].server()


def test_a_newcomer_that_may_not_have_all_models_votes_for_one_and_names_no_other() -> None:
    state = flux()
    assert isinstance(placing.place(FLUX, state, Wish(64), 64), Choose)
    for wish, most in ((1, 64), (64, 2)):
        asked = placing.place(FLUX, state, Wish(wish), most)
        assert isinstance(asked, Vote)
        assert (asked.keys, asked.epsilon) == (("c0", "c1", "c2"), 1.0)
        assert asked.opened(manifest_of(state.models["c0"])).clusters["means"].shape == (3, 2, 2)
    found = placing.place(FLUX, state, Ballot("c1", 1.0), 64)
    assert isinstance(found, ClusterAssignment)
    assert (found.cluster, found.abstained) == ("c1", False)
    assert "private vote" in found.reason
    for wrong in (Ballot("c9", 1.0), Ballot("c1", 0.5)):
        with pytest.raises(BadPayload, match="no answer to what this run asks"):
            placing.place(FLUX, state, wrong, 64)


def test_with_placing_vote_there_is_no_other_way_whoever_asks() -> None:
    state = flux(placing="vote", vote_epsilon=0.5)
    for asked in (None, Wish(64), Wish(1)):
        question = placing.place(FLUX, state, asked, 64)
        assert isinstance(question, Vote)
        assert question.epsilon == 0.5
    with pytest.raises(ConfigError, match="placing=vote needs noise of a known size"):
        flux(placing="vote", privacy="paper", epsilon=5.0, grouping="density")
    blind = replace(state, clustering=replace(state.clustering, described={}))
    with pytest.raises(Refused, match="nothing to vote by"):
        placing.place(FLUX, blind, Wish(64), 64)


def test_runs_whose_paper_decides_take_no_votes() -> None:
    for half, run in ((FLUX, flux(placing="distance")), (IFCA, state())):
        with pytest.raises(BadPayload, match="takes no votes"):
            placing.place(half, run, Ballot("c1", 1.0), 64)


def one_cluster(**changes: Any) -> Any:
    """The run of `flux` when all of its devices are in one cluster."""
    run = flux(**changes)
    models = {"c0": run.models["c0"]}
    return replace(run, models=models, assignments=dict.fromkeys(run.assignments, "c0"))


@pytest.mark.parametrize("changes", [{}, {"placing": "vote"}])
def test_where_there_is_one_cluster_a_newcomer_gets_its_model_and_nothing_leaves_it(
    changes: dict[str, Any],
) -> None:
    found = placing.place(FLUX, one_cluster(**changes), Wish(64), 64)
    assert isinstance(found, ClusterAssignment)
    assert (found.cluster, found.abstained) == ("c0", False)


@pytest.mark.parametrize(("changes", "asked"), [({}, None), ({"placing": "distance"}, Wish(64))])
def test_with_one_cluster_the_paper_still_decides_for_those_that_cannot_choose(
    changes: dict[str, Any], asked: Wish | None
) -> None:
    assert isinstance(placing.place(FLUX, one_cluster(**changes), asked, 64), Describe)


def test_a_device_of_the_run_is_asked_to_fine_tune_its_clusters_model() -> None:
    found = placing.own(IFCA, state(learning_rate=0.5, momentum=0.25), "c")
    assert found is not None
    assert found.cluster == "c1"
    assert found.model["w"].tolist() == [1.0, 1.0]
    assert (found.settings.epochs, found.settings.learning_rate, found.settings.momentum) == (5, 0.5, 0.25)


def test_it_goes_on_with_what_is_left_of_the_learning_rate() -> None:
    slowed = replace(state(learning_rate=0.5), guard=Guard(histories={"c0": LossHistory(falls=2)}))
    found = placing.own(IFCA, slowed, "a")
    assert found is not None
    assert found.settings.learning_rate == 0.125


def test_a_model_is_fine_tuned_at_the_rate_from_before_it_fell() -> None:
    first = placing.own(IFCA, state(), "a")
    last = placing.own(IFCA, replace(state(), progress=19), "a")
    assert first is not None
    assert last is not None
    assert last.settings == first.settings


def test_newcomers_and_devices_that_predict_in_another_way_have_no_model_to_fine_tune() -> None:
    assert placing.own(IFCA, state(), "z") is None
    assert placing.own(IFCA, replace(state(), assignments={"a": "gone"}), "a") is None
    card = find("apfl")[0]
    trained = replace(card.server().start(ONE, card.configure()), assignments={"a": "global"})  # type: ignore[type-var]
    assert placing.own(card.server(), trained, "a") is None
