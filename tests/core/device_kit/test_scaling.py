"""Samples in the scale of a task's models."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from shoal.core.data.dataset import Dataset
from shoal.core.data.scale import DEVIATION, MEAN, TARGET, scale_of, with_scale
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, initial_weights
from shoal.core.device_kit.scaling import inputs, weighs_evenly
from shoal.core.errors import BadPayload
from shoal.core.exchange.messages import (
    Evaluate,
    Represent,
    Score,
    Scored,
    Summarize,
    Train,
    Trained,
    TrainingSettings,
)
from shoal.core.privacy.accountant import Unmetered
from shoal.core.privacy.report import OPEN, left_open

from .conftest import context_of

SCALE = {MEAN: np.float32([1.0, 2.0, 3.0, 4.0]), DEVIATION: np.float32([2.0, 1.0, 5.0, 0.5])}


def test_it_is_linear_near_the_mean_and_slow_far_away() -> None:
    scale = {MEAN: np.float32([10.0]), DEVIATION: np.float32([2.0])}
    found = inputs(torch.tensor([[12.0], [4.0], [1010.0], [-3e38]]), scale)
    assert found[:2].flatten().tolist() == [1.0, -3.0]
    assert float(found[2]) == pytest.approx(3 + np.log(1 + 500 - 3))
    assert torch.isfinite(found).all()


def test_a_task_whose_models_carry_a_scale_sees_samples_in_it_and_answers_with_it() -> None:
    context = context_of()
    model = with_scale(initial_weights(context.learner, 1), SCALE)
    task = Train(model, TrainingSettings())
    own = context.for_task(1, None, task)
    raw = context.samples_as_they_are("train")
    assert torch.equal(own.samples("train").x, inputs(raw.x, SCALE))
    assert own.samples("train") is context.for_task(2, None, task).samples("train"), "made once"
    answer = standard.perform(task, own)
    assert isinstance(answer, Trained)
    assert list(answer.model) == list(model)
    assert all(np.array_equal(answer.model[name], SCALE[name]) for name in SCALE)
    plain = context.for_task(1, None, Train(initial_weights(context.learner, 1), TrainingSettings()))
    assert torch.equal(plain.samples("train").x, raw.x)


def test_models_of_another_scale_than_the_task_s_are_refused() -> None:
    context = context_of()
    model = with_scale(initial_weights(context.learner, 1), SCALE)
    with pytest.raises(BadPayload, match="different scales"):
        context.for_task(1).load(model)
    narrow = {name: array[:3] for name, array in SCALE.items()}
    task = Train(with_scale(initial_weights(context.learner, 1), narrow), TrainingSettings())
    with pytest.raises(BadPayload, match="have 3 features, and this device's have 4"):
        standard.perform(task, context.for_task(1, None, task))


def test_models_of_several_clusters_are_tried_each_in_its_own_scale() -> None:
    context = context_of()
    weights = initial_weights(context.learner, 1)
    other = {MEAN: SCALE[MEAN] + 1, DEVIATION: SCALE[DEVIATION] * 3}
    models = tuple(with_scale(weights, scale) for scale in (SCALE, other))

    def losses(*asked: dict[str, np.ndarray]) -> list[float]:
        task = Score(asked)
        answer = standard.perform(task, context.for_task(1, None, task))
        assert isinstance(answer, Scored)
        return list(answer.scores.losses)

    assert losses(*models) == [*losses(models[0]), *losses(models[1])]
    assert losses(*models)[0] != losses(*models)[1]


def test_an_encoder_of_the_author_sees_samples_as_they_are() -> None:
    seen: list[torch.Tensor] = []

    def encoder(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x

    context = context_of()
    own = DeviceContext(
        replace(context.learner, encoder=encoder), context.views, "cpu", 0, np.random.default_rng(0)
    )
    standard.perform(Represent(), own.for_task(1, None, Represent()))
    assert torch.equal(torch.cat(seen), own.samples_as_they_are("train").x)


def numbers(**parts: object) -> DeviceContext:
    chance = np.random.default_rng(0)
    x = chance.normal(size=(60, 3)).astype(np.float32)
    y = (1000.0 + 50.0 * x[:, 0]).astype(np.float32)
    learner = Learner("line", lambda: torch.nn.Linear(3, 1), **parts)  # type: ignore[arg-type]
    return DeviceContext(learner, Views.of(Dataset(x, y)), "cpu", 0, np.random.default_rng(0))


def test_numbers_to_predict_have_a_scale_too_unless_the_author_measures_them() -> None:
    context = numbers()
    found = standard.perform(Summarize(), context.for_task(0))
    assert found.target[0] == pytest.approx(1000.0, abs=20.0)  # type: ignore[attr-defined]
    model = with_scale(initial_weights(context.learner, 1), {TARGET: np.float32([1000.0, 50.0])})
    task = Train(model, TrainingSettings(epochs=30, batch_size=8, learning_rate=0.05))
    trained = standard.perform(task, context.for_task(0, None, task))
    assert isinstance(trained, Trained)
    assert scale_of(trained.model)[TARGET].tolist() == [1000.0, 50.0]
    again = Evaluate(trained.model, "train")
    assert standard.perform(again, context.for_task(0, None, again)).accuracy > 0.99  # type: ignore[attr-defined]
    own = numbers(loss=lambda model, x, y: (model(x)[:, 0] - y).abs().mean())
    assert standard.perform(Summarize(), own.for_task(0)).target == ()  # type: ignore[attr-defined]


def test_a_network_that_weighs_features_evenly_needs_no_scale() -> None:
    """Of columns in different units very few decide; unless the network brings them into one scale itself."""
    chance = np.random.default_rng(0)
    units = np.logspace(-2, 3, 12).astype(np.float32)
    table = torch.from_numpy(chance.normal(size=(80, 12)).astype(np.float32))
    plain = Learner("plain", lambda: torch.nn.Sequential(torch.nn.Linear(12, 8), torch.nn.Linear(8, 2)))

    class Own(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(12, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x / torch.from_numpy(units))

    assert weighs_evenly(plain, table)
    assert not weighs_evenly(plain, table * torch.from_numpy(units))
    assert weighs_evenly(Learner("own", Own), table * torch.from_numpy(units))
    images = torch.from_numpy(chance.random((80, 1, 4, 4)).astype(np.float32))
    flat = Learner("flat", lambda: torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 2)))
    assert weighs_evenly(flat, images), "of one channel"


def test_a_device_whose_network_needs_no_scale_says_nothing_of_its_inputs() -> None:
    context = context_of()
    assert standard.perform(Summarize(), context.for_task(0)).means == ()  # type: ignore[attr-defined]
    data = context.views.train
    uneven = Views.of(Dataset(data.x * np.float32([1, 1e3, 1e-3, 1]), data.y))
    found = standard.perform(
        Summarize(), DeviceContext(context.learner, uneven, "cpu", 0, np.random.default_rng(0))
    )
    assert len(found.means) == 4  # type: ignore[attr-defined]


def test_what_of_the_inputs_leaves_is_noted_where_their_shape_does_not_rule_it_out() -> None:
    """Images of one channel never have a scale; of others, that they need none follows from the data."""

    class Noting(Unmetered):
        def unprotected(self, what: str, data: str) -> None:
            noted.append(what)

    noted: list[str] = []
    chance, y = np.random.default_rng(0), np.arange(80) % 2
    for shape, left in (((1, 4, 4), []), ((3, 4, 4), [OPEN["summary"]]), ((4,), [OPEN["summary"]])):
        layer = partial(torch.nn.Linear, int(np.prod(shape)), 2)
        flat = Learner("flat", lambda layer=layer: torch.nn.Sequential(torch.nn.Flatten(), layer()))
        views = Views.of(Dataset(chance.random((80, *shape)).astype(np.float32), y))
        context = DeviceContext(flat, views, "cpu", 0, chance, account=Noting(np.random.default_rng(0).bytes))
        assert left_open(Summarize()) == ()
        standard.perform(Summarize(), context.for_task(0))
        assert noted == left
        noted.clear()
    table = numbers()
    table.account = Noting(np.random.default_rng(0).bytes)
    standard.perform(Summarize(), table.for_task(0))
    assert noted == [OPEN["summary"]], "of the numbers to predict"
