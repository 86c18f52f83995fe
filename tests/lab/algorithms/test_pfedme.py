"""pFedMe (T. Dinh et al. 2020): Algorithm 1, on numbers checked by hand."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.algorithm import Report, measurement
from shoal.core.device_kit.context import DeviceContext
from shoal.core.errors import ConfigError, LearnerFault
from shoal.core.exchange.messages import Evaluated, Trained
from shoal_lab.algorithms.pfedme import ALGORITHM, Parameters
from shoal_lab.algorithms.pfedme import device as device_half
from shoal_lab.algorithms.pfedme import server as server_half
from shoal_lab.algorithms.pfedme.messages import Measure, Train
from tests.slope import at, bowl, context, slope

PARAMETERS = Parameters(
    epochs=2, batch_size=4, learning_rate=0.25, personal_rate=0.1, personal_steps=2, attraction=2.0
)


def trained(parameters: Parameters, device: DeviceContext, start: float = 3.0) -> tuple[float, float]:
    """w as it is sent, and theta as it is remembered."""
    answer = device_half.perform(Train(at(start), server_half.settings(parameters)), device)
    assert isinstance(answer, Trained)
    assert device.remembered is not None
    return float(answer.model["w"]), float(device.remembered["model/w"])


def test_a_local_round_is_inner_steps_on_theta_and_then_one_on_w() -> None:
    """f(w) = w. Round 1, theta: 3, 2.9, 2.82; w: 3 - 0.5 x 0.18. Round 2 goes on from both."""
    once = replace(PARAMETERS, epochs=1)
    assert trained(once, context(slope())) == pytest.approx((2.91, 2.82))
    theta = 2.82 - 0.1 * (1.0 + 2.0 * (2.82 - 2.91))
    theta -= 0.1 * (1.0 + 2.0 * (theta - 2.91))
    expected = 2.91 - 0.5 * (2.91 - theta), theta
    assert trained(PARAMETERS, context(slope())) == pytest.approx(expected)
    assert trained(replace(once, local_rounds=2), context(slope())) == pytest.approx(expected)


def test_theta_is_the_proximal_point_once_there_are_steps_enough() -> None:
    """f(theta) = (theta - 1)^2 / 2: the least of it and of the pull is at (1 + lambda w) / (1 + lambda)."""
    many = replace(PARAMETERS, epochs=1, personal_steps=200)
    w, theta = trained(many, context(bowl()))
    assert theta == pytest.approx((1.0 + 2.0 * 3.0) / 3.0, abs=1e-4)
    assert w == pytest.approx(3.0 - 0.5 * (3.0 - theta))


def test_the_server_moves_by_beta_and_each_device_counts_once() -> None:
    for beta, expected in ((1.0, 3.0), (0.5, 6.5), (2.0, -4.0)):
        changes = {"mixing": beta, "rounds": 1}
        state = server_half.start(at(10.0), ALGORITHM.configure("paper", changes))
        reports = [Report("a", Trained(at(1.0), 99, 0.1)), Report("b", Trained(at(5.0), 1, 0.1))]
        after = server_half.reduce(state, reports)
        assert after.models["global"]["w"] == expected
        assert after.phase == "evaluate"


def test_a_device_measures_its_personal_model_and_a_newcomer_the_common_one() -> None:
    """With w above 0 every sample is classified as class 0, which is right."""
    device = context(slope())
    task = measurement(server_half, server_half.start(at(3.0), PARAMETERS), "global")
    assert isinstance(task, Measure)
    for memory, accuracy in ((None, 1.0), ({"model/w": np.array(-1.0, np.float32)}, 0.0)):
        answer = device_half.perform(task, device.for_task(0, memory))
        assert isinstance(answer, Evaluated)
        assert answer.accuracy == accuracy


def test_what_is_remembered_of_another_network_is_left_alone() -> None:
    task = Measure(at(3.0))
    for wrong in ({"model/v": np.array(-1.0, np.float32)}, {"model/w": np.array(np.nan, np.float32)}, {}):
        answer = device_half.perform(task, context(slope()).for_task(0, wrong))
        assert isinstance(answer, Evaluated)
        assert answer.accuracy == 1.0


def test_settings_that_cannot_be_and_a_train_of_the_learners_own_are_refused() -> None:
    for change in ({"personal_steps": 0}, {"attraction": 0.0}, {"mixing": 0.0}, {"personal_rate": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            server_half.start(at(3.0), ALGORITHM.configure("default", change))
    own = replace(slope(), train=lambda model, batches, settings: 0.0)
    with pytest.raises(LearnerFault, match=r"has a train\(\)"):
        trained(PARAMETERS, context(own))
