"""Weights that a hostile server chose: rounding decides about everything, and still no sample moves another.

Two units see nearly the same number, and the scores are their difference, amplified until only its last bits
are left. Where these depend on how many samples are computed together, one more sample changes the gradients
of all others.
"""

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import loss_of
from shoal.core.device_kit.learner import Learner, builtin, tensors_of
from shoal.core.device_kit.samples import Samples, convert
from shoal.core.device_kit.training.private import WITHIN, clipped_sums, of_each, width_of
from shoal.core.device_kit.training.slots import blocks, slots_of
from shoal.core.inference.describing import exact_sums
from shoal.core.privacy.sums import GRID

CPU = torch.device("cpu")
MOST = 64
AMPLIFIED = 1e9
NETWORKS = {
    "small mlp": (builtin("mlp", {"inputs": 64, "hidden": (2,), "classes": 2}), (64,)),
    "mlp": (builtin("mlp", {"inputs": 256, "hidden": (32,), "classes": 2}), (256,)),
    "lenet5": (builtin("lenet5", {"classes": 2}), (1, 28, 28)),
    "cnn1d": (builtin("cnn1d", {"channels": 2, "length": 16, "classes": 2}), (2, 16)),
}


def hostile(learner: Learner, seed: int = 3) -> nn.Module:
    """The network, with weights such that its scores are the rounding error of its last hidden layer."""
    model = learner.module(seed)
    layers = [each for each in model.modules() if isinstance(each, nn.Linear | nn.Conv1d | nn.Conv2d)]
    before, last = layers[-2:]
    with torch.no_grad():
        torch.manual_seed(seed)
        before.weight[0], before.bias[0] = torch.randn(before.weight[0].shape) + 0.3, 0.0
        before.weight[1], before.bias[1] = 3 * before.weight[0], 0.0
        wide = last.weight.shape[1] // before.weight.shape[0]  # a channel is several latents
        pairs = [(place, place + wide) for place in range(wide)]
        last.weight.zero_()
        for one, three in pairs:
            last.weight[0, one], last.weight[0, three] = 3 * AMPLIFIED, -AMPLIFIED
    return model


def data(shape: tuple[int, ...], count: int = MOST + 1) -> Samples:
    chance = np.random.default_rng(3)
    x = chance.uniform(size=(count, *shape)).astype(np.float32)
    return convert(Dataset(x, np.zeros(count, np.int64)), CPU)


def vector(found: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in found.values()])


@pytest.mark.parametrize("name", NETWORKS)
def test_no_sample_moves_a_step_by_more_than_the_norm_in_steps_of_1_to_64(name: str) -> None:
    learner, shape = NETWORKS[name]
    model, samples = hostile(learner), data(shape)
    like, gradients = dict(model.named_parameters()), of_each(model, loss_of(learner, samples))
    slots = slots_of(samples, width_of(like))

    def step(rows: np.ndarray) -> Tensor:  # type: ignore[type-arg]
        return vector(clipped_sums(gradients, like, samples, slots, rows, 1.0, seed=0))

    order = np.random.default_rng(7).permutation(MOST + 1)
    before, worst = step(order[:0]), 0.0
    for size in range(1, MOST + 1):
        after = step(order[:size])
        worst = max(worst, float((after - before).norm()))
        before = after
    assert 0.0 < worst <= 1.0


def test_the_attack_works_where_shapes_differ() -> None:
    """Else the test above could not fail: in batches of just as many rows as there are samples, the last bits
    of all rows change, and the clipped sum moves by several norms."""
    learner, shape = NETWORKS["mlp"]
    model, samples = hostile(learner), data(shape)
    gradients = of_each(model, loss_of(learner, samples))

    def packed(size: int) -> Tensor:
        found = gradients(samples.x[:size].clone(), samples.labels[:size].clone())
        flat = torch.cat([value.flatten(1) for value in found.values()], dim=1).double()
        return (flat * (WITHIN / flat.norm(dim=1).clamp(min=WITHIN))[:, None]).sum(0)

    worst = max(float((packed(size + 1) - packed(size)).norm()) for size in range(1, 20))
    if worst <= 1.0:
        pytest.skip("this processor's routines give the same bits for all numbers of rows")
    assert worst > 1.2


def test_dropout_in_a_slot_does_not_depend_on_other_samples() -> None:
    layers = (nn.Linear(64, 32), nn.Dropout(0.5), nn.Linear(32, 2))
    learner = Learner("dropout", lambda: nn.Sequential(*layers))
    model, samples = learner.module(1), data((64,), 40)
    like, gradients = dict(model.train().named_parameters()), of_each(model, loss_of(learner, samples))
    slots, rows = slots_of(samples, width_of(like)), np.arange(40)
    whole = vector(clipped_sums(gradients, like, samples, slots, rows, 1.0, seed=5))
    for one in range(40):
        without = vector(clipped_sums(gradients, like, samples, slots, np.delete(rows, one), 1.0, seed=5))
        assert (whole - without).norm() <= 1.0


def test_a_slot_follows_from_the_content_and_not_from_the_order() -> None:
    samples = data((64,), 50)
    turned = Samples(samples.x.flip(0), samples.labels.flip(0), samples.classes)
    assert slots_of(samples).tolist() == slots_of(turned).tolist()[::-1]
    found = [number for block in blocks(samples, slots_of(samples), np.arange(50)) for number in block.rows]
    assert sorted(int(number) for number in found if number >= 0) == list(range(50))


def test_equal_samples_fill_blocks() -> None:
    samples = Samples(torch.ones(32, 4), torch.zeros(32, dtype=torch.int64), 1)
    assert sorted(slots_of(samples, 16).tolist()) == sorted([*range(16)] * 2)


@pytest.mark.parametrize("size", [1, 15, 16, 63, 64, 65, 255, 256, 257])
def test_no_sample_moves_what_is_described_by_more_than_the_sensitivity(size: int) -> None:
    learner, shape = NETWORKS["mlp"]
    samples = data(shape, size + 1)
    projector = {
        "mean": np.zeros(34),
        "components": np.concatenate([AMPLIFIED * np.array([[3.0, -1.0]]), np.zeros((1, 32))], axis=1),
        "radius": np.array(1e-6),
    }

    def released(count: int) -> np.ndarray:  # type: ignore[type-arg]
        some = Dataset(samples.x[:count].numpy(), samples.labels[:count].numpy())
        context = DeviceContext(learner, Views.of(some, share=0.0), "cpu", 0, np.random.default_rng(0))
        found = exact_sums(context, tensors_of(hostile(learner)), projector, ["train"], 2)
        return found.values.astype(np.float64)

    assert 0.0 < np.linalg.norm(released(size + 1) - released(size)) <= GRID
