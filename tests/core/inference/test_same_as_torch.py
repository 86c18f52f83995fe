"""What a device finds without PyTorch is what it finds with it: the same latents, moments and choices."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit import choosing, standard
from shoal.core.device_kit import describe as with_torch
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, builtin, initial_weights
from shoal.core.errors import BadPayload, LearnerFault
from shoal.core.exchange.choosing import Choose, Chosen, ClusterDensities
from shoal.core.exchange.choosing.compact import compact
from shoal.core.exchange.choosing.vote import Voted, vote_on
from shoal.core.exchange.messages import Describe, Score
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.exchange.tensors import manifest_of
from shoal.core.inference import newcomer
from shoal.core.inference.choosing import NoClassifier
from shoal.core.inference.moments import project, standardized
from shoal.core.inference.newcomer import InferenceContext
from shoal.core.privacy.accountant import MaskedUpdate, R, T, Unmetered
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.noise.vote import STEPS
from shoal.core.privacy.payment import Payment
from shoal.core.types import Array, Tensors

SMALL = builtin("mlp", {"inputs": 4, "hidden": (5,), "classes": 3})


class Small:
    """The network of `SMALL`, by hand: 4 inputs -> 5 -> 3 classes."""

    name, classifier = "small", True
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


def both(data: Views, learner: Learner = SMALL) -> tuple[DeviceContext, InferenceContext]:
    noise = np.random.default_rng(0)
    return DeviceContext(learner, data, "cpu", 0, noise), InferenceContext(Small(), data, noise)


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


@pytest.mark.parametrize("radius", [False, True])
def test_projected_latents(radius: bool) -> None:
    chance = np.random.default_rng(1)
    latents = chance.normal(size=(40, 6)).astype(np.float32)
    latents[3] = 2.5  # all the same, so that there is nothing to bring to length 1
    width = 8 if radius else 6
    projector: Tensors = {"mean": chance.normal(size=width), "components": chance.normal(size=(3, width))}
    if radius:
        projector = {**projector, "radius": np.array(1.5)}
    found = project([latents[:30], latents[30:]], projector)
    wanted = with_torch.project(iter([torch.from_numpy(latents)]), projector)
    assert found == pytest.approx(wanted, rel=1e-12, abs=1e-12)


def test_latents_that_are_no_numbers_stay_such() -> None:
    found = standardized(np.array([[1.0, np.nan], [np.inf, 1.0]]))
    wanted = with_torch.standardized(torch.tensor([[1.0, np.nan], [np.inf, 1.0]], dtype=torch.float64))
    assert np.array_equal(np.isnan(found), torch.isnan(wanted).numpy())
    assert np.isnan(found).any(axis=1).all()


@pytest.mark.parametrize("labels", [True, False])
def test_the_choice(labels: bool) -> None:
    question = Choose(models(4), "a b c all", (1.0, 2.0, 1.0))
    trained, light = both(views(labels=labels))
    wanted, found = choosing.choose(question, trained), newcomer.choose(question, light)
    assert found.assignment.cluster == wanted.assignment.cluster
    assert found.assignment.reason == wanted.assignment.reason
    for name in ("information", "errors", "odds", "agreement"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), abs=1e-5), name
    assert (found.mixture is None) == (wanted.mixture is None)
    assert found.mixture is None or found.mixture == pytest.approx(wanted.mixture, abs=1e-5)


@pytest.mark.parametrize("labels", [True, False])
def test_the_choice_among_clusters_that_name_classes_differently(labels: bool) -> None:
    described = (*known(), (0.0, 0.0, 1.0))
    question = compact(Choose(models(4), "a b c all", (1.0, 3.0, 1.0), *described))
    opened = question.opened(manifest_of(models(1)[0]))
    assert opened.kin == (0, 0, 1)
    trained, light = both(views(labels=labels))
    wanted, found = choosing.choose(opened, trained), newcomer.choose(opened, light)
    assert found.odds == pytest.approx(wanted.odds, abs=1e-4)
    assert (found.odds[1] == pytest.approx(3.0 * found.odds[0])) is not labels
    with pytest.raises(BadPayload, match="kin of 2 of 3"):
        Choose(models(4), "a b c all", (1.0, 2.0, 1.0), kin=(0.0, 1.0))


def test_the_choice_where_the_clusters_data_are_known() -> None:
    described = known()
    question = Choose(models(4), "a b c all", (1.0, 2.0, 1.0), *described)
    trained, light = both(views(labels=False))
    wanted, found = choosing.choose(question, trained), newcomer.choose(question, light)
    assert wanted.likelihood is not None
    assert found.likelihood == pytest.approx(wanted.likelihood, abs=1e-4)
    assert found.spread == pytest.approx(wanted.spread, rel=1e-6)
    assert found.odds == pytest.approx(wanted.odds, abs=1e-4)
    wrong = replace(question, projector={**described[1], "components": np.eye(5)})
    for choose, context in ((choosing.choose, trained), (newcomer.choose, light)):
        with pytest.raises(BadPayload, match="2 dimensions came with a projector to 5"):
            choose(wrong, context)  # type: ignore[operator]


class Noted(Unmetered):
    """Notes the scores of a vote, and draws from the same seed."""

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(1).bytes)

    def pay(self, payment: Payment, exact: Callable[[], T], noised: Callable[[T, Entropy], R]) -> R:
        self.payment, self.scores = payment, exact()
        return super().pay(payment, lambda: self.scores, noised)


def test_the_vote_and_the_compact_choice() -> None:
    described = known()
    asked = vote_on(("a", "b", "c"), ClusterDensities(*described), 1.0)
    compacted = compact(Choose(models(4), "a b c all", (1.0, 2.0, 1.0), *described))
    trained, light = both(views(labels=False))
    trained.account, light.account = Noted(), Noted()
    one, other = choosing.perform(asked, trained), newcomer.perform(asked, light)
    assert isinstance(one, Voted)
    assert isinstance(other, Voted)
    assert other.ballot == one.ballot
    assert light.account.payment == trained.account.payment
    assert light.account.scores == pytest.approx(trained.account.scores, abs=1e-4 * STEPS)
    one, other = choosing.perform(compacted, trained), newcomer.perform(compacted, light)
    assert isinstance(one, Chosen)
    assert isinstance(other, Chosen)
    assert one.assignment.cluster == other.assignment.cluster
    assert one.model is not None
    assert other.model is not None
    for name, array in one.model.items():
        assert other.model[name].tolist() == array.tolist()


@pytest.mark.parametrize(("mode", "classes"), [("off", 0), ("off", 3), ("paper", 3)])
def test_the_description(mode: str, classes: int) -> None:
    """Where noise is drawn, both contexts draw it from the same seed."""
    chance = np.random.default_rng(3)
    projector: Tensors = {"mean": chance.normal(size=5), "components": chance.normal(size=(2, 5))}
    message = Describe(models(1)[0], projector, classes, PrivacySettings(mode, 5.0 * (mode == "paper")))
    found = []
    for half, index in ((standard, 0), (newcomer, 1)):
        context = both(views())[index]
        context.account = _Open()  # type: ignore[assignment]
        found.append(half.perform(message, context).descriptor)  # type: ignore[attr-defined, arg-type]
    for name in ("means", "deviations", "counts"):
        wanted = getattr(found[0].statistics, name)
        assert getattr(found[1].statistics, name) == pytest.approx(wanted, abs=1e-5), name


class _Open:
    """An owner who lets everything leave in the open."""

    def summed(self, update: MaskedUpdate) -> None:
        raise AssertionError

    def unprotected(self, what: str, data: str) -> None:
        pass


def test_what_has_a_guarantee_is_computed_sample_by_sample() -> None:
    """The network may come from a server: in a batch it could let one sample change what others give."""
    data, chance = views(20), np.random.default_rng(3)
    context = both(data)[1]
    context.network.load(models(1)[0])
    projector: Tensors = {
        "mean": chance.normal(size=7),
        "components": chance.normal(size=(2, 7)),
        "radius": np.array(2.0),
    }
    x = context.inputs(["train"])
    found = list(newcomer.apart(context.network, x, np.arange(len(x)), projector, None))
    assert context.network.seen == [1] * len(x)  # type: ignore[attr-defined]
    whole = project([context.network.latents(x)], projector)
    assert np.concatenate([each for each, _ in found]) == pytest.approx(whole, rel=1e-5)


def test_what_needs_the_authors_code_is_refused_with_the_way_out() -> None:
    with pytest.raises(BadPayload, match=r"without PyTorch cannot answer 'score'") as fault:
        newcomer.perform(Score(models(2)), both(views())[1])
    assert "install PyTorch" in fault.value.hint


def test_a_network_with_its_own_loss_lets_the_run_decide() -> None:
    context = both(views())[1]
    context.network.classifier = False
    with pytest.raises(NoClassifier):
        newcomer.choose(Choose(models(2), "a all", (1.0,)), context)


def test_numbers_to_predict_are_no_classes() -> None:
    data = Views.of(Dataset(np.zeros((8, 4), np.float32), np.linspace(0, 1, 8)))
    with pytest.raises(LearnerFault):
        newcomer.choose(Choose(models(2), "a all", (1.0,)), both(data)[1])
