"""ATP (Bao et al. 2023): how a network adapts, and how its rates are learned, by hand."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from shoal.core.algorithm import Report, measurement
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, initial_weights, tensors_of
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.exchange.messages import Evaluated, Train, Trained
from shoal_lab.algorithms.atp import ALGORITHM, Parameters
from shoal_lab.algorithms.atp import device as device_half
from shoal_lab.algorithms.atp import server as server_half
from shoal_lab.algorithms.atp.adapting import adapting
from shoal_lab.algorithms.atp.messages import Learn, Learned, Measure
from tests.slope import at, coin, context


def entropy_slope(w: float) -> float:
    """The derivative by w of the entropy of a coin of p = sigmoid(w)."""
    p = 1.0 / (1.0 + math.exp(-w))
    return -w * p * (1.0 - p)


def normed() -> Learner:
    """Two features, normalized, of which the first tells the class."""
    return Learner("normed", lambda: nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 2)))


def shifted(samples: int = 12) -> DeviceContext:
    """Features far from those that a fresh batch norm expects."""
    chance = np.random.default_rng(0)
    x = chance.normal(5.0, 3.0, (samples, 2)).astype(np.float32)
    data = Dataset(x, (x[:, 0] > 5.0).astype(np.int64))
    return DeviceContext(normed(), Views(data, data, data), "cpu", 0, np.random.default_rng(0))


def learn(
    device: DeviceContext, start: float, rates: tuple[float, ...], step: float = 0.5, batch: int = 1
) -> Learned:
    answer = device_half.perform(Learn(at(start), rates, step, batch), device)
    assert isinstance(answer, Learned)
    return answer


def test_a_rate_grows_where_less_entropy_means_less_loss() -> None:
    """Class 0 is right. From rate 0 the first sample finds w as it is; the second w - rate h."""
    rate, w = 0.0, 1.5
    h = entropy_slope(w)
    for _ in range(2):
        adapted = w - rate * h
        loss_slope = 1.0 / (1.0 + math.exp(-adapted)) - 1.0
        rate += 0.5 * loss_slope * h
    found = learn(context(coin(), samples=2), w, (0.0,))
    assert found.rates == pytest.approx((rate,))
    assert rate > 0.0
    assert learn(context(coin()), -w, (0.0,)).rates[0] < 0.0, "surer of the wrong class is worse"


def test_the_step_is_divided_by_the_root_of_the_number_of_values() -> None:
    """Against the difference quotient of the loss at the adapted model, for every tensor."""
    device = shifted()
    model = device.load(initial_weights(normed(), 1))
    start = tensors_of(model)
    x, y = torch.from_numpy(device.views.train.x), torch.from_numpy(device.views.train.y)
    rates = [0.1] * len(start)
    task = Learn(start, tuple(rates), 1e-3, 12)
    answer = device_half.perform(task, device)
    assert isinstance(answer, Learned)

    def loss(place: int, change: float) -> float:
        moved = [rate + change * (place == at) for at, rate in enumerate(rates)]
        with adapting(device.load(start)) as network, torch.no_grad():
            with torch.enable_grad():
                directions = network.directions(x)
            network.move(moved, directions)
            return nn.functional.cross_entropy(device.model(x), y).item()

    for place, (name, tensor) in enumerate(start.items()):
        slope = (loss(place, 0.02) - loss(place, -0.02)) / 0.04
        expected = 0.0 if name == "0.num_batches_tracked" else -slope / math.sqrt(tensor.size)
        assert (answer.rates[place] - 0.1) / 1e-3 == pytest.approx(expected, rel=0.02, abs=1e-3), name


def test_with_rate_one_a_batch_norm_takes_the_statistics_of_the_batch() -> None:
    device = shifted()
    model = device.load(initial_weights(normed(), 1))
    usual = tensors_of(model)
    x = torch.from_numpy(device.views.train.x)
    expected = model.eval()(x)
    with adapting(model) as network:
        torch.testing.assert_close(model(x), expected)
        network.move([float("running" in name) for name in usual], network.directions(x))
    after = tensors_of(model)
    np.testing.assert_allclose(after["0.running_mean"], x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(after["0.running_var"], x.var(0), rtol=1e-5)
    assert all((after[name] == usual[name]).all() for name in usual if "running" not in name)
    assert not any(tensor.requires_grad for tensor in model.buffers()), "it is a usual network again"
    torch.testing.assert_close(model.train()(x), nn.Sequential(nn.BatchNorm1d(2), model[1])(x))  # type: ignore[index]


def measured(
    device: DeviceContext, start: float, rate: float, batch: int = 1, online: bool = False
) -> Evaluated:
    answer = device_half.perform(Measure(at(start), (rate,), batch, online), device)
    assert isinstance(answer, Evaluated)
    return answer


def test_atp_batch_a_device_adapts_without_labels_and_measures_what_that_gives() -> None:
    """A rate of -8 undoes so much entropy that w changes its sign, and with it the class."""
    for rate, accuracy in ((0.0, 1.0), (2.0, 1.0), (-8.0, 0.0)):
        found = measured(context(coin(), samples=3), 1.5, rate, 2)
        adapted = 1.5 - rate * entropy_slope(1.5)
        assert found.accuracy == accuracy
        assert found.loss == pytest.approx(math.log1p(math.exp(-adapted)), rel=1e-5)
        assert found.examples == 3


def test_atp_online_adapts_to_the_mean_of_the_batches_so_far() -> None:
    device = shifted()
    model = initial_weights(normed(), 1)
    rates = tuple(float(name.startswith("0.run")) for name in model)
    x = torch.from_numpy(device.views.train.x)
    labels = torch.from_numpy(device.views.train.y)
    expected = 0.0
    for rows in (slice(0, 6), slice(6, 12)):
        network = device.load(model).eval()
        norm = network[0]  # type: ignore[index]
        halves = [x[:6], x[6:]][: 1 + (rows.start > 0)]
        norm.running_mean.copy_(torch.stack([half.mean(0) for half in halves]).mean(0))
        norm.running_var.copy_(torch.stack([half.var(0) for half in halves]).mean(0))
        with torch.no_grad():
            expected += nn.functional.cross_entropy(network(x[rows]), labels[rows]).item() / 2
    answer = device_half.perform(Measure(model, rates, 6, True), device)
    assert isinstance(answer, Evaluated)
    assert answer.loss == pytest.approx(expected, rel=1e-5)


def test_a_batch_of_one_sample_has_no_variance_and_leaves_that_of_the_model() -> None:
    device = shifted(1)
    model = initial_weights(normed(), 1)
    answer = device_half.perform(Learn(model, (0.5,) * len(model), 0.1, 1), device)
    assert isinstance(answer, Learned)
    assert np.isfinite(answer.rates).all()
    assert answer.rates[list(model).index("0.running_var")] == 0.5


def test_first_the_model_is_trained_then_the_rates_and_newcomers_are_measured_as_members_are() -> None:
    state = server_half.start(at(3.0), ALGORITHM.configure("paper", {"rounds": 1, "rate_rounds": 1}))
    plan = server_half.plan(state, ["a", "b"])
    assert plan is not None
    assert isinstance(plan.tasks["a"], Train)
    state = server_half.reduce(state, [Report("a", Trained(at(1.0), 10, 0.1))])
    plan = server_half.plan(state, ["a", "b"])
    assert plan is not None
    task = plan.tasks["b"]
    assert isinstance(task, Learn)
    assert (float(task.model["w"]), task.rates) == (1.0, (0.0,))
    state = server_half.reduce(
        state, [Report("a", Learned((1.0,), 99, 0.1)), Report("b", Learned((2.0,), 1, 0.1))]
    )
    assert state.rates == (1.5,)
    question = measurement(server_half, state, "global")
    assert isinstance(question, Measure)
    assert question.rates == (1.5,)
    assert (state.phase, set(state.assignments)) == ("evaluate", {"a", "b"})


def test_rates_that_are_not_the_models_are_refused() -> None:
    task = Learn(at(3.0), (0.0,), 0.1, 1)
    for rates, said in (((0.0, 1.0), "2 rates"), ((math.nan,), "NaN")):
        with pytest.raises(BadPayload, match=said):
            task.admit(Learned(rates, 1, 0.1))
    for change in ({"rate_step": 0.0}, {"rate_batch": 0}, {"rate_rounds": 0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            server_half.start(at(3.0), ALGORITHM.configure("default", change))
    assert Parameters().rate_rounds == 10
