import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.network import TorchNetwork, latent_and_scores
from shoal.core.errors import LearnerFault
from shoal.core.exchange.choosing import Choose
from shoal.core.inference import newcomer
from shoal.core.inference.describing import latent_bounds
from shoal.core.types import Array
from tests.core.inference.test_newcomer import SMALL, Small, device, known, models, views

CPU = torch.device("cpu")


def rows(*values: list[float]) -> Array:
    return np.array(values, np.float32)


class Doubler(nn.Module):
    """x -> 2 x by `twice`, then an in-place step that takes all of it away."""

    def __init__(self) -> None:
        super().__init__()
        self.twice = nn.Linear(2, 2, bias=False)
        self.twice.weight.data = 2 * torch.eye(2)
        self.unused = nn.Identity()
        self.pair = nn.LSTM(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        doubled = self.twice(x)
        doubled.zero_()
        return self.pair(doubled)[0]  # type: ignore[no-any-return]


def one(learner: Learner, x: Array) -> Array:
    return TorchNetwork(learner, learner.module(0), CPU).latents(x)


def test_a_function_a_submodule_or_the_networks_own() -> None:
    class Own(Doubler):
        def latent(self, x: Tensor) -> Tensor:
            return x + 1

    samples = rows([1, 2], [3, 4])
    assert one(Learner("f", Doubler, latent=lambda model, x: x * 3), samples).tolist() == [[3, 6], [9, 12]]
    assert one(Learner("own", Own), samples).tolist() == [[2, 3], [4, 5]]
    # The learner's word goes before the network's, and later in-place steps do not reach what was seen.
    assert one(Learner("name", Own, latent="twice"), samples).tolist() == [[2, 4], [6, 8]]


def test_the_output_of_a_submodule_is_flattened_and_its_hook_removed() -> None:
    learner = Learner("conv", lambda: nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU()), latent="0")
    model = learner.module(0)
    images = torch.rand(2, 1, 4, 4)
    found = TorchNetwork(learner, model, CPU).latents(images.numpy())
    assert found.shape == (2, 3 * 3 * 3)
    assert found.tolist() == model[0](images).flatten(1).tolist()  # type: ignore[index]
    assert model(images).shape == (2, 3, 3, 3)


def test_latents_and_scores_are_of_evaluation_mode_and_leave_the_samples_as_they_are() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.layer = nn.Dropout(0.9), nn.Linear(2, 3)

        def latent(self, x: Tensor) -> Tensor:
            return self.drop(x.mul_(2.0))  # type: ignore[no-any-return]

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(self.latent(x))  # type: ignore[no-any-return]

    learner, x = Learner("own", Own), rows([1, 2], [3, 4], [5, 6])
    model = learner.module(0).train()
    network = TorchNetwork(learner, model, CPU)
    assert network.latents(x).tolist() == [[2, 4], [6, 8], [10, 12]]
    with torch.no_grad():
        wanted = model.layer(torch.from_numpy(2 * x))  # type: ignore[operator]
    model.train()
    assert network.scores(x).tolist() == wanted.tolist()
    assert not model.training
    assert x.tolist() == [[1, 2], [3, 4], [5, 6]]


def test_scores_that_are_no_tensor_are_the_authors_to_mend() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    with pytest.raises(LearnerFault, match="gives a tuple for 1 samples"):
        TorchNetwork(learner := Learner("two", Two), learner.module(0), CPU).scores(rows([1, 2]))


@pytest.mark.parametrize(
    ("latent", "message"),
    [
        ("twise", 'did you mean "twice"'),
        ("unused", "was not called"),
        ("pair", "not a tensor"),
        (lambda model, x: x[:, 0], r"shape \(2,\)"),
        (lambda model, x: x[:1], r"shape \(1, 2\)"),
        (lambda model, x: x.tolist(), "a list"),
    ],
)
def test_a_latent_that_is_none_says_what_is_wrong(latent: object, message: str) -> None:
    learner = Learner("wrong", Doubler, latent=latent)  # type: ignore[arg-type]
    with pytest.raises(LearnerFault, match=message):
        one(learner, rows([1, 2], [3, 4]))


class HeadFirst(nn.Module):
    """It names its head before its body, and calls the body twice."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.body, self.unused = nn.Linear(2, 3), nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(self.body(x))
        scores: Tensor = self.head(hidden)
        hidden.zero_()
        return scores


def test_where_nothing_is_said_the_latent_is_what_goes_into_the_last_linear_layer() -> None:
    learner, x = Learner("mine", HeadFirst), rows([1, 2], [3, 4])
    model = learner.module(0).eval()
    assert isinstance(model, HeadFirst)
    given = torch.from_numpy(x)
    with torch.no_grad():
        wanted = model.body(model.body(given))
        latent, scores = latent_and_scores(learner, model, given)
    assert TorchNetwork(learner, model, CPU).latents(x).tolist() == wanted.tolist() == latent.tolist()
    assert scores.tolist() == model.head(wanted).tolist()


def test_a_linear_layer_that_sees_other_rows_than_samples_gives_no_latent() -> None:
    class Halves(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(1, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.reshape(-1, 1)).reshape(-1, 2)  # type: ignore[no-any-return]

    with pytest.raises(LearnerFault, match="has no latent") as caught:
        one(Learner("halves", Halves), rows([1, 2], [3, 4]))
    assert "(layer)" in caught.value.hint


def test_a_failing_forward_shows_the_authors_frame_also_through_a_hook() -> None:
    class Broken(Doubler):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("the author's own words")

    with pytest.raises(LearnerFault, match="own words") as caught:
        one(Learner("broken", Broken, latent="twice"), rows([1, 2]))
    assert "test_network.py" in caught.value.details.splitlines()[1]


BATCHES = [np.array([[1.0, -2.0], [0.0, 5.0]]), np.array([[-3.0, 4.0]])]


def test_bounds_are_over_all_coordinates() -> None:
    found, width = latent_bounds(iter(BATCHES))
    assert (found.low.tolist(), found.high.tolist()) == ([-3.0], [5.0])
    assert (found.provenance, width) == ("raw", 2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_latents_that_are_not_finite_have_no_latent_bounds(bad: float) -> None:
    with pytest.raises(LearnerFault, match="NaN or infinite"):
        latent_bounds([*BATCHES, np.array([[bad, 0.0]])])


def test_a_choice_with_pytorch_is_that_of_the_same_network_by_hand() -> None:
    data = views(labels=False)
    question = Choose(models(4), "a b c all", (1.0, 2.0, 1.0), *known())
    trained = DeviceContext(SMALL, data, "cpu", 0, np.random.default_rng(0))
    assert trained.network.manifest == Small.manifest
    found, wanted = newcomer.choose(question, trained), newcomer.choose(question, device(data))
    assert found.assignment.cluster == wanted.assignment.cluster
    for name in ("information", "errors", "odds", "agreement", "likelihood"):
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), abs=1e-5), name
