import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.latents import bounds, latents
from shoal.core.device_kit.learner import Learner, builtin
from shoal.core.device_kit.samples import PASS, Samples, convert
from shoal.core.errors import BadPayload, LearnerFault

CPU = torch.device("cpu")


def rows(*values: list[float]) -> Samples:
    return convert(Dataset(np.array(values, np.float32)), CPU)


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


def one(learner: Learner, samples: Samples) -> Tensor:
    (batch,) = latents(learner, learner.module(0), samples)
    return batch


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
    (found,) = latents(learner, model, convert(Dataset(images.numpy()), CPU))
    assert found.shape == (2, 3 * 3 * 3)
    assert torch.equal(found, model[0](images).flatten(1))  # type: ignore[index]
    assert model(images).shape == (2, 3, 3, 3)


def test_batches_come_in_order_in_evaluation_mode_and_without_gradients() -> None:
    learner = builtin("mlp", {"inputs": 2, "hidden": (), "classes": 2})
    model = learner.module(0).train()
    data = np.arange(2.0 * (PASS + 5), dtype=np.float32).reshape(-1, 2)
    found = list(latents(learner, model, convert(Dataset(data), CPU)))
    assert [len(batch) for batch in found] == [PASS, 5]
    assert torch.cat(found).numpy().tolist() == data.tolist()
    assert not model.training
    assert not any(batch.requires_grad for batch in found)


@pytest.mark.parametrize(
    ("latent", "message"),
    [
        (None, "has no latent"),
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


def test_a_failing_forward_shows_the_authors_frame_also_through_a_hook() -> None:
    class Broken(Doubler):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("the author's own words")

    with pytest.raises(LearnerFault, match="own words") as caught:
        one(Learner("broken", Broken, latent="twice"), rows([1, 2]))
    assert "test_latents.py" in caught.value.details.splitlines()[1]


BATCHES = [torch.tensor([[1.0, -2.0], [0.0, 5.0]]), torch.tensor([[-3.0, 4.0]])]


def test_bounds_by_coordinate_and_over_all() -> None:
    found, width = bounds(BATCHES, "coordinate")
    assert (found.low.tolist(), found.high.tolist()) == ([-3.0, -2.0], [1.0, 5.0])
    assert (found.provenance, width) == ("raw", 2)
    over_all, width = bounds(iter(BATCHES), "scalar")
    assert (over_all.low.tolist(), over_all.high.tolist(), width) == ([-3.0], [5.0], 2)


def test_bounds_of_another_kind() -> None:
    with pytest.raises(BadPayload, match='did you mean "scalar"'):
        bounds(BATCHES, "scaler")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_latents_that_are_not_finite_have_no_bounds(bad: float) -> None:
    with pytest.raises(LearnerFault, match="NaN or infinite"):
        bounds([*BATCHES, torch.tensor([[bad, 0.0]])], "scalar")
