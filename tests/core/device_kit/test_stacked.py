"""Devices that train together end where each ends by itself, but for rounding."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import Learner, tensors_of
from shoal.core.device_kit.samples import convert
from shoal.core.device_kit.training import stacked
from shoal.core.device_kit.training.products import Products
from shoal.core.device_kit.training.train import TrainingJob, alone
from shoal.core.errors import Diverged
from shoal.core.exchange.messages import TrainingSettings

from .conftest import DEVICES, blobs

COUNTS = (5, 40, 63, 8)
"""Samples of the devices, which make 1 to 8 batches of 8."""


class Small(nn.Module):
    """A convolution and a linear layer; a frozen weight, one that nothing depends on, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.linear = nn.Conv2d(1, 3, (1, 2)), nn.Linear(9, 3)
        self.frozen = nn.Parameter(torch.rand(3), requires_grad=False)
        self.idle = nn.Linear(2, 2)
        self.register_buffer("shift", torch.rand(3))

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(F.relu(self.convolution(x[:, None, None])).flatten(1))
        return found * self.frozen + self.shift


SMALL = Learner("small", Small)


def job(
    count: int, settings: TrainingSettings, learner: Learner = SMALL, by: float = 1.0, device: str = "cpu"
) -> TrainingJob:
    data, there = blobs(count), torch.device(device)
    model = learner.module(seed=count).to(there)
    return TrainingJob(learner, model, convert(Dataset(data.x * by, data.y), there), settings, seed=count)


def by_itself(one: TrainingJob) -> tuple[float, TrainingJob]:
    copied = replace(one, model=deepcopy(one.model))
    return alone(copied), copied


def same_weights(first: TrainingJob, second: TrainingJob, within: float) -> None:
    found, right = tensors_of(first.model), tensors_of(second.model)
    for name, array in right.items():
        np.testing.assert_allclose(found[name], array, rtol=0, atol=within, err_msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "settings",
    [
        TrainingSettings(epochs=2, batch_size=8, learning_rate=0.05),
        TrainingSettings(epochs=3, batch_size=8, learning_rate=0.05, momentum=0.0, weight_decay=0.1),
        TrainingSettings(epochs=0, batch_size=0, learning_rate=0.05, restart_momentum=True, proximal=0.2),
        TrainingSettings(epochs=3, batch_size=64, learning_rate=0.01, optimizer="adam", weight_decay=0.1),
        TrainingSettings(epochs=2, batch_size=8, learning_rate=0.01, optimizer="adamw", weight_decay=0.1),
        TrainingSettings(
            epochs=0,
            batch_size=0,
            learning_rate=0.01,
            optimizer="adamw",
            restart_momentum=True,
            clip_norm=0.5,
        ),
    ],
    ids=lambda settings: f"{settings.optimizer}-{settings.batch_size}",
)
def test_weights_and_losses_are_those_of_each_by_itself(settings: TrainingSettings, device: str) -> None:
    jobs = [job(count, settings, device=device) for count in COUNTS]
    own = [by_itself(one) for one in jobs]
    found = stacked.train(jobs)
    assert found == pytest.approx([loss for loss, _ in own], abs=1e-4 if device == "cpu" else 1e-2)
    for one, (_, other) in zip(jobs, own, strict=True):
        same_weights(one, other, within=1e-4 if device == "cpu" else 1e-2)


def test_numbers_can_be_predicted_too() -> None:
    def made(count: int) -> TrainingJob:
        x = blobs(count).x
        samples = convert(Dataset(x, x.sum(axis=1)), torch.device("cpu"))
        settings = TrainingSettings(epochs=2, batch_size=8, learning_rate=0.01)
        return TrainingJob(LINE, LINE.module(seed=count), samples, settings, seed=count)

    LINE = Learner("line", lambda: nn.Linear(4, 1))
    jobs = [made(count) for count in COUNTS]
    own = [by_itself(one) for one in jobs]
    assert stacked.train(jobs) == pytest.approx([loss for loss, _ in own], abs=1e-4)
    same_weights(jobs[1], own[1][1], within=1e-5)


def test_one_that_diverges_is_the_only_one() -> None:
    settings = TrainingSettings(epochs=2, batch_size=8, learning_rate=0.05)
    jobs = [job(count, settings, by=1e30 if count == 63 else 1.0) for count in COUNTS]
    own = [by_itself(one) for one in jobs if len(one.samples) != 63]
    found = stacked.train(jobs)
    assert found is not None
    with pytest.raises(Diverged) as wanted:
        by_itself(job(63, settings, by=1e30))
    lost = found.pop(2)
    assert isinstance(lost, Diverged)
    assert lost.hint == wanted.value.hint
    assert found == pytest.approx([loss for loss, _ in own], abs=1e-4)
    for one, (_, other) in zip([*jobs[:2], jobs[3]], own, strict=True):
        same_weights(one, other, within=1e-4)


class Mixing(nn.Module):
    """Centers each batch, so that a sample's scores depend on the others."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x)
        return found - found.mean(0)


class Looking(nn.Module):
    """Its way depends on numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.linear(x)
        return found if found.sum().item() > 0 else found * 2.0


class Counting(nn.Module):
    """Writes into a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1.0
        found: Tensor = self.linear(x)
        return found


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)),
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
        Mixing,
        Looking,
        Counting,
        lambda: nn.Linear(4, 2),
    ],
    ids=["batch norm", "dropout", "mixing", "looking", "counting", "too few outputs"],
)
def test_what_cannot_be_computed_together_is_left_as_it_is(build: Callable[[], nn.Module]) -> None:
    learner = Learner("other", build)
    settings = TrainingSettings(epochs=1, batch_size=8, learning_rate=0.05)
    jobs = [job(count, settings, learner) for count in COUNTS]
    before, chance = [tensors_of(one.model) for one in jobs], torch.get_rng_state()
    assert stacked.train(jobs) is None
    for one, weights in zip(jobs, before, strict=True):
        for name, array in tensors_of(one.model).items():
            np.testing.assert_array_equal(array, weights[name])
    assert torch.equal(torch.get_rng_state(), chance)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(3, 4, (3, 2), stride=(2, 1), padding=(1, 0)),
        nn.Conv2d(3, 4, 5, bias=False),
        nn.Conv2d(3, 4, 3, padding="same"),
        nn.Conv2d(3, 6, 3, groups=3, dilation=2),
    ],
)
def test_a_product_is_the_convolution(layer: nn.Conv2d) -> None:
    x = torch.rand(5, 3, 9, 11, generator=torch.Generator().manual_seed(1))
    with Products():
        found = layer(x)
    torch.testing.assert_close(found, layer(x))


def test_of_one_kind_are_lessons_of_the_same_settings_shapes_and_weights_that_train() -> None:
    settings = TrainingSettings(epochs=1, batch_size=8)
    first, others = job(5, settings), [job(8, settings) for _ in range(2)]
    others[1].model.linear.bias.requires_grad_(False)
    kinds = {stacked.kind_of(one) for one in (first, *others, job(5, replace(settings, epochs=2)))}
    assert len(kinds) == 3
    assert stacked.kind_of(job(5, settings, Learner("own", Small, loss=lambda *given: None))) is None
