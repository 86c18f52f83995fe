import subprocess
import sys

import numpy as np
import pytest
import torch

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import evaluate
from shoal.core.device_kit.learner import initial_weights
from shoal.core.device_kit.standard import perform
from shoal.core.errors import BadPayload, DeviceFault
from shoal.core.exchange.messages import (
    Build,
    Built,
    Describe,
    Described,
    Evaluate,
    Evaluated,
    Score,
    Scored,
    Train,
    Trained,
    TrainingSettings,
)
from shoal.core.exchange.parts import PrivacySettings
from shoal.core.exchange.tensors import digest, manifest_of
from shoal.core.inference.describing import moments_of, projected
from shoal.core.types import Tensors

from .conftest import DEVICES, blobs, context_of, small

SETTINGS = TrainingSettings(epochs=1, batch_size=8, learning_rate=0.1)
PROJECTOR: Tensors = {"mean": np.ones(5), "components": np.random.default_rng(2).normal(size=(2, 5))}


def same(left: Tensors, right: Tensors) -> bool:
    return list(left) == list(right) and all(np.array_equal(left[name], right[name]) for name in left)


def exact(context: DeviceContext, weights: Tensors, parts: list[str], classes: int) -> Tensors:
    labels = context.labels(parts) if classes else None
    moments = moments_of(projected(context, weights, PROJECTOR, parts), labels, classes)
    return {"means": moments.means, "deviations": moments.deviations, "counts": moments.counts}


def test_build_gives_the_weights_of_the_tasks_seed() -> None:
    answer = perform(Build(), context_of(seed=42))
    assert isinstance(answer, Built)
    assert same(answer.model, initial_weights(small(), 42))


def test_several_initial_models_are_drawn_each_anew_and_the_first_as_ever() -> None:
    alone, several = (perform(task, context_of(seed=42)) for task in (Build(), Build(3)))
    assert isinstance(alone, Built)
    assert isinstance(several, Built)
    assert alone.others is None
    assert several.others is not None
    assert digest(several.model) == digest(alone.model)
    assert len({digest(model) for model in (several.model, *several.others)}) == 3


@pytest.mark.parametrize("device", DEVICES)
def test_train_answers_with_a_better_model_of_the_same_shape(device: str) -> None:
    context, weights = context_of(device=device), initial_weights(small(), 0)
    answer = perform(Train(weights, SETTINGS), context)
    assert isinstance(answer, Trained)
    assert manifest_of(answer.model) == manifest_of(weights)
    assert answer.examples == 40
    assert answer.descriptor is None
    held_out = context.samples("held_out")
    before = evaluate(context.learner, context.load(weights), held_out)[1]
    assert evaluate(context.learner, context.load(answer.model), held_out)[1] < before


@pytest.mark.parametrize("device", DEVICES)
def test_train_is_near_what_a_processor_makes_of_it(device: str) -> None:
    weights = initial_weights(small(), 0)
    here, there = (perform(Train(weights, SETTINGS), context_of(device=name)) for name in ("cpu", device))
    assert isinstance(here, Trained)
    assert isinstance(there, Trained)
    assert there.loss == pytest.approx(here.loss, rel=1e-4)
    assert all(np.allclose(there.model[name], here.model[name], atol=1e-4) for name in weights)


def test_a_task_leaves_nothing_behind_for_the_next() -> None:
    weights = initial_weights(small(), 0)
    context = context_of()
    first = perform(Train(weights, SETTINGS), context)
    assert isinstance(first, Trained)
    kept = {name: array.copy() for name, array in first.model.items()}
    second = perform(Train(weights, SETTINGS), context)
    other = perform(Train(weights, SETTINGS), context.for_task(seed=2))
    assert isinstance(second, Trained)
    assert isinstance(other, Trained)
    assert same(first.model, kept)
    assert same(second.model, kept)
    assert second.loss == first.loss
    assert not same(other.model, kept)


def test_train_describes_the_training_part_by_the_model_as_received() -> None:
    context, weights = context_of(), initial_weights(small(), 0)
    answer = perform(Train(weights, SETTINGS, projector=PROJECTOR, classes=3), context)
    assert isinstance(answer, Trained)
    assert answer.descriptor is not None
    expected = exact(context, weights, ["train"], 3)
    assert np.array_equal(answer.descriptor.statistics.means, expected["means"])
    assert np.array_equal(answer.descriptor.statistics.deviations, expected["deviations"])
    assert np.array_equal(answer.descriptor.statistics.counts, expected["counts"])
    assert answer.descriptor.projector == digest(PROJECTOR)
    assert not np.allclose(exact(context, answer.model, ["train"], 3)["means"], expected["means"])


def test_describing_does_not_change_what_is_trained() -> None:
    weights = initial_weights(small(), 0)
    plain = perform(Train(weights, SETTINGS), context_of())
    described = perform(Train(weights, SETTINGS, projector=PROJECTOR, classes=3), context_of())
    assert isinstance(plain, Trained)
    assert isinstance(described, Trained)
    assert same(plain.model, described.model)


