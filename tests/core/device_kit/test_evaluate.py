import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.evaluation.evaluate import WORST, are_probabilities, detailed, evaluate, score
from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.samples import PASS, Samples, convert
from shoal.core.errors import DeviceFault, LearnerFault

from .conftest import Slope, context_of, mean_output

CPU = torch.device("cpu")


class Echo(nn.Module):
    """Gives its input back as class scores; in training mode it gives nonsense."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.full_like(x, math.nan) if self.training else x


def scored(rows: list[list[float]], labels: list[int]) -> Samples:
    return convert(Dataset(np.array(rows), np.array(labels)), CPU)


def test_accuracy_and_cross_entropy_by_hand() -> None:
    """Scores (log 3, 0) are odds of 3 to 1: -log 3/4 for class 0, -log 1/4 for class 1."""
    samples = scored([[math.log(3), 0.0]] * 3, [0, 0, 1])
    accuracy, loss = evaluate(Learner("echo", Echo), Echo(), samples)
    assert accuracy == pytest.approx(2 / 3)
    assert loss == pytest.approx((2 * -math.log(3 / 4) - math.log(1 / 4)) / 3)


class Shifting(nn.Module):
    """Computes in its input, as code that normalizes may, and in-place layers at the front of a network."""

    def forward(self, x: Tensor) -> Tensor:
        x -= 1.0
        return x


@pytest.mark.parametrize(
    ("learner", "labels"),
    [
        (Learner("classifier", Shifting), [0, 1]),
        (Learner("loss", Shifting, loss=lambda model, x, y: model(x).mean()), [0, 1]),
        (
            Learner("measure", Shifting, evaluate=lambda model, each: (0.5, model(each.x).mean().item())),
            [0, 1],
        ),
        (Learner("numbers", Shifting), [0.5, 1.5]),
    ],
)
def test_a_network_that_computes_in_place_does_not_change_the_owners_data(
    learner: Learner, labels: list
) -> None:
    x = np.array([[1.0, 5.0], [2.0, 3.0]], np.float32)[:, : 1 if labels == [0.5, 1.5] else 2].copy()
    before, samples = x.copy(), convert(Dataset(x, np.array(labels)), CPU)
    assert evaluate(learner, Shifting(), samples) == evaluate(learner, Shifting(), samples)
    if samples.targets is None:
        detailed(learner, Shifting(), samples)
        are_probabilities(learner, Shifting(), samples)
    assert np.array_equal(x, before)


def test_the_mean_is_by_sample_over_unequal_passes() -> None:
    """One sample more than a pass: it must not weigh as much as all others together."""
    samples = scored([[0.0, 0.0]] * PASS + [[0.0, 100.0]], [0] * PASS + [0])
    accuracy, loss = evaluate(Learner("echo", Echo), Echo(), samples)
    assert accuracy == pytest.approx(PASS / (PASS + 1))
    assert loss == pytest.approx((PASS * math.log(2) + 100) / (PASS + 1))


def test_the_authors_loss_is_used() -> None:
    samples = scored([[1.0, 0.0], [3.0, 0.0]], [0, 0])
    learner = Learner("own", Echo, loss=lambda model, x, y: model(x).sum(1).mean())
    assert evaluate(learner, Echo(), samples) == (1.0, 2.0)


def test_the_authors_measure_is_used() -> None:
    learner = Learner("own", Echo, evaluate=lambda model, samples: (len(samples) / 10, torch.tensor(0.5)))  # type: ignore[arg-type, return-value]
    assert evaluate(learner, Echo(), scored([[0.0]], [0])) == (0.1, 0.5)


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (0.5, "returned 0.5"),
        ((0.1, 0.2, 0.3), "returned"),
        ((50.0, 0.1), "accuracy 50.0"),
        ((math.nan, 0.1), "accuracy nan"),
        ((0.5, math.inf), "loss is inf"),
    ],
)
def test_numbers_that_are_none_are_the_authors_to_hint(returned: object, message: str) -> None:
    learner = Learner("own", Echo, evaluate=lambda model, samples: returned)  # type: ignore[arg-type, return-value]
    with pytest.raises(LearnerFault, match=message):
        evaluate(learner, Echo(), scored([[0.0]], [0]))


def test_a_diverged_model_is_said_to_have_diverged() -> None:
    class Diverged(Echo):
        def forward(self, x: Tensor) -> Tensor:
            return x * math.nan

    with pytest.raises(LearnerFault, match="loss is nan"):
        evaluate(Learner("diverged", Diverged), Diverged(), scored([[1.0, 2.0]], [0]))


def test_labels_are_needed() -> None:
    with pytest.raises(DeviceFault, match="needs labels"):
        evaluate(Learner("echo", Echo), Echo(), convert(Dataset(np.ones((2, 1))), CPU))


def test_the_loss_of_each_model_in_order_on_the_training_part() -> None:
    """The loss is w times the mean of x. Of ones, one in five is held out."""
    context = context_of(
        Learner("slope", Slope, loss=mean_output, evaluate=None),
        Dataset(np.ones((10, 1), np.float32), np.zeros(10, np.int64)),
    )
    models = [{"w": np.array([value], np.float32)} for value in (3.0, -1.0, 0.5)]
    scores = score(context, models)
    assert scores.losses.tolist() == [3.0, -1.0, 0.5]
    assert scores.examples == 8


def test_a_model_without_a_finite_loss_is_named_as_diverged() -> None:
    context = context_of(
        Learner("slope", Slope, loss=mean_output), Dataset(np.ones((5, 1)), np.zeros(5, np.int64))
    )
    with pytest.raises(LearnerFault, match="diverged"):
        score(context, [{"w": np.array([math.nan], np.float32)}])


def test_a_model_that_somebody_ruined_fits_nobody_and_stops_nobody() -> None:
    context = context_of(
        Learner("slope", Slope, loss=mean_output), Dataset(np.ones((5, 1)), np.zeros(5, np.int64))
    )
    models = [{"w": np.array([value], np.float32)} for value in (math.nan, 2.0, 3e38)]
    assert score(context, models).losses.tolist() == [WORST, 2.0, WORST]
