import pytest
import torch
from torch import Tensor, nn

from shoal.core.device_kit.samples import Batches, convert
from shoal.core.device_kit.steps import gradients, walk, weights_of
from shoal.core.errors import LearnerFault

from .conftest import blobs

CPU = torch.device("cpu")


def batches(samples: int = 5, size: int = 2) -> Batches:
    return Batches(convert(blobs(samples), CPU), size, 0)


def test_each_batch_of_each_epoch_is_a_step_and_the_loss_is_the_last_epochs_by_sample() -> None:
    """Batches of 2, 2 and 1; the loss of a step is its number: 4, 5 and 6 in the second epoch."""
    seen: list[int] = []
    pauses: list[int] = []

    def step(x: Tensor, y: Tensor) -> Tensor:
        seen.append(len(x))
        return torch.tensor(float(len(seen)))

    loss = walk(batches(), 2, step, 0.1, between=lambda: pauses.append(len(seen)))
    assert (seen, pauses) == ([2, 2, 1] * 2, [3])
    assert loss == pytest.approx((2 * 4 + 2 * 5 + 6) / 5)


@pytest.mark.parametrize(("at_most", "sizes"), [(2, [2, 2]), (3, [2, 2, 1]), (7, [2, 2, 1, 2, 2, 1, 2])])
def test_a_number_of_steps_ends_an_epoch_early_or_goes_on_into_more(at_most: int, sizes: list[int]) -> None:
    seen: list[int] = []

    def step(x: Tensor, y: Tensor) -> Tensor:
        seen.append(len(x))
        return torch.ones(())

    assert walk(batches(), 1, step, 0.1, at_most) == 1.0
    assert seen == sizes


def test_a_loss_that_is_no_number_ends_it_with_the_rate_to_lower() -> None:
    with pytest.raises(LearnerFault, match=r"nan in epoch 1 of 3 .*0\.25"):
        walk(batches(), 3, lambda x, y: torch.tensor(float("nan")), 0.25)


def test_what_is_frozen_has_no_gradient_and_what_is_not_used_has_one_of_0() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    model[1].requires_grad_(False)
    assert weights_of(model) == [model[0].weight, model[0].bias, model[2].weight, model[2].bias]
    found = gradients(model, (2.0 * model[0].weight).sum())
    assert [gradient.item() for gradient in found] == [2.0, 0.0, 0.0, 0.0]
