"""DP-SGD: no sample moves a step by more than the norm, whatever the author's code does, and all is paid."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import loss_of
from shoal.core.device_kit.learner import Learner, builtin, initial_weights
from shoal.core.device_kit.samples import Samples, convert
from shoal.core.device_kit.training.private import WITHIN, clipped_sums, cost, of_each, width_of
from shoal.core.device_kit.training.slots import slots_of
from shoal.core.errors import BadPayload, DeviceFault, LearnerFault, Refused
from shoal.core.exchange.encoding.messages import TrainEncoded
from shoal.core.exchange.messages import (
    MAX_NOISE,
    MIN_NOISE,
    Evaluate,
    Evaluated,
    PrivateTraining,
    Train,
    Trained,
    TrainingSettings,
)
from shoal.core.privacy.accountant import Unmetered
from shoal.core.privacy.cost import Cost, total
from shoal.core.privacy.payment import Payment

from .conftest import blobs, failing, small

CPU = torch.device("cpu")
SETTINGS = TrainingSettings(epochs=2, batch_size=16, learning_rate=0.5, momentum=0.0)
ASKED = PrivateTraining(clip=1.0, noise=1.0)


@pytest.fixture(scope="module", autouse=True)
def opacus() -> None:
    """It takes seconds to import, and only the process that runs these tests needs it."""
    pytest.importorskip("opacus")


class Noted(Unmetered):
    """Pays nothing, and remembers what was asked."""

    def __init__(self) -> None:
        super().__init__(np.random.default_rng(0).bytes)
        self.payments: list[Payment] = []

    def pay(self, payment, exact, noised):  # type: ignore[no-untyped-def]
        self.payments.append(payment)
        return super().pay(payment, exact, noised)


def context(learner: Learner | None = None, data: Dataset | None = None) -> DeviceContext:
    views = Views.of(blobs(120) if data is None else data)
    return DeviceContext(learner or small(), views, "cpu", 1, np.random.default_rng(0), account=Noted())


def task(on: DeviceContext, asked: PrivateTraining = ASKED, settings: TrainingSettings = SETTINGS) -> Train:
    return Train(initial_weights(on.learner, 1), settings, private=asked)


def trained(
    on: DeviceContext, asked: PrivateTraining = ASKED, settings: TrainingSettings = SETTINGS
) -> Trained:
    found = standard.perform(task(on, asked, settings), on)
    assert isinstance(found, Trained)
    return found


def test_the_proximal_term_pulls_without_noise_of_its_own() -> None:
    """After one step it is nothing yet; the second goes by rate times mu times the first one less far."""

    def weights(steps: int, mu: float) -> torch.Tensor:
        settings = replace(SETTINGS, epochs=steps, batch_size=500, proximal=mu)
        found = trained(context(), settings=settings).model
        return torch.cat([torch.from_numpy(array).flatten() for array in found.values()])

    start = torch.cat([torch.from_numpy(a).flatten() for a in initial_weights(small(), 1).values()])
    once = weights(1, 0.0)
    torch.testing.assert_close(weights(1, 0.8), once)
    torch.testing.assert_close(weights(2, 0.8), weights(2, 0.0) - 0.5 * 0.8 * (once - start))


@pytest.mark.parametrize("encoding", ["full", "int8"])
def test_no_run_asks_for_an_encoding_of_what_has_a_guarantee(encoding: str) -> None:
    """An encoding adds what earlier rounds lost, which may have been trained without noise; and the ledger
    would name other bytes than those that leave. No honest server asks for it."""
    own = context()
    own.memory = {"encoding.carried": np.ones(27, np.float32)}
    with pytest.raises(BadPayload, match="weights with a guarantee leave as they are"):
        standard.perform(TrainEncoded(**vars(task(own)), encoding=encoding), own)
    assert isinstance(own.account, Noted)
    assert own.account.payments == [], "nothing was paid"
    assert own.remembered is None


class Coupled(nn.Module):
    """What one sample gets depends on the others, in a way that no list of layers knows."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.line(x - 5.0 * x.mean(0)) / x.square().sum()
        return scores


def highest(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    scores: Tensor = model(x)
    return scores.max()


def sums(learner: Learner, samples: Samples, rows: Tensor, clip: float) -> Tensor:
    """The clipped sums of a step, in one vector."""
    model = learner.module(1)
    like = dict(model.named_parameters())
    slots = slots_of(samples, width_of(like))
    gradients = of_each(model, loss_of(learner, samples))
    found = clipped_sums(gradients, like, samples, slots, rows.numpy(), clip, seed=0)
    return torch.cat([value.flatten() for value in found.values()])


def test_without_a_bound_the_sum_is_the_gradient_of_the_sum() -> None:
    samples, learner = convert(blobs(40), CPU), builtin("mlp", {"inputs": 4, "hidden": (5,), "classes": 3})
    rows = torch.arange(0, 40, 3)
    model = learner.module(1)
    F.cross_entropy(model(samples.x[rows]), samples.labels[rows], reduction="sum").backward()  # type: ignore[no-untyped-call]
    expected = torch.cat([each.grad.flatten() for each in model.parameters() if each.grad is not None])
    assert sums(learner, samples, rows, 1e3).numpy() == pytest.approx(expected.numpy(), abs=1e-5)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 39),
    st.floats(1e-3, 1e3),
    st.floats(1e-2, 1e6),
    st.sampled_from([small(), Learner("coupled", Coupled), Learner("odd", Coupled, loss=highest)]),
)
def test_no_sample_moves_a_sum_by_more_than_the_norm(
    one: int, clip: float, scale: float, learner: Learner
) -> None:
    data = blobs(40)
    samples = convert(Dataset(data.x * np.float32(scale), data.y), CPU)
    rows = torch.arange(40)
    with_it, without = (sums(learner, samples, some, clip) for some in (rows, rows[rows != one]))
    assert (with_it - without).norm() <= clip


