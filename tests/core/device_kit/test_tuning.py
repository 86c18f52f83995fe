"""Fine-tuning: on all samples, where held-out samples have much less loss halfway to what training makes of a
model."""

from dataclasses import replace

import numpy as np
import pytest
from torch import nn

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.evaluation.evaluate import evaluate
from shoal.core.device_kit.learner import Learner, initial_weights, tensors_of
from shoal.core.device_kit.training.train import train
from shoal.core.device_kit.tuning import halfway, perform, sure, together, tune
from shoal.core.errors import BadPayload, DeviceFault, LearnerFault
from shoal.core.exchange.choosing.tuning import MAX_LOSS_LEFT, PULL, Tune
from shoal.core.exchange.messages import CountLatents, TrainingSettings
from shoal.core.exchange.tensors import digest

from .conftest import blobs, context_of, small

MODEL = initial_weights(small(), 3)
SETTINGS = TrainingSettings(epochs=5, batch_size=8, learning_rate=0.05)


def test_it_trains_on_all_samples_where_halfway_there_held_out_ones_have_much_less_loss() -> None:
    context = context_of()
    found = tune(Tune(MODEL, SETTINGS, "c1"), context)
    assert found.model is not None
    assert found.after <= MAX_LOSS_LEFT * found.before
    assert found.examples == len(context.views.held_out)
    model = context.load(MODEL)
    measured = evaluate(context.learner, model, context.samples("held_out"))[1]
    assert found.before == pytest.approx(measured)
    train(context.learner, model, context.samples("train"), SETTINGS, context.seed)
    between = halfway(MODEL, tensors_of(model))
    again = evaluate(context.learner, context.load(between), context.samples("held_out"))
    assert found.after == pytest.approx(again[1])
    both = together(context.samples("train"), context.samples("held_out"))
    assert len(both) == len(context.views.train) + len(context.views.held_out)
    train(context.learner, context.load(MODEL), both, replace(SETTINGS, proximal=PULL), context.seed)
    assert digest(found.model) == digest(tensors_of(context.model))


def test_the_clusters_model_stays_where_little_is_won() -> None:
    slow = replace(SETTINGS, epochs=1, learning_rate=1e-4)
    found = tune(Tune(MODEL, slow, "c1"), context_of())
    assert MAX_LOSS_LEFT * found.before < found.after < found.before
    assert found.model is None


@pytest.mark.parametrize(
    ("gains", "expected"),
    [
        ([0.1, 0.2, 0.1, 0.2, 0.1], True),
        ([1.0, -0.8, 1.0, -0.8, 1.0], False),
        ([0.3, 0.3, 0.3, 0.3], False),
        ([-0.1, -0.2, -0.1, -0.2, -0.1], False),
    ],
)
def test_a_gain_is_sure_if_most_held_out_samples_agree_and_they_are_not_too_few(
    gains: list[float], expected: bool
) -> None:
    assert sure(np.array(gains)) is expected


def test_what_is_no_floating_point_number_is_the_trained_models() -> None:
    first = {"w": np.array([1.0, 3.0], np.float32), "seen": np.array(4)}
    second = {"w": np.array([2.0, -1.0], np.float32), "seen": np.array(9)}
    found = halfway(first, second)
    assert found["w"].tolist() == [1.5, 1.0]
    assert found["w"].dtype == np.float32
    assert found["seen"] == 9


def test_networks_that_count_batches_and_average_over_them_can_be_fine_tuned() -> None:
    learner = Learner(
        "norm", lambda: nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    )
    first = initial_weights(learner, 1)
    found = tune(Tune(first, SETTINGS, "c1"), context_of(learner))
    assert found.model is not None
    assert found.model["1.num_batches_tracked"] == 5 * 7, "of all 50 samples, in batches of 8"
    assert found.model["1.running_mean"].dtype == np.float32


def test_without_labels_or_held_out_samples_nothing_can_be_decided() -> None:
    for data in (Dataset(blobs(50).x), blobs(1)):
        with pytest.raises(DeviceFault):
            tune(Tune(MODEL, SETTINGS, "c1"), context_of(data=data))


def test_training_that_diverges_is_an_error() -> None:
    wild = replace(SETTINGS, learning_rate=1e30)
    with pytest.raises(LearnerFault):
        tune(Tune(MODEL, wild, "c1"), context_of())


def test_it_answers_nothing_else() -> None:
    with pytest.raises(BadPayload, match="count_latents"):
        perform(CountLatents(MODEL), context_of())
