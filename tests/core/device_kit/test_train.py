import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.evaluation.evaluate import evaluate
from shoal.core.device_kit.learner import Learner, builtin, tensors_of
from shoal.core.device_kit.samples import Batches, Samples, convert
from shoal.core.device_kit.training.train import check_weights, clip, train, walk, weights_of
from shoal.core.errors import BadPayload, DataFault, DeviceFault, Diverged, LearnerFault
from shoal.core.exchange.messages import TrainingSettings
from shoal_lab.own_steps import gradients

from .conftest import Slope, blobs, failing, mean_output, small

CPU = torch.device("cpu")
PLAIN = TrainingSettings(epochs=1, batch_size=2, learning_rate=0.1, momentum=0.0)
SLOPE = Learner("slope", Slope, loss=mean_output)


def ones(count: int) -> Samples:
    return convert(Dataset(np.ones((count, 1), np.float32), np.zeros(count, np.int64)), CPU)


def weight_after(settings: TrainingSettings, samples: Samples) -> float:
    model = Slope()
    train(SLOPE, model, samples, settings, seed=0)
    return model.w.item()


def test_momentum_goes_on_over_epochs_unless_it_is_to_restart() -> None:
    """The gradient is 1 in each of three steps: velocities 1, 1.5, 1.75; or 1, 1, 1 with a restart."""
    settings = dataclasses.replace(PLAIN, epochs=3, momentum=0.5)
    assert weight_after(settings, ones(1)) == pytest.approx(-0.1 * (1 + 1.5 + 1.75))
    restarted = dataclasses.replace(settings, restart_momentum=True)
    assert weight_after(restarted, ones(1)) == pytest.approx(-0.1 * 3)


def test_a_last_step_that_leaves_no_number_is_said_to_have_diverged() -> None:
    """The loss before it was a number, so nothing else would say so."""
    settings = dataclasses.replace(PLAIN, learning_rate=1e39)
    with pytest.raises(Diverged, match=r"training diverged: the weights 'w' are NaN.*1e\+39.* to auto"):
        train(SLOPE, Slope(), ones(1), settings, seed=0)


@pytest.mark.parametrize(("optimizer", "decayed"), [("adam", 1.0), ("adamw", 1.0 - 0.1 * 0.5)])
def test_adam_moves_each_weight_by_the_rate_and_adamw_decays_it_first(optimizer: str, decayed: float) -> None:
    """While the gradient stays the same, Adam's steps are as long as the rate; AdamW first multiplies the
    weight by 1 - rate x decay, where Adam adds to the gradient, whose length does not matter."""
    settings = dataclasses.replace(PLAIN, optimizer=optimizer, weight_decay=0.5)
    model = Slope()
    with torch.no_grad():
        model.w.fill_(1.0)
    train(SLOPE, model, ones(1), settings, seed=0)
    assert model.w.item() == pytest.approx(decayed - 0.1, abs=1e-6)


def test_an_optimizer_that_is_to_restart_forgets_everything() -> None:
    """Adam's first step is as long as the rate. Its second is not, where the gradient changes: sums of
    squares and their bias corrections remember the first."""
    settings = dataclasses.replace(PLAIN, epochs=2, optimizer="adam", restart_momentum=True)
    model = Slope()
    train(
        Learner("bowl", Slope, loss=lambda model, x, y: (model.w - 1.0).square().sum()),
        model,
        ones(1),
        settings,
        0,
    )
    assert model.w.item() == pytest.approx(0.2, abs=1e-6)


def test_the_gradient_of_a_step_is_shortened_to_the_norm() -> None:
    """The gradient is 1: a norm of 0.25 leaves a quarter of the step, and one of 2 all of it."""
    assert weight_after(dataclasses.replace(PLAIN, clip_norm=0.25), ones(1)) == pytest.approx(-0.025)
    assert weight_after(dataclasses.replace(PLAIN, clip_norm=2.0), ones(1)) == pytest.approx(-0.1)


