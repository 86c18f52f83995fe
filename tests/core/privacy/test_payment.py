"""What can be given again for what."""

from dataclasses import replace

import pytest

from shoal.core.exchange.parts import PrivacySettings
from shoal.core.privacy.cost import ORDERS, Cost
from shoal.core.privacy.dpsgd import TrainingTerms
from shoal.core.privacy.payment import Payment, counting, description, training, voting
from shoal.core.privacy.terms import terms

SETTINGS = PrivacySettings("balanced", 5.0, 1e-6)
COUNT, VOTE = counting(0.1, "m", "test", "d"), voting(1.0, "q", "d")


def described(classes: int, samples: int = 400) -> Payment:
    agreed = replace(terms(SETTINGS, samples, 0), classes=classes)
    return description(SETTINGS, agreed, "encoder", "projector", "d")


@pytest.mark.parametrize("made", [COUNT, VOTE, described(0), described(3)])
def test_data_that_have_changed_change_no_answer_and_any_other_question_does(made: Payment) -> None:
    assert made.answers(replace(made, data="e"))
    assert not made.answers(replace(made, question=(*made.question, "more")))
    for name in set(made.facts) - {"classes"}:
        assert not made.answers(replace(made, facts={**made.facts, name: 0.7}))


def test_what_has_classes_serves_where_none_are_asked_for_and_not_the_other_way() -> None:
    assert described(3).answers(described(0))
    assert not described(0).answers(described(3))
    assert not described(2).answers(described(3))
    assert described(0).answers(described(3), in_part=True)
    assert not described(2).answers(described(3), in_part=True)
    assert not described(3).answers(described(3, samples=40_000)), "more samples are on other terms"


def test_training_is_never_given_again_and_nothing_answers_another_kind() -> None:
    lesson = training(TrainingTerms(1.0, 1.0, 0.1, 3, Cost(curve=(0.1,) * len(ORDERS))), "d")
    assert not lesson.answers(lesson)
    assert not COUNT.answers(replace(COUNT, kind="voting"))
