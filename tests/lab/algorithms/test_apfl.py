"""APFL (Deng et al. 2020): Algorithm 1 and the rule for alpha, on numbers checked by hand."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.algorithm import Report, measurement
from shoal.core.device_kit.context import DeviceContext
from shoal.core.errors import BadPayload, ConfigError, LearnerFault
from shoal.core.exchange.messages import Evaluated, Trained, TrainingSettings
from shoal.core.types import Tensors
from shoal_lab.algorithms.apfl import ALGORITHM, Parameters
from shoal_lab.algorithms.apfl import device as device_half
from shoal_lab.algorithms.apfl import server as server_half
from shoal_lab.algorithms.apfl.messages import Measure, Train
from tests.slope import at, bowl, context, slope

SETTINGS = TrainingSettings(epochs=2, learning_rate=0.1, momentum=0.0)


def trained(device: DeviceContext, start: float = 3.0, adaptive: bool = True) -> tuple[float, float, float]:
    """w as it is sent; v and alpha as they are remembered."""
    answer = device_half.perform(Train(at(start), SETTINGS, 0.5, adaptive), device)
    assert isinstance(answer, Trained)
    kept = device.remembered
    assert kept is not None
    return float(answer.model["w"]), float(kept["model/w"]), float(kept["numbers/alpha"])


def test_algorithm_1_w_v_and_alpha_move_together_from_what_was_before() -> None:
    """f(w) = (w - 1)^2 / 2. Step 1, all at 3: w 2.8, v 2.9, alpha stays, as v and w are the same. Step 2:
    v_bar 2.85, its gradient 1.85."""
    expected = 2.8 - 0.1 * 1.8, 2.9 - 0.1 * 0.5 * 1.85, 0.5 - 0.1 * (2.9 - 2.8) * 1.85
    assert trained(context(bowl())) == pytest.approx(expected)
    assert trained(context(bowl()), adaptive=False) == pytest.approx((*expected[:2], 0.5))


def test_the_next_round_goes_on_from_the_own_model_and_alpha_with_the_common_one_that_came() -> None:
    memory: Tensors = {"model/w": np.array(2.0, np.float32), "numbers/alpha": np.array(0.25)}
    w, v, alpha = 5.0, 2.0, 0.25
    for _ in range(2):
        at_mixed = alpha * v + (1 - alpha) * w - 1.0
        w, v, alpha = (
            w - 0.1 * (w - 1.0),
            v - 0.1 * alpha * at_mixed,
            min(max(alpha - 0.1 * (v - w) * at_mixed, 0.0), 1.0),
        )
    assert alpha == 1.0
    assert trained(context(bowl()).for_task(0, memory), start=5.0) == pytest.approx((w, v, alpha))


def test_a_device_measures_the_mixture_and_a_newcomer_the_common_model() -> None:
    """Every sample is classified as class 0, which is right, if the weight is above 0."""
    task = measurement(server_half, server_half.start(at(3.0), Parameters()), "global")
    assert isinstance(task, Measure)
    device = context(slope())
    for alpha, accuracy in ((None, 1.0), (0.25, 1.0), (0.75, 0.0)):
        memory = alpha and {"model/w": np.array(-3.0, np.float32), "numbers/alpha": np.array(alpha)}
        answer = device_half.perform(task, device.for_task(0, memory or None))
        assert isinstance(answer, Evaluated)
        assert answer.accuracy == accuracy


def test_the_server_takes_the_mean_in_which_each_device_counts_once() -> None:
    state = server_half.start(at(10.0), ALGORITHM.configure("paper", {"rounds": 1}))
    reports = [Report("a", Trained(at(1.0), 99, 0.1)), Report("b", Trained(at(5.0), 1, 0.1))]
    after = server_half.reduce(state, reports)
    assert after.models["global"]["w"] == 3.0
    assert (after.phase, after.assignments) == ("evaluate", {"a": "global", "b": "global"})


def test_a_share_that_is_none_and_a_train_of_the_learners_own_are_refused() -> None:
    with pytest.raises(ConfigError, match="alpha"):
        server_half.start(at(3.0), Parameters(alpha=1.5))
    with pytest.raises(BadPayload, match="alpha"):
        Train(at(3.0), SETTINGS, -0.1, True)
    with pytest.raises(LearnerFault, match=r"has a train\(\)"):
        trained(context(replace(bowl(), train=lambda model, batches, settings: 0.0)))