@pytest.mark.parametrize("kinds", [(torch.float32,) * 3, (torch.float32, torch.float64, torch.float32)])
@pytest.mark.parametrize("odd", [0.0, math.nan, math.inf])
def test_the_gradient_is_shortened_as_pytorch_does_it(kinds: tuple[torch.dtype, ...], odd: float) -> None:
    """Bit for bit, also where a network has weights of two types, or one without a gradient."""
    chance = torch.Generator().manual_seed(1)
    made = [torch.randn(5, 7, generator=chance).to(kind) for kind in kinds]
    made[0][0, 0] += odd
    found = []
    for shorten in (nn.utils.clip_grad_norm_, clip):
        weights = [nn.Parameter(torch.zeros_like(each)) for each in (*made, made[0])]
        for weight, gradient in zip(weights, made, strict=False):
            weight.grad = gradient.clone()
        shorten(weights, 0.25)
        assert weights[-1].grad is None
        found.append([weight.grad.numpy().tobytes() for weight in weights if weight.grad is not None])
    assert found[0] == found[1]


def test_an_optimizer_that_does_not_exist_is_refused() -> None:
    with pytest.raises(BadPayload, match="optimizer is lion"):
        TrainingSettings(optimizer="lion")


def test_weight_decay_adds_to_the_gradient() -> None:
    """w: 0 -> -0.1 -> -0.1 - 0.1 (1 + 0.5 x -0.1)."""
    settings = dataclasses.replace(PLAIN, epochs=2, weight_decay=0.5)
    assert weight_after(settings, ones(1)) == pytest.approx(-0.1 - 0.1 * 0.95)


def test_the_proximal_term_pulls_towards_the_model_that_came() -> None:
    """The gradient is 1 + 0.5 (w - w_0). w - w_0: 0 -> -0.1 -> -0.1 - 0.1 (1 - 0.05)."""
    settings = dataclasses.replace(PLAIN, epochs=2, proximal=0.5)
    model = Slope()
    with torch.no_grad():
        model.w.fill_(3.0)
    loss = train(SLOPE, model, ones(1), settings, seed=0)
    assert model.w.item() == pytest.approx(3.0 - 0.1 - 0.1 * 0.95)
    assert loss == pytest.approx(2.9)  # that of only the data


def test_it_is_the_plain_loop_bit_for_bit() -> None:
    learner = builtin("lenet5", {"size": 12, "classes": 3})
    chance = np.random.default_rng(1)
    data = Dataset(chance.random((10, 1, 12, 12), np.float32), chance.integers(0, 3, 10))
    settings = TrainingSettings(epochs=2, batch_size=4, learning_rate=0.05)
    samples, model = convert(data, CPU), learner.module(1)
    loss = train(learner, model, samples, settings, seed=9)

    plain, order = learner.module(1), torch.Generator().manual_seed(9)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.05, momentum=0.9, fused=True)
    for _ in range(2):
        losses = []
        shuffled = torch.randperm(10, generator=order)
        for rows in (shuffled[:4], shuffled[4:8], shuffled[8:]):
            optimizer.zero_grad()
            value = F.cross_entropy(plain(samples.x[rows]), samples.labels[rows])
            value.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses += [value.item()] * len(rows)
    assert loss == pytest.approx(np.mean(losses), rel=1e-6)
    for name, tensor in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


def noisy() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3))


def test_the_same_seed_gives_the_same_bits_and_torch_is_left_alone() -> None:
    learner, samples = Learner("noisy", noisy), convert(blobs(30), CPU)
    results = []
    for seed in (1, 1, 2):
        model = learner.module(0)
        before = torch.get_rng_state()
        train(learner, model, samples, PLAIN, seed)
        assert torch.equal(torch.get_rng_state(), before)
        torch.rand(3)  # nor does it matter what others did with torch's chance
        results.append(tensors_of(model)["0.weight"].tobytes())
    assert results[0] == results[1]
    assert results[0] != results[2]


