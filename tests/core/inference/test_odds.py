"""Which model is the right one for samples without labels: figures checked by hand, and limits."""

import numpy as np
import pytest
from scipy.stats import t

from shoal.core.exchange.parts import FloatArray
from shoal.core.inference.odds import BLUR, MEMBERS, MIN_BLUR, MIN_SHARE, PRIOR_SAMPLES, TAIL, gain, odds

CHANCE = np.random.default_rng(7)


def sure(classes: list[int], of: int = 4, share: float = 0.97) -> FloatArray:
    """Predictions that give `share` to these classes."""
    rest = (1.0 - share) / (of - 1)
    return np.where(np.arange(of) == np.array(classes)[:, None], share, rest)


TURNS = [0, 1, 2, 3] * 5
UNSURE = np.full((20, 4), 0.25)


def test_the_information_is_the_entropy_of_the_mean_less_the_mean_entropy() -> None:
    said = np.array([[0.9, 0.1], [0.2, 0.8], [0.5, 0.5]])
    usual = said.mean(axis=0)
    entropies = -(said * np.log(said)).sum(axis=1)
    by_hand = -(usual * np.log(usual)).sum() - entropies.mean()
    assert gain(said).mean() == pytest.approx(by_hand, abs=1e-9)
    assert gain(np.eye(4)).mean() == pytest.approx(np.log(4), abs=1e-9)
    assert np.abs(gain(UNSURE)).max() < 1e-9
    assert np.abs(gain(np.eye(4)[[1, 1, 1]])).max() < 1e-9, "one that has collapsed tells nothing"


def test_the_error_is_that_of_drawing_the_samples_again() -> None:
    logits = CHANCE.normal(size=(2, 60, 5)) * np.array([3.0, 1.5])[:, None, None]
    first, second = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    found = odds([first, second, second])
    assert found.errors[0] == 0.0
    drawn = []
    for _ in range(2000):
        rows = CHANCE.integers(0, 60, 60)
        drawn.append(gain(first[rows]).mean() - gain(second[rows]).mean())
    assert found.errors[1] == pytest.approx(np.std(drawn), rel=0.15)


def test_the_odds_follow_from_the_gap_its_error_and_the_blur() -> None:
    found = odds([sure(TURNS), sure(TURNS, share=0.9), UNSURE])
    gap = found.information[0] - found.information[1]
    spread = np.sqrt(found.errors[1] ** 2 + (BLUR * found.information[0]) ** 2 + MIN_BLUR**2)
    ratio = t.pdf(gap / spread, TAIL) / t.pdf(0.0, TAIL)
    assert found.odds.tolist() == pytest.approx([1 / (1 + ratio), ratio / (1 + ratio)])
    assert found.odds.sum() == pytest.approx(1.0)


def test_a_model_that_is_far_too_sure_of_itself_does_not_outweigh_all_else() -> None:
    """It is ten deviations ahead, which under a normal distribution would be odds of e to the 50."""
    predictions = [sure(TURNS, share=0.999), UNSURE, UNSURE]
    alone, both = (odds(predictions, None, other) for other in (None, np.array([-12.0, 0.0])))
    assert alone.best == 0
    assert alone.odds[0] > 0.99
    assert both.best == 1
    assert both.odds[1] > 0.9


def test_the_right_model_is_chosen_and_neither_an_unsure_one_nor_one_that_has_collapsed() -> None:
    found = odds([UNSURE, sure(TURNS), sure([2] * 20), UNSURE])
    assert found.best == 1
    assert found.odds[1] > 0.99
    assert found.order[0] == 1


def test_two_models_that_say_the_same_are_no_reason_for_the_common_one() -> None:
    """A run may have more models than groups: it does not matter which of two equal ones is right."""
    found = odds([sure(TURNS), sure(TURNS), UNSURE, sure([3, 2, 1, 0] * 5)])
    assert found.odds[:2].tolist() == pytest.approx([0.5, 0.5], abs=1e-3)
    assert found.best == 0
    assert found.agreement[0] > 0.99


def test_where_models_contradict_each_other_and_are_equally_sure_the_common_one_serves() -> None:
    """As where clusters name the classes differently: nothing but labels can tell them apart. The common
    model says what two of the three say."""
    usual = np.array([0, 1, 2, 3] * 6)
    odd = [np.where(np.arange(24) % 3 == number, (usual + 1) % 4, usual) for number in range(3)]
    found = odds([sure(each.tolist()) for each in odd] + [sure(usual.tolist())])
    assert found.odds.tolist() == pytest.approx([1 / 3] * 3, abs=0.01)
    assert found.agreement.tolist() == pytest.approx([5 / 9] * 3 + [2 / 3], abs=0.01)
    assert found.best == 3


