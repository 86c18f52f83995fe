"""FedProx (Li et al. 2020): the objective of a device (eq. 2) and Algorithm 2, on numbers checked by hand."""

import pytest

from shoal.core.algorithm import Report
from shoal.core.algorithms.fedprox import ALGORITHM, Parameters
from shoal.core.algorithms.fedprox import server as server_half
from shoal.core.device_kit import standard
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import Trained
from tests.slope import at, context, slope


def test_equation_2_a_device_is_pulled_back_to_the_model_it_was_sent() -> None:
    """F(w) = w, so the gradient is 1 + mu (w - w^t). From 3: 2.9, then 2.9 - 0.1 (1 - 0.05)."""
    changes = {"inputs": "raw", "epochs": 2, "learning_rate": 0.1, "momentum": 0.0, "proximal": 0.5}
    plan = server_half.plan(server_half.start(at(3.0), ALGORITHM.configure("default", changes)), ["d0"])
    assert plan is not None
    answer = standard.perform(plan.tasks["d0"], context(slope()))
    assert isinstance(answer, Trained)
    assert answer.model["w"] == pytest.approx(3.0 - 0.1 - 0.1 * 0.95)


def test_algorithm_2_the_next_model_is_the_mean_by_samples_as_in_section_5_1() -> None:
    state = server_half.start(at(3.0), ALGORITHM.configure("paper", {"rounds": 1, "evaluate": False}))
    reports = [Report("a", Trained(at(1.0), 30, 0.1)), Report("b", Trained(at(5.0), 10, 0.1))]
    after = server_half.reduce(state, reports)
    assert after.models["global"]["w"] == 2.0
    assert (after.phase, after.assignments) == ("done", {"a": "global", "b": "global"})
    assert server_half.plan(after, ["a"]) is None


def test_a_mu_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="proximal"):
        server_half.start(at(3.0), Parameters(proximal=-1.0))