def test_training_lowers_the_loss_and_sets_the_mode() -> None:
    learner, samples = small(), convert(blobs(60), CPU)
    model = learner.module(0).eval()
    first = train(learner, model, samples, PLAIN, seed=0)
    assert model.training
    assert train(learner, model, samples, PLAIN, seed=1) < first / 2


def test_gradients_are_not_kept() -> None:
    model = Slope()
    train(SLOPE, model, ones(2), PLAIN, seed=0)
    assert model.w.grad is None
    with pytest.raises(LearnerFault, match="training diverged"):
        train(SLOPE, model, ones(2), dataclasses.replace(PLAIN, learning_rate=1e39, epochs=2), seed=0)
    assert model.w.grad is None


def test_a_loss_that_does_not_stay_finite_names_the_learning_rate() -> None:
    settings = dataclasses.replace(PLAIN, learning_rate=1e30, epochs=5)
    with pytest.raises(LearnerFault, match=r"in epoch \d of 5") as caught:
        train(small(), small().module(0), convert(blobs(30), CPU), settings, seed=0)
    assert "learning_rate (it is 1e+30)" in caught.value.hint


@pytest.mark.parametrize(
    ("loss", "returned"),
    [
        (lambda model, x, y: model(x).flatten(), r"shape \(2,\)"),
        (lambda model, x, y: 3.0, "a float"),
        (lambda model, x, y: None, "a NoneType"),
    ],
)
def test_a_loss_must_be_a_scalar_tensor(loss: object, returned: str) -> None:
    learner = Learner("wrong", Slope, loss=loss)  # type: ignore[arg-type]
    with pytest.raises(LearnerFault, match=returned):
        train(learner, Slope(), ones(2), PLAIN, seed=0)


def test_an_authors_failure_comes_with_the_authors_traceback() -> None:
    with pytest.raises(LearnerFault, match="training failed: RuntimeError: the author's own words") as caught:
        train(Learner("failing", Slope, loss=failing), Slope(), ones(2), PLAIN, seed=0)  # type: ignore[arg-type]
    first_frame = caught.value.details.splitlines()[1]
    assert "conftest.py" in first_frame
    assert "in failing" in first_frame


def test_an_author_may_bring_the_whole_loop() -> None:
    seen: list[list[int]] = []

    def own(model: nn.Module, batches: Batches, settings: TrainingSettings) -> Tensor:
        for _ in range(settings.epochs):
            seen.append([len(x) for x, _ in batches])
        assert isinstance(model, Slope)
        with torch.no_grad():
            model.w.fill_(8.0)
        return torch.tensor(0.25)

    model = Slope()
    learner = Learner("own", Slope, train=own)  # type: ignore[arg-type]
    assert train(learner, model, ones(3), dataclasses.replace(PLAIN, epochs=2), seed=0) == 0.25
    assert seen == [[2, 1], [2, 1]]
    assert model.w.item() == 8.0


@pytest.mark.parametrize("returned", [None, float("nan"), "0.1"])
def test_what_an_authors_loop_returns_must_be_a_number(returned: object) -> None:
    learner = Learner("own", Slope, train=lambda *_: returned)  # type: ignore[arg-type]
    with pytest.raises(LearnerFault, match=r"train\(\) returned"):
        train(learner, Slope(), ones(2), PLAIN, seed=0)


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": -1},
        {"batch_size": -1},
        {"clip_norm": -0.1},
        {"learning_rate": 0.0},
        {"learning_rate": float("nan")},
        {"momentum": 1.0},
        {"weight_decay": -0.1},
    ],
)
def test_settings_with_which_nothing_can_be_trained_are_named(change: dict[str, float]) -> None:
    with pytest.raises(BadPayload, match=next(iter(change))):
        dataclasses.replace(PLAIN, **change)  # type: ignore[arg-type]


def test_labels_are_needed() -> None:
    with pytest.raises(DeviceFault, match="needs labels"):
        train(SLOPE, Slope(), convert(Dataset(np.ones((2, 1))), CPU), PLAIN, seed=0)


