"""F1 and AUC: as scikit-learn has them, and in small cases that can be checked by hand."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score, roc_auc_score

from shoal.core.device_kit.evaluation.metrics import macro_auc, macro_f1
from shoal.core.device_kit.learner import initial_weights
from shoal.core.device_kit.standard import perform
from shoal.core.exchange.messages import Evaluate, Evaluated

from .conftest import context_of, small


@pytest.mark.parametrize("seed", range(5))
def test_they_are_those_of_scikit_learn(seed: int) -> None:
    chance = np.random.default_rng(seed)
    labels, scores = chance.integers(0, 4, 60), chance.integers(0, 5, (60, 4)).astype(float)
    said = scores.argmax(1)
    assert macro_f1(labels, said) == pytest.approx(f1_score(labels, said, average="macro", zero_division=0))
    # It wants rows that sum to 1, which changes the ranks; so class by class, with the ties.
    areas = [roc_auc_score(labels == label, scores[:, label]) for label in range(4)]
    assert macro_auc(labels, scores) == pytest.approx(np.mean(areas))


def test_a_rare_class_counts_as_much_as_a_common_one() -> None:
    """9 of 10 right, but of the two classes one is never found: F1 is (18/19 + 0) / 2."""
    labels, said = np.array([0] * 9 + [1]), np.zeros(10, np.int64)
    assert macro_f1(labels, said) == pytest.approx(9 / 19)
    scores = np.column_stack([np.ones(10), np.zeros(10)])
    assert macro_auc(labels, scores) == 0.5, "all tie"
    assert macro_auc(np.zeros(3, np.int64), np.eye(3)) is None, "there is nothing to tell apart"


def test_a_device_says_how_common_its_commonest_class_is() -> None:
    """Of the same samples; nothing of it where the accuracy has noise, or is the author's own."""
    context, model = context_of(), initial_weights(small(), 0)
    found = perform(Evaluate(model, "test"), context)
    assert isinstance(found, Evaluated)
    labels = context.samples("test").labels.numpy()
    assert found.baseline == np.bincount(labels).max() / len(labels)
    assert found.classes == context.load(model)(context.samples("test").x).shape[1]
    own = replace(small(), evaluate=lambda model, samples: (0.25, 1.0))
    other = perform(Evaluate(model, "test"), context_of(own))
    assert isinstance(other, Evaluated)
    assert (other.accuracy, other.baseline, other.classes) == (0.25, None, 0)


def test_a_device_measures_them_only_where_it_is_asked() -> None:
    context, model = context_of(), initial_weights(small(), 0)
    plain, asked = (perform(Evaluate(model, "test", detailed=flag), context) for flag in (None, True))
    assert isinstance(plain, Evaluated)
    assert isinstance(asked, Evaluated)
    assert (plain.f1, plain.auc, plain.accuracy) == (None, None, asked.accuracy)
    samples = context.samples("test")
    scores = context.load(model).eval()(samples.x).detach().double().softmax(1).numpy()
    assert asked.f1 == pytest.approx(macro_f1(samples.labels.numpy(), scores.argmax(1)))
    assert asked.auc == pytest.approx(macro_auc(samples.labels.numpy(), scores))
