"""What several models say together, where one of them has diverged."""

import numpy as np
import pytest

from shoal.core.errors import LearnerFault
from shoal.core.inference.network import Mixed, weighted
from shoal.core.types import Array

SURE, UNSURE = np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[0.5, 0.5], [0.5, 0.5]])
LOST = np.array([[np.nan, 0.5], [0.0, 1.0]])


class Says:
    batch = 2

    def __init__(self, scores: Array) -> None:
        self._scores = scores

    def scores(self, x: Array) -> Array:
        return self._scores


def test_models_that_are_sound_are_weighted_by_their_shares() -> None:
    assert weighted([(0.75, SURE), (0.25, UNSURE)]).tolist() == (0.75 * SURE + 0.25 * UNSURE).tolist()


def test_a_model_is_left_out_for_the_samples_for_which_it_gives_no_numbers() -> None:
    found = weighted([(0.5, LOST), (0.3, SURE), (0.2, UNSURE)])
    assert found[0] == pytest.approx(0.6 * SURE[0] + 0.4 * UNSURE[0])
    assert found[1] == pytest.approx(0.5 * LOST[1] + 0.3 * SURE[1] + 0.2 * UNSURE[1])
    numbers = weighted([(0.5, np.array([np.inf, 1.0], np.float32)), (0.5, np.array([2.0, 3.0], np.float32))])
    assert (numbers.tolist(), numbers.dtype) == ([2.0, 2.0], np.float32)


def test_no_answer_is_made_up_where_no_model_gives_numbers() -> None:
    with pytest.raises(LearnerFault, match="no numbers for 1 of 2 samples"):
        weighted([(1.0, LOST)])
    with pytest.raises(LearnerFault, match="no numbers for 1 of 2 samples"):
        Mixed([(1.0, Says(LOST))]).scores(SURE)
    together = Mixed([(0.5, Says(np.log(SURE))), (0.5, Says(LOST))]).scores(SURE)
    assert np.exp(together[0]) == pytest.approx(SURE[0])
