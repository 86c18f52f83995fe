"""Regression: losses and figures by hand, and what needs classes says so."""

import numpy as np
import pytest
import torch

from shoal.core.data.dataset import Dataset
from shoal.core.data.version import distinct
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import evaluate, score
from shoal.core.device_kit.evaluation.regression import explained, predictions
from shoal.core.device_kit.learner import Learner, builtin, initial_weights
from shoal.core.device_kit.samples import convert
from shoal.core.device_kit.standard import perform
from shoal.core.device_kit.training.private import attempt
from shoal.core.device_kit.training.train import train
from shoal.core.errors import DeviceFault, LearnerFault
from shoal.core.exchange.messages import Ensemble, TrainingSettings
from shoal.core.exchange.parts import Descriptor, Moments, PrivacySettings
from shoal.core.inference.describing import described
from shoal_lab.algorithms.atp import device as atp
from shoal_lab.algorithms.atp.messages import Learn

CPU = torch.device("cpu")


def line(count: int = 40, slope: float = 2.0) -> Dataset:
    x = np.linspace(-1, 1, count, dtype=np.float32)[:, None]
    return Dataset(x, slope * x[:, 0] + 1.0)


def linear() -> Learner:
    return builtin("mlp", {"inputs": 1, "hidden": (), "classes": 1})


def context(learner: Learner | None = None) -> DeviceContext:
    return DeviceContext(learner or linear(), Views.of(line()), "cpu", 1, np.random.default_rng(0))


def test_a_line_is_learned_and_explained() -> None:
    samples, model = convert(line(), CPU), linear().module(0)
    settings = TrainingSettings(epochs=60, batch_size=8, learning_rate=0.05)
    train(linear(), model, samples, settings, seed=0)
    share, error = evaluate(linear(), model, samples)
    assert share > 0.999
    with torch.no_grad():
        by_hand = (model(samples.x)[:, 0] - samples.goals).square().mean().item()
    assert error == pytest.approx(by_hand, rel=1e-5)
    weight, bias = (each.item() for each in model.parameters())
    assert (weight, bias) == pytest.approx((2.0, 1.0), abs=0.05)


def test_the_share_that_is_explained() -> None:
    targets = torch.tensor([0.0, 2.0])  # variance 1
    assert explained(0.25, targets) == 0.75
    assert explained(3.0, targets) == 0.0, "worse than the mean"
    assert (explained(0.0, torch.ones(3)), explained(0.1, torch.ones(3))) == (1.0, 0.0)


def test_a_network_of_another_shape_is_named() -> None:
    two = builtin("mlp", {"inputs": 1, "hidden": (), "classes": 2}).module(0)
    with pytest.raises(LearnerFault, match=r"gives shape \(4, 2\) for 4 samples, not one number"):
        predictions(two, torch.zeros(4, 1))
    flat = Learner("flat", lambda: torch.nn.Flatten(0))
    assert predictions(flat.module(0), torch.ones(4, 1)).shape == (4,)


def test_models_are_compared_by_their_error_and_data_described_as_one_class() -> None:
    here, models = context(), [initial_weights(linear(), seed) for seed in (0, 1)]
    losses = [evaluate(linear(), here.load(model), here.samples("train"))[1] for model in models]
    assert score(here, models).losses.tolist() == losses
    projector = {"mean": np.zeros(1), "components": np.ones((1, 1))}
    for classes in (1, 3):
        found = described(here, models[0], projector, ["train"], classes, PrivacySettings())
        assert isinstance(found, Descriptor)
        assert isinstance(found.statistics, Moments)
        assert (found.statistics.means[1] == found.statistics.means[0]).all()
        assert found.statistics.counts[1:].tolist() == [found.statistics.counts[0], *[0.0] * (classes - 1)]


def test_what_needs_classes_says_so() -> None:
    here, model = context(), initial_weights(linear(), 0)
    for task in (
        lambda: perform(Ensemble((model, model), (1.0, 1.0)), here),
        lambda: attempt(linear(), here.load(model), here.samples("train")),
        lambda: atp.perform(Learn(model, (0.1,) * len(model), 0.1, 8), here),
    ):
        with pytest.raises(DeviceFault, match="needs classes, and the labels of these data are numbers"):
            task()


def test_other_targets_are_other_data_and_a_number_is_no_class() -> None:
    one, other = line(), line(slope=3.0)
    ones = Dataset(one.x, np.ones(40)), Dataset(one.x, np.ones(40, np.int64))
    for pair in ((one, other), ones):
        first, second = np.split(distinct(pair, labels=True), 2)
        assert not set(first) & set(second)
        first, second = np.split(distinct(pair, labels=False), 2)
        assert first.tolist() == second.tolist()
    with pytest.raises(ValueError, match="NaN, infinity"):
        Dataset(one.x, np.full(40, 1e60))