def test_the_norm_is_attained() -> None:
    samples, clip = convert(blobs(40), CPU), 1e-3
    moved = sums(small(), samples, torch.tensor([7]), clip).norm().item()
    assert moved == pytest.approx(WITHIN * clip, rel=1e-6)


def test_a_sample_whose_gradient_is_no_number_counts_as_nothing() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x), y) / torch.where(x.sum() > 0, 1.0, 0.0)

    learner, data = Learner("rare", small().build, loss=loss), blobs(40)
    samples = convert(Dataset(np.abs(data.x), data.y), CPU)
    whole = sums(learner, samples, torch.arange(1, 40), 1.0)
    samples.x[0] = -1.0
    assert torch.equal(sums(learner, samples, torch.arange(40), 1.0), whole)


@pytest.mark.parametrize("rounds", [1, 8])
def test_an_epsilon_is_for_all_tasks_of_the_run_and_is_not_wasted(rounds: int) -> None:
    on = context()
    asked = PrivateTraining(epsilon=3.0, delta=1e-5, rounds=rounds)
    found = [trained(on, asked) for _ in range(rounds)]
    spent = total(Cost(curve=each.curve or ()) for each in found).epsilon(1e-5)
    assert 0.98 * 3.0 < spent <= 3.0
    account = on.account
    assert isinstance(account, Noted)
    assert [each.cost.curve for each in account.payments] == [each.curve for each in found]


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.9, 1.0])
@pytest.mark.parametrize("noise", [MIN_NOISE, 1.0, MAX_NOISE])
def test_everything_that_can_be_asked_costs_something_finite(noise: float, rate: float) -> None:
    assert all(0.0 < each < np.inf for each in cost(noise, rate, 10_000).curve)


def test_an_epsilon_that_no_noise_gives_is_refused() -> None:
    on = context()
    with pytest.raises(Refused, match="no noise achieves epsilon"):
        trained(on, PrivateTraining(epsilon=1e-4))
    assert isinstance(on.account, Noted)
    assert on.account.payments == []


def test_noise_that_is_asked_for_is_taken_and_each_task_is_done_anew() -> None:
    on = context()
    first, second = trained(on), trained(on)
    assert first.private == second.private
    assert first.private is not None
    assert (first.private.clip, first.private.noise, first.private.steps) == (1.0, 1.0, 2 * 6)
    assert first.private.rate == 16 / len(on.views.train)
    assert first.loss == 0.0  # an exact loss would tell of single samples
    assert any((first.model[name] != second.model[name]).any() for name in first.model)


def test_it_learns() -> None:
    on = context()
    settings = replace(SETTINGS, epochs=10, learning_rate=1.0)
    found = trained(on, PrivateTraining(epsilon=8.0, delta=1e-5), settings)
    measured = standard.perform(Evaluate(found.model), on)
    assert isinstance(measured, Evaluated)
    assert measured.accuracy > 0.8


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))


def frozen() -> nn.Module:
    return nn.Linear(4, 3).requires_grad_(False)


class Counting(nn.Module):
    """Keeps the mean of what it saw in a buffer, which would leave without noise."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 3)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = x.detach().mean(0)
        scores: Tensor = self.line(x)
        return scores


@pytest.mark.parametrize(
    ("learner", "reason", "hint"),
    [
        (
            Learner("batch norm", normalised),
            "BatchNorm cannot support training",
            "GroupNorm instead of batch norm",
        ),
        (Learner("own", small().build, train=failing), "has its own train", "remove train"),  # type: ignore[arg-type]
        (Learner("frozen", frozen), "no weight that may be trained", "requires_grad"),
        (Learner("counting", Counting), "training failed|its buffer", ""),
        (Learner("failing", small().build, loss=failing), "the author's own words", ""),  # type: ignore[arg-type]
    ],
    ids=lambda value: value.name if isinstance(value, Learner) else "",
)
def test_what_cannot_be_promised_is_refused_unpaid(learner: Learner, reason: str, hint: str) -> None:
    on = context(learner)
    with pytest.raises(LearnerFault, match=reason) as fault:
        trained(on)
    assert hint in fault.value.hint
    assert isinstance(on.account, Noted)
    assert on.account.payments == []


def test_group_norm_and_dropout_can_be_trained() -> None:
    layers = (nn.Linear(4, 8), nn.GroupNorm(2, 8), nn.Dropout(0.5), nn.Linear(8, 3))
    assert trained(context(Learner("group norm", lambda: nn.Sequential(*layers)))).private is not None


def test_without_opacus_the_mend_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [each for each in sys.modules if each.split(".")[0] == "opacus"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opacus", None)
    with pytest.raises(DeviceFault, match="needs Opacus") as fault:
        trained(context())
    assert "pip install opacus" in fault.value.hint


def test_too_much_learning_ends_in_a_fault_and_not_in_infinite_weights() -> None:
    with pytest.raises(LearnerFault, match="NaN or infinite"):
        trained(context(), settings=replace(SETTINGS, weight_decay=1e20))
