import numpy as np
import pytest
import torch

from shoal.core.device_kit.evaluation.evaluate import WORST
from shoal.core.device_kit.learner import initial_weights
from shoal.core.device_kit.mixture import labelled, predicted, responsibilities, sample_losses, train_share
from shoal.core.device_kit.standard import perform
from shoal.core.errors import BadPayload, LearnerFault
from shoal.core.exchange.messages import Ensemble, Evaluated, TrainingSettings
from shoal.core.types import Tensors

from .conftest import context_of, small


def ruined() -> Tensors:
    """Finite weights, as a server admits them, that give no finite number."""
    first, *others = (model := initial_weights(small(), 0))
    return {first: np.zeros_like(model[first])} | {name: np.full_like(model[name], 3e38) for name in others}


def test_a_model_that_somebody_ruined_explains_nothing_and_stops_nobody() -> None:
    context = context_of()
    models = (initial_weights(small(), 0), ruined())
    samples, _ = labelled(context, "train")
    losses = sample_losses(context, models, samples)
    assert (losses[:, 1] == WORST).all()
    assert (losses[:, 0] < 10.0).all()
    shares = responsibilities(losses, np.array([0.5, 0.5]))
    assert (shares == [1.0, 0.0]).all()
    settings = TrainingSettings()
    whole, _ = train_share(context, models[0], samples, shares[:, 0], settings)
    assert any((whole[name] != models[0][name]).any() for name in whole)
    untouched, _ = train_share(context, models[1], samples, shares[:, 1], settings)
    assert all((untouched[name] == models[1][name]).all() for name in models[1])
    accuracy, loss = predicted(context, models, np.array([0.999, 0.001]), samples)
    alone, _ = predicted(context, models, np.array([1.0, 0.0]), samples)
    assert accuracy == alone
    assert np.isfinite(loss)


def test_an_ensemble_is_the_weighted_sum_of_the_models_probabilities() -> None:
    """Checked against the two networks by themselves. The second model's votes decide where it is surer by
    more than its smaller weight takes away."""
    context = context_of()
    models = (initial_weights(small(), 0), initial_weights(small(), 5))
    samples, labels = labelled(context, "test")
    with torch.no_grad():
        outputs = [torch.softmax(context.load(model).eval()(samples.x).double(), 1) for model in models]
    mixed = (3.0 * outputs[0] + 1.0 * outputs[1]) / 4.0
    answer = perform(Ensemble(models, (3.0, 1.0)), context)
    assert isinstance(answer, Evaluated)
    assert answer.examples == len(labels)
    assert answer.accuracy == float((mixed.argmax(1).numpy() == labels).mean())
    assert answer.loss == pytest.approx(-float(np.log(mixed.numpy()[np.arange(len(labels)), labels]).mean()))


@pytest.mark.parametrize("weights", [(1.0,), (0.0, 0.0), (1.0, -0.5), (float("nan"), 1.0), (1e308, 1e308)])
def test_an_ensemble_with_impossible_weights_is_refused(weights: tuple[float, ...]) -> None:
    with pytest.raises(BadPayload, match="weights"):
        Ensemble((initial_weights(small(), 0),) * 2, weights)


def test_where_every_model_is_ruined_the_device_says_so() -> None:
    context = context_of()
    samples, _ = labelled(context, "train")
    with pytest.raises(LearnerFault, match="under any model"):
        sample_losses(context, (ruined(), ruined()), samples)
