"""What a newcomer answers, with a network of a few lines of numpy."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.errors import BadPayload, LearnerFault
from shoal.core.exchange.choosing import Choose, Chosen, ClusterDensities
from shoal.core.exchange.choosing.compact import compact
from shoal.core.exchange.choosing.vote import Voted, vote_on
from shoal.core.exchange.messages import Score
from shoal.core.exchange.parts import Ballot
from shoal.core.exchange.tensors import manifest_of
from shoal.core.inference import newcomer
from shoal.core.inference.context import InferenceContext
from shoal.core.inference.describing import apart, projected
from shoal.core.inference.nearness import log_densities
from shoal.core.inference.newcomer import NoClassifier
from shoal.core.privacy.accountant import Account, R, T, Unmetered
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.noise.vote import STEPS, drawn, scores
from shoal.core.privacy.payment import Payment, voting
from shoal.core.types import Array, Tensors

SMALL = builtin("mlp", {"inputs": 4, "hidden": (5,), "classes": 3})


class Small:
    """The network of `SMALL`, by hand: 4 inputs -> 5 -> 3 classes."""

    name, classifier, batch = "small", True, 16
    manifest = manifest_of(initial_weights(SMALL, 0))
    weights: Tensors

    def __init__(self) -> None:
        self.seen: list[int] = []

    def load(self, weights: Tensors) -> None:
        self.weights = weights

    def latents(self, x: Array) -> Array:
        self.seen.append(len(x))
        hidden, bias = (self.weights[f"features.1.{name}"] for name in ("weight", "bias"))
        return np.maximum(x @ hidden.T + bias, 0)

    def scores(self, x: Array) -> Array:
        return self.latents(x) @ self.weights["head.weight"].T + self.weights["head.bias"]


def views(count: int = 300, labels: bool = True) -> Views:
    chance = np.random.default_rng(7)
    x = chance.normal(size=(count, 4)).astype(np.float32)
    return Views.of(Dataset(x, chance.integers(0, 3, count) if labels else None))


def device(data: Views, account: Account | None = None) -> InferenceContext:
    return InferenceContext(Small(), data, np.random.default_rng(0), account)


def models(count: int) -> tuple[Tensors, ...]:
    return tuple({k: 4 * w for k, w in initial_weights(SMALL, seed).items()} for seed in range(count))


def known() -> tuple[Tensors, Tensors, Tensors]:
    """Where the data of three clusters lie: encoder, projector and densities."""
    chance = np.random.default_rng(8)
    projector: Tensors = {"mean": chance.normal(size=5), "components": chance.normal(size=(2, 5))}
    clusters: Tensors = {
        "shares": np.ones((3, 2)),
        "means": chance.normal(size=(3, 2, 2)),
        "variances": np.ones((3, 2, 2)),
    }
    return models(1)[0], projector, clusters


@pytest.mark.parametrize("labels", [True, False])
def test_the_model_that_says_the_most_of_the_samples_is_chosen(labels: bool) -> None:
    """By hand: the first says the same of all, and the others are sure of different classes."""
    first, second = models(2)
    nothing = {name: np.zeros_like(array) for name, array in first.items()}
    sure = {name: 20 * array for name, array in second.items()}
    data = views(labels=False)
    if labels:
        network = Small()
        network.load(sure)
        data = Views.of(Dataset(data.train.x, network.scores(data.train.x).argmax(axis=1)))
    question = Choose((nothing, sure, nothing), "a b all", (9.0, 1.0))
    found = newcomer.choose(question, device(data))
    assert found.assignment.cluster == "b"
    assert (
        found.assignment.reason == f"chosen on this device by {'labels' if labels else 'mutual information'}"
    )
    assert found.odds[1] > 0.99
    assert found.information[0] == pytest.approx(-np.log(3) if labels else 0.0, abs=1e-6)
    assert found.examples == 300


@pytest.mark.parametrize("labels", [True, False])
def test_clusters_that_name_classes_differently_share_their_odds_by_their_devices(labels: bool) -> None:
    described = (*known(), (0.0, 0.0, 1.0))
    question = compact(Choose(models(4), "a b c all", (1.0, 3.0, 1.0), *described))
    opened = question.opened(Small.manifest)
    assert opened.kin == (0, 0, 1)
    found = newcomer.choose(opened, device(views(labels=labels)))
    assert (found.odds[1] == pytest.approx(3.0 * found.odds[0])) is not labels
    with pytest.raises(BadPayload, match="kin of 2 of 3"):
        Choose(models(4), "a b c all", (1.0, 2.0, 1.0), kin=(0.0, 1.0))


def test_where_the_clusters_data_lie_is_evidence_too() -> None:
    encoder, projector, clusters = known()
    data = views(labels=False)
    points = projected(device(data), encoder, projector, ["train"])
    near = {**clusters, "means": clusters["means"].copy(), "variances": clusters["variances"].copy()}
    near["means"][1], near["variances"][1] = points.mean(axis=0), points.var(axis=0)
    question = Choose((models(1)[0],) * 4, "a b c all", (1.0, 2.0, 1.0), encoder, projector, near)
    found = newcomer.choose(question, device(data))
    assert found.assignment.cluster == "b", "the models are all the same"
    assert found.assignment.reason == "chosen on this device by mutual information and likelihood"
    assert found.likelihood is not None
    assert found.likelihood[1] == 0.0 > max(found.likelihood[0], found.likelihood[2])
    wrong = replace(question, projector={**projector, "components": np.eye(5)})
    with pytest.raises(BadPayload, match="2 dimensions came with a projector to 5"):
        newcomer.choose(wrong, device(data))


class Noted(Unmetered):
    """Notes what is paid for a vote, and its scores."""

    def pay(self, payment: Payment, exact: Callable[[], T], noised: Callable[[T, Entropy], R]) -> R:
        self.payment, self.scores = payment, exact()
        return super().pay(payment, lambda: self.scores, noised)


def test_a_vote_is_by_the_densities_of_distinct_samples_each_computed_by_itself() -> None:
    described, few = ClusterDensities(*known()), views(20, labels=False).train.x
    asked, account = vote_on(("a", "b", "c"), described, 1.0), Noted(np.random.default_rng(1).bytes)
    context = device(Views.of(Dataset(np.concatenate([few, few[:7]]))), account)
    answer = newcomer.perform(asked, context)
    assert isinstance(answer, Voted)
    assert account.payment == voting(1.0, asked.digest, context.version())
    assert context.network.seen == [1] * 20  # type: ignore[attr-defined]
    opened = asked.opened(Small.manifest)
    points = projected(device(Views.of(Dataset(few))), opened.encoder, opened.projector, ["train"])
    assert account.scores == pytest.approx(scores(log_densities(points, opened.clusters)), abs=1e-4 * STEPS)
    assert answer.ballot == Ballot("abc"[drawn(account.scores, 1.0, np.random.default_rng(1).bytes)], 1.0)


def test_a_compact_choice_comes_back_with_its_models() -> None:
    compacted = compact(Choose(models(4), "a b c all", (1.0, 2.0, 1.0), *known()))
    found = newcomer.perform(compacted, device(views(labels=False)))
    assert isinstance(found, Chosen)
    opened = compacted.opened(Small.manifest)
    assert found.model is not None
    for name, array in opened.models[opened.keys.index(found.assignment.cluster)].items():
        assert found.model[name].tolist() == array.tolist()
    assert len(found.others or ()) == len(
        set(newcomer.members(found)) - {opened.keys.index(found.assignment.cluster)}
    )


def test_what_has_a_guarantee_is_computed_sample_by_sample() -> None:
    """The network may come from a server: in a batch it could let one sample change what others give."""
    context, chance = device(views(20)), np.random.default_rng(3)
    projector: Tensors = {
        "mean": chance.normal(size=7),
        "components": chance.normal(size=(2, 7)),
        "radius": np.array(2.0),
    }
    found = list(apart(context, models(1)[0], projector, ["train"], np.arange(16)))
    assert context.network.seen == [1] * 16  # type: ignore[attr-defined]
    assert np.concatenate(found) == pytest.approx(
        projected(context, models(1)[0], projector, ["train"]), rel=1e-5
    )


def test_what_needs_the_authors_code_is_refused_with_the_way_out() -> None:
    with pytest.raises(BadPayload, match=r"without PyTorch cannot answer 'score'") as fault:
        newcomer.perform(Score(models(2)), device(views()))
    assert "install PyTorch" in fault.value.hint


def test_a_network_with_its_own_loss_lets_the_run_decide() -> None:
    context = device(views())
    context.network.classifier = False
    with pytest.raises(NoClassifier):
        newcomer.choose(Choose(models(2), "a all", (1.0,)), context)


def test_numbers_to_predict_are_no_classes() -> None:
    data = Views.of(Dataset(np.zeros((8, 4), np.float32), np.linspace(0, 1, 8)))
    with pytest.raises(LearnerFault):
        newcomer.choose(Choose(models(2), "a all", (1.0,)), device(data))
