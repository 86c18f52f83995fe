import math

import numpy as np
import pytest

from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import Learner
from shoal.core.device_kit.score import WORST, score
from shoal.core.errors import LearnerFault

from .conftest import Slope, bench_of, mean_output


def test_the_loss_of_each_model_in_order_on_the_training_part() -> None:
    """The loss is w times the mean of x. Of ones, one in five is held out."""
    context = bench_of(
        Learner("slope", Slope, loss=mean_output, evaluate=None),
        Dataset(np.ones((10, 1), np.float32), np.zeros(10, np.int64)),
    )
    models = [{"w": np.array([value], np.float32)} for value in (3.0, -1.0, 0.5)]
    scores = score(context, models)
    assert scores.losses.tolist() == [3.0, -1.0, 0.5]
    assert scores.examples == 8


def test_a_model_without_a_finite_loss_is_named_as_diverged() -> None:
    context = bench_of(
        Learner("slope", Slope, loss=mean_output), Dataset(np.ones((5, 1)), np.zeros(5, np.int64))
    )
    with pytest.raises(LearnerFault, match="diverged"):
        score(context, [{"w": np.array([math.nan], np.float32)}])


def test_a_model_that_somebody_ruined_fits_nobody_and_stops_nobody() -> None:
    context = bench_of(
        Learner("slope", Slope, loss=mean_output), Dataset(np.ones((5, 1)), np.zeros(5, np.int64))
    )
    models = [{"w": np.array([value], np.float32)} for value in (math.nan, 2.0, 3e38)]
    assert score(context, models).losses.tolist() == [WORST, 2.0, WORST]
