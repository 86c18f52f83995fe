"""Randomized response: how often the opposite is said, and what that costs."""

import numpy as np
import pytest

from shoal.core.privacy.cost import total
from shoal.core.privacy.noise.response import A_YEAR, EVERY_DAYS, WATCHING, randomized, wrong
from shoal.core.privacy.payment import watching


@pytest.mark.parametrize("epsilon", [WATCHING, 2.5])
def test_the_opposite_is_said_as_often_as_epsilon_allows(epsilon: float) -> None:
    entropy = np.random.default_rng(43).bytes
    for bit in (False, True):
        said = np.mean([randomized(bit, epsilon, entropy) != bit for _ in range(8000)])
        assert abs(said - wrong(epsilon)) < 4.0 * np.sqrt(0.25 / 8000)


def test_a_year_of_answers_costs_what_is_stated() -> None:
    assert A_YEAR * EVERY_DAYS > 365.0, "a fifth one is in another year"
    year = total(watching(str(number), "data").cost for number in range(A_YEAR))
    assert 0.9 * A_YEAR * WATCHING < year.epsilon(1e-6) < 1.02 * A_YEAR * WATCHING


def test_no_answer_stands_for_another_one() -> None:
    assert not watching("d0 digits@10 c0 0", "data").answers(watching("d0 digits@10 c0 1", "data"))
    assert watching("d0 digits@10 c0 0", "data").answers(watching("d0 digits@10 c0 0", "newer"))