def test_models_predict_together_as_far_as_the_samples_do_not_decide_between_them() -> None:
    undecided = odds([sure(TURNS), sure(TURNS, share=0.9), UNSURE, UNSURE], None, np.array([0.0, 0.0, -9.0]))
    likely = undecided.odds[:2] ** (20 / (20 + PRIOR_SAMPLES))
    assert undecided.odds[2] > 0.0
    assert undecided.mixture.tolist() == pytest.approx([*(likely / likely.sum()), 0.0, 0.0])
    decided = odds([UNSURE, sure(TURNS), UNSURE])
    assert decided.mixture.tolist() == [0.0, 1.0, 0.0]


def test_a_mixture_has_few_models_the_likeliest_and_never_the_common_one() -> None:
    count = 2 * MEMBERS
    found = odds([sure(TURNS)] * (count + 1), None, -0.1 * np.arange(count)[::-1])
    assert np.flatnonzero(found.mixture).tolist() == list(range(count - MEMBERS, count))
    assert found.mixture.sum() == pytest.approx(1.0)
    falling = np.diff(found.mixture[count - MEMBERS : count])
    assert (falling > 0.0).all(), "the likelier a model, the larger its share"
    less, more = (np.log([1.0, factor * MIN_SHARE]) * (20 + PRIOR_SAMPLES) / 20 for factor in (0.9, 1.1))
    assert odds([sure(TURNS)] * 3, None, less).mixture.tolist() == [1.0, 0.0, 0.0]
    assert (odds([sure(TURNS)] * 3, None, more).mixture[:2] > 0.0).all()


def test_samples_are_no_evidence_between_models_that_name_the_same_classes_differently() -> None:
    """All are sure of everything, and which is surer is chance. Labels still decide."""
    turned = [
        sure(((np.array(TURNS) + number) % 4).tolist(), share=0.8 + 0.04 * number) for number in range(6)
    ]
    kin, devices = np.array([0.0, 0, 0, 0, 0, 1]), (1.0, 2.0, 1.0, 1.0, 1.0, 3.0)
    chance, found = (odds([*turned, UNSURE], kin=kin, devices=devices) for kin in (None, kin))
    assert found.odds.sum() == pytest.approx(1.0)
    assert found.odds[5] == pytest.approx(chance.odds[5])
    assert found.odds[:5] == pytest.approx(chance.odds[:5].sum() * np.array([1, 2, 1, 1, 1]) / 6)
    assert (found.mixture[:5] > 0.0).all(), "all of one kin predict together, however many there are"
    assert odds([*turned, UNSURE], np.array(TURNS)).order[0] % 4 == 0


def test_with_few_samples_the_shares_differ_less_than_the_odds() -> None:
    for count in (1, 5, 20):
        found = odds([sure(TURNS[:count])] * 3, None, np.array([0.0, -2.0]))
        apart = np.log(found.mixture[0] / found.mixture[1])
        assert apart == pytest.approx(2.0 * count / (count + PRIOR_SAMPLES))


def test_labels_tell_them_apart_and_one_wrong_label_does_not_decide() -> None:
    names = [np.array(TURNS), 3 - np.array(TURNS)]
    predictions = [sure(each.tolist()) for each in names] + [UNSURE]
    labels = names[1].copy()
    labels[0] = names[0][0]
    found = odds(predictions, labels)
    assert found.best == 1
    assert found.odds[1] > 0.99


def test_models_that_have_learned_nothing_are_no_evidence_however_many_the_samples() -> None:
    weak = 0.25 + 0.01 * CHANCE.normal(size=(2, 100_000, 4))
    weak /= weak.sum(axis=2, keepdims=True)
    found = odds([weak[0], weak[1] * 0.5 + 0.125, weak[0]])
    assert found.odds.tolist() == pytest.approx([0.5, 0.5], abs=0.05)


def test_one_sample_is_enough_to_answer_and_never_makes_sure() -> None:
    found = odds([sure([1]), UNSURE[:1], UNSURE[:1]])
    assert np.isfinite(found.odds).all()
    assert found.odds.max() < 0.7


def test_the_same_samples_give_the_same_bits() -> None:
    one, other = (odds([sure(TURNS), UNSURE, UNSURE]) for _ in range(2))
    assert one.odds.tobytes() == other.odds.tobytes()
    assert one.errors.tobytes() == other.errors.tobytes()