def test_a_label_beyond_the_network_is_named() -> None:
    data = Dataset(np.zeros((2, 4), np.float32), np.array([1, 3]))
    with pytest.raises(DataFault, match="label 3, and the network knows 3 classes"):
        train(small(), small().module(0), convert(data, CPU), PLAIN, seed=0)


def test_an_own_loss_of_one_output_is_told_what_it_is_measured_by() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.binary_cross_entropy_with_logits(model(x)[:, 0], y.float())

    learner = Learner("one", lambda: nn.Linear(4, 1), loss=loss)
    data = convert(Dataset(np.eye(4, dtype=np.float32), np.array([0, 1, 0, 1])), CPU)
    train(learner, learner.module(0), data, PLAIN, seed=0)
    with pytest.raises(DataFault, match=r"has one output, and the data have 2 classes.* an evaluate\(\)"):
        evaluate(learner, learner.module(0), data)


@pytest.mark.parametrize("how", ["frozen", "without gradients"])
def test_a_network_in_which_nothing_is_trained_is_told_so(how: str) -> None:
    class Still(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(how == "frozen"):
                return super().forward(x)

    learner = Learner("still", lambda: Still(4, 3).requires_grad_(how != "frozen"))
    with pytest.raises(LearnerFault, match=r"depends on no weight .*requires_grad.*no_grad"):
        train(learner, learner.module(0), convert(blobs(2), CPU), PLAIN, seed=0)


def test_a_network_that_is_no_classifier_is_told_what_to_bring() -> None:
    learner = Learner("vector", lambda: nn.Sequential(nn.Linear(4, 4), nn.Flatten(0)))
    with pytest.raises(LearnerFault, match=r"shape \(8,\) for 2 samples") as caught:
        train(learner, learner.module(0), convert(blobs(2), CPU), PLAIN, seed=0)
    assert "loss()" in caught.value.hint


CPU = torch.device("cpu")


def batches(samples: int = 5, size: int = 2) -> Batches:
    return Batches(convert(blobs(samples), CPU), size, 0)


def test_a_sample_that_is_left_over_does_not_end_the_training_of_a_network_with_batch_norm() -> None:
    """Batches of 2, 2 and 1 without it: batch norm computes nothing of one sample."""
    learner = Learner("normed", lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)))
    model = learner.module(0)
    train(learner, model, convert(blobs(5), CPU), PLAIN, seed=0)
    sizes = [len(x) for x, _ in Batches(convert(blobs(5), CPU), 2, 0, model)]
    assert (sizes, int(model[1].num_batches_tracked)) == ([2, 3], 2)


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


def test_what_is_frozen_has_no_gradient_and_what_is_not_used_has_one_of_0() -> None:
    model = nn.Sequential(nn.Linear(1, 1), nn.Linear(1, 1), nn.Linear(1, 1))
    model[1].requires_grad_(False)
    assert weights_of(model) == [model[0].weight, model[0].bias, model[2].weight, model[2].bias]
    found = gradients(model, (2.0 * model[0].weight).sum())
    assert [gradient.item() for gradient in found] == [2.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "weights", [[1.0, np.nan], [np.inf, 1.0], [np.inf, -np.inf], [-np.inf, np.nan], [3e38, 3e38, np.inf]]
)
def test_weights_that_are_no_numbers_are_found_whatever_they_add_up_to(weights: list[float]) -> None:
    with pytest.raises(Diverged):
        check_weights(_of_weights(weights), rate=0.1)


@pytest.mark.parametrize("weights", [[1.0, -1.0], [3e38, 3e38], []])
def test_weights_whose_sum_is_beyond_float32_are_numbers(weights: list[float]) -> None:
    check_weights(_of_weights(weights), rate=0.1)


def _of_weights(weights: list[float]) -> nn.Module:
    return nn.ParameterList([nn.Parameter(torch.tensor(weights, dtype=torch.float32))])
