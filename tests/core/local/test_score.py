import math

import numpy as np
import pytest

from fedcore.data import Dataset
from fedcore.errors import LearnerFault
from fedcore.local.learner import Learner
from fedcore.local.score import WORST, score

from .conftest import Slope, bench_of, mean_output


def test_the_loss_of_each_model_in_order_on_the_training_part() -> None:
    """The loss is w times the mean of x. Of ones, one in five is held out."""
    bench = bench_of(
        Learner("slope", Slope, loss=mean_output, evaluate=None),
        Dataset(np.ones((10, 1), np.float32), np.zeros(10, np.int64)),
    )
    models = [{"w": np.array([value], np.float32)} for value in (3.0, -1.0, 0.5)]
    scores = score(bench, models)
    assert scores.losses.tolist() == [3.0, -1.0, 0.5]
    assert scores.examples == 8


def test_a_model_without_a_finite_loss_is_named_as_diverged() -> None:
    bench = bench_of(
        Learner("slope", Slope, loss=mean_output), Dataset(np.ones((5, 1)), np.zeros(5, np.int64))
    )
    with pytest.raises(LearnerFault, match="diverged"):
        score(bench, [{"w": np.array([math.nan], np.float32)}])


def test_a_model_that_somebody_ruined_fits_nobody_and_stops_nobody() -> None:
    bench = bench_of(
        Learner("slope", Slope, loss=mean_output), Dataset(np.ones((5, 1)), np.zeros(5, np.int64))
    )
    models = [{"w": np.array([value], np.float32)} for value in (math.nan, 2.0, 3e38)]
    assert score(bench, models).losses.tolist() == [WORST, 2.0, WORST]
