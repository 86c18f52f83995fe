"""Whether a run has learned anything."""

import math

import numpy as np
import pytest

from shoal.core.verdict import Measured, trend, verdict

FALLING, FLAT = [2.0, 1.0, 0.5, 0.4, 0.4, 0.4, 0.4, 0.4], [2.3, 2.31, 2.3, 2.29, 2.3]


def device(accuracy: float, *shares: float, samples: int = 200, cluster: str = "c0") -> Measured:
    counts = np.array([round(share * samples) for share in shares], np.int64)
    return Measured(accuracy, cluster, samples, counts, counts)


def test_the_baseline_is_the_commonest_class_and_not_even_odds() -> None:
    found = verdict([device(0.71, 0.7, 0.3)] * 4, FALLING)
    assert found is not None
    assert found.baseline == pytest.approx(0.7)
    assert found.learned is None
    better = verdict([device(0.8, 0.7, 0.3)] * 4, FALLING)
    assert better is not None
    assert better.learned is True
    assert str(better) == "Learned: 80.0 %, 10.0 (± 7.4) points above always answering the commonest class"


def test_a_model_that_always_answers_the_commonest_class_has_not_learned() -> None:
    found = verdict([device(0.7, 0.7, 0.3)] * 4, FLAT, given=True)
    assert found is not None
    assert found.learned is False
    assert str(found).startswith(
        "NOTHING WAS LEARNED: 70.0 %, where always answering the commonest class gives 70.0 %"
    )
    assert "leave learning_rate, batch_size and epochs out" in found.advice


def test_devices_of_one_class_each_are_held_against_their_cluster() -> None:
    """Their own commonest class is always right, but no one answer is right for all of them."""
    devices = [device(0.9, 1.0, 0.0), device(0.9, 0.0, 1.0)]
    found = verdict(devices, FALLING)
    assert found is not None
    assert found.baseline == pytest.approx(0.5)
    assert found.learned is True
    apart = [device(1.0, 1.0, 0.0, cluster="c0"), device(1.0, 0.0, 1.0, cluster="c1")]
    alone = verdict(apart, FALLING)
    assert alone is not None
    assert alone.learned is None
    assert "one class" in alone.sentence


def test_the_class_is_chosen_on_the_training_parts() -> None:
    """Chosen on few test samples, it would look better than it is."""
    one = Measured(0.5, "c0", 4, np.array([1, 3]), np.array([60, 40]))
    found = verdict([one], FALLING)
    assert found is not None
    assert found.baseline == 0.25


def test_few_test_samples_tell_little() -> None:
    few, many = (verdict([device(0.6, 0.5, 0.5, samples=n)], FALLING) for n in (20, 2000))
    assert few is not None
    assert many is not None
    assert (few.learned, many.learned) == (None, True)
    assert few.sentence.startswith("Too few test samples to tell: 60.0 %, 10.0 (± 63.3) points above")


def test_no_chance_is_called_learning_and_no_learning_chance() -> None:
    """2,000 fleets of models that guess, and as many of models that are right 20 points more often."""
    chance, guessed, known = np.random.default_rng(7), [], []
    for _ in range(2000):
        count, samples = int(chance.integers(1, 12)), int(chance.integers(5, 80))
        for rate, found in ((0.5, guessed), (0.7, known)):
            accuracies = chance.binomial(samples, rate, count) / samples
            made = verdict([device(each, 0.5, 0.5, samples=samples) for each in accuracies], FLAT)
            assert made is not None
            found.append(made.learned)
    assert sum(each is True for each in guessed) <= 4
    assert sum(each is False for each in known) <= 4
    assert sum(each is True for each in known) > 1000


def test_numbers_are_judged_by_the_variance_that_is_explained() -> None:
    good = verdict([Measured(0.4, "c0", 100)] * 3, FALLING)
    assert good is not None
    assert str(good) == "Learned: 40.0 % (± 13.4) of the variance is explained"
    bad = verdict([Measured(0.0, "c0", 20)] * 3, [10.0, 9.0, 8.0, 7.0])
    assert bad is not None
    assert bad.learned is False


def test_what_the_loss_says() -> None:
    assert trend([3.0, 2.0, 1.0, 0.5]) == (True, False)
    assert trend(FALLING) == (False, False)
    assert trend([2.0, 0.4, 0.4, 0.4, 0.4, 0.4]) == (False, False)
    assert trend([1.0, 2.0, 5.0, 9.0]) == (False, True)
    assert trend([1.0, math.nan]) == (False, True)
    rising = verdict([device(0.5, 0.5, 0.5)] * 9, [1.0, 4.0, 9.0, 9.0])
    assert rising is not None
    assert "the loss rose" in rising.advice
    falling = verdict([device(0.9, 0.5, 0.5)], [3.0, 2.0, 1.0, 0.5])
    assert falling is not None
    assert falling.advice == "the loss was still falling, so more rounds would help"


def test_without_figures_there_is_no_verdict() -> None:
    assert verdict([], FALLING) is None
