"""Whether a run has learned anything."""

import math
from dataclasses import replace

import numpy as np
import pytest

from shoal.core.verdict import Measured, Reported, judged, trend, verdict

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


def test_a_dozen_test_samples_prove_nothing() -> None:
    """By chance they lack the class that is commonest in training, and any other answer beats it."""
    one = Measured(1.0, "c0", 3, np.array([0, 3]), np.array([7, 5]))
    few, more = verdict([one] * 4, FALLING), verdict([one] * 12, FALLING)
    assert few is not None
    assert more is not None
    assert (few.learned, more.learned) == (None, True)


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


def test_a_model_that_memorized_its_samples_needs_more_of_them() -> None:
    few = [device(0.65, 0.5, 0.5)] * 4

    def advised(losses: list[float], likely: bool = True) -> str:
        found = verdict(few, losses, likely=likely)
        assert found is not None
        return found.advice

    low = [2.0, 1.0, *[0.2] * 6]  # a mean probability of 82 % or more for what it was trained on
    assert "more samples would help" in advised(low)
    assert "more samples would help" not in advised(FALLING)
    assert "more samples" not in advised(low, likely=False), "a loss of another kind"
    nothing = verdict([device(0.49, 0.5, 0.5, samples=2000)] * 9, low, likely=True)
    assert nothing is not None
    assert (nothing.learned, "look at the labels" in nothing.advice) == (False, True)


def test_where_there_are_too_few_samples_it_is_said_how_many_would_tell() -> None:
    few = verdict([device(0.7, 0.5, 0.5, samples=10)] * 2, FALLING)
    assert few is not None
    assert (few.learned, round(few.error, 2)) == (None, 0.19)  # a gain of 0.2: three errors are 0.57
    assert few.advice.startswith("9 times as many samples")
    enough = verdict([device(0.7, 0.5, 0.5, samples=90)] * 2, FALLING)
    assert enough is not None
    assert enough.learned is True
    below = verdict([device(0.4, 0.5, 0.5, samples=10)] * 2, FALLING)
    assert below is not None
    assert "more samples on each" in below.advice


def test_without_figures_there_is_no_verdict() -> None:
    assert verdict([], FALLING) is None


# -- what a server knows ------------------------------------------------------------------------------------


def reported(
    accuracy: float, baseline: float | None, classes: int = 10, samples: int = 100, *shares: float
) -> Reported:
    known = np.array(shares) if shares else None
    return Reported(accuracy, "c0", samples, baseline, classes, known)


def test_what_beats_each_devices_own_commonest_class_was_learned() -> None:
    found = judged([reported(0.8, 0.2)] * 6, FALLING)
    assert found is not None
    assert found.learned is True
    assert (found.gain, found.baseline) == pytest.approx((0.6, 0.2))
    assert str(found).startswith("Learned: 80.0 %, 60.0 (± ")
    assert str(found).endswith(") points above always answering each device's commonest class")


def test_what_is_no_better_than_a_guess_was_not_learned() -> None:
    sure = judged([reported(0.05, 0.2, samples=1000)] * 6, FALLING)
    flat = judged([reported(0.11, 0.2)] * 6, FLAT)
    for found in (sure, flat):
        assert found is not None
        assert found.learned is False
        assert found.sentence.endswith("where guessing gives 10.0 %")


@pytest.mark.parametrize("accuracy", [0.3, 0.9, 1.0])
def test_devices_of_one_class_each_cannot_tell(accuracy: float) -> None:
    """They may all have the same one, or each another."""
    found = judged([reported(accuracy, 1.0)] * 6, FALLING)
    assert found is not None
    assert found.learned is None
    assert found.sentence.startswith("It is not known whether anything was learned")


def test_shares_that_were_released_can_tell() -> None:
    """The same two accuracies, of devices that share a commonest class, and of such that do not."""
    same = [reported(0.7, 0.7, 2, 400, 0.7, 0.3)] * 6
    apart = [reported(0.7, 0.7, 2, 400, *shares) for shares in ((0.7, 0.3), (0.3, 0.7)) * 3]
    of_same, of_apart = judged(same, FLAT), judged(apart, FALLING)
    assert of_same is not None
    assert of_apart is not None
    assert (of_same.learned, of_apart.learned) == (False, True)
    assert of_apart.baseline == pytest.approx(0.5)
    unknown = judged([*apart[1:], reported(0.7, 0.7, 2, 400)], FALLING)
    assert unknown is not None
    assert unknown.learned is None, "all have to have released them"
    doubtful = judged([replace(each, doubt=0.3) for each in apart], FALLING)
    assert doubtful is not None
    assert doubtful.learned is None, "the noise in them counts"


def test_numbers_need_no_shares() -> None:
    found = judged([reported(0.4, 0.0, 0)] * 3, FALLING)
    assert found is not None
    assert (found.learned, found.numbers) == (True, True)


def test_devices_that_do_not_say_give_no_verdict_and_it_says_so() -> None:
    found = judged([reported(0.9, None, 0)] * 4 + [reported(0.9, 0.1)] * 4, FALLING)
    assert found is not None
    assert (found.learned, found.baseline) == (None, None)
    assert "devices do not say how common their commonest class is" in str(found)
    assert judged([], FALLING) is None


def test_one_liar_makes_no_verdict() -> None:
    """Seven honest devices that know nothing, and one that claims everything; and the other way round."""
    idle, liar = [reported(0.2, 0.2, samples=4000)] * 7, reported(1.0, 0.1, samples=1 << 40)
    found = judged([*idle, liar], FALLING)
    assert found is not None
    assert found.learned is None
    for claim in (reported(0.9, 0.0, 0), reported(0.9, 0.9, 1 << 20)):
        honest = judged([*[reported(0.8, 0.2)] * 7, claim], FALLING)
        assert honest is not None
        assert honest.learned is True, "what the network tells apart is what most say"
        assert not honest.numbers