def test_evaluate_measures_the_part_that_is_asked_for() -> None:
    weights = initial_weights(small(), 0)
    context = context_of()
    answer = perform(Evaluate(weights), context)
    assert isinstance(answer, Evaluated)
    expected = evaluate(context.learner, context.load(weights), context.samples("held_out"))
    assert (answer.accuracy, answer.loss, answer.examples, answer.bounds) == (*expected, 10, None)


def test_evaluate_on_a_test_part_gives_bounds_of_the_held_out_one() -> None:
    weights = initial_weights(small(), 0)
    context = context_of()
    context.views = type(context.views)(context.views.train, context.views.held_out, blobs(7))
    answer = perform(Evaluate(weights, part="test", bounds="scalar"), context)
    assert isinstance(answer, Evaluated)
    assert answer.examples == 7
    with torch.no_grad():
        z = context.load(weights).latent(context.samples("held_out").x)  # type: ignore[operator]
    assert answer.bounds is not None
    assert answer.bounds.low.tolist() == [z.min().item()]
    assert answer.bounds.high.tolist() == [z.max().item()]
    assert answer.latents == 5


def test_describe_with_classes_speaks_of_the_training_part() -> None:
    context, weights = context_of(), initial_weights(small(), 0)
    answer = perform(Describe(weights, PROJECTOR, classes=3), context)
    assert isinstance(answer, Described)
    assert answer.examples == 40
    assert np.array_equal(answer.descriptor.statistics.means, exact(context, weights, ["train"], 3)["means"])


def test_describe_without_labels_speaks_of_all_data() -> None:
    weights = initial_weights(small(), 0)
    labelled, unlabelled = context_of(), context_of(data=Dataset(blobs(50).x))
    answers = [perform(Describe(weights, PROJECTOR), context) for context in (labelled, unlabelled)]
    for answer in answers:
        assert isinstance(answer, Described)
        assert answer.examples == 50
        assert answer.descriptor.classes == 0
        # The same 50 rows, in another order.
        assert np.allclose(
            answer.descriptor.statistics.means, exact(unlabelled, weights, ["train"], 0)["means"]
        )


def test_describe_by_class_needs_labels() -> None:
    context = context_of(data=Dataset(blobs(50).x))
    with pytest.raises(DeviceFault, match="needs labels"):
        perform(Describe(initial_weights(small(), 0), PROJECTOR, classes=3), context)


def test_a_descriptor_is_released_with_the_benchs_noise() -> None:
    weights, paper = initial_weights(small(), 0), PrivacySettings("paper", 1.0)
    context = context_of()
    answers = [perform(Describe(weights, PROJECTOR, 3, paper), context) for _ in range(2)]
    for answer in answers:
        assert isinstance(answer, Described)
        assert answer.descriptor.privacy == paper
    first, second = (answer.descriptor for answer in answers if isinstance(answer, Described))
    # Neither the task's seed nor the data make the noise: the second is another.
    assert not np.isclose(first.statistics.means, second.statistics.means, rtol=0, atol=1e-9).any()


def test_score_gives_a_loss_for_each_model() -> None:
    context = context_of()
    models = tuple(initial_weights(small(), seed) for seed in (0, 1))
    answer = perform(Score(models), context)
    assert isinstance(answer, Scored)
    samples = context.samples("train")
    expected = [evaluate(context.learner, context.load(model), samples)[1] for model in models]
    assert answer.scores.losses.tolist() == expected


TRAINING = """
import numpy as np, torch
from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import builtin
from shoal.core.device_kit.samples import convert
from shoal.core.device_kit.training.train import train
from shoal.core.exchange.messages import TrainingSettings
learner = builtin("mlp", {"inputs": 4, "hidden": [3], "classes": 2})
samples = convert(Dataset(np.ones((6, 4), np.float32), np.arange(6) % 2), torch.device("cpu"))
train(learner, learner.module(1), samples, TrainingSettings(), seed=1)
"""


@pytest.mark.parametrize(
    ("module", "work", "unwanted"),
    [
        (
            "shoal.core.device_kit.standard",
            TRAINING,
            {"sklearn", "scipy", "grpc", "google.protobuf", "torch._dynamo"},
        ),
        ("shoal.core.privacy.release", "", {"torch", "shoal.core.device_kit"}),
    ],
)
def test_a_device_loads_no_more_than_it_needs(module: str, work: str, unwanted: set[str]) -> None:
    script = f"import sys, {module}\n{work}\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert module in loaded.stdout.split()
    assert not unwanted & set(loaded.stdout.split())


def test_a_message_of_another_kind_is_refused() -> None:
    with pytest.raises(BadPayload, match="does not answer 'trained'"):
        perform(Trained({}, 1, 0.0), context_of())


def test_weights_of_another_model_are_refused() -> None:
    with pytest.raises(BadPayload, match="lacks tensor"):
        perform(Evaluate({}), context_of())
