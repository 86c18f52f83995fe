"""FedAvg (McMahan et al. 2017): Algorithm 1, on numbers that can be checked by hand."""

import numpy as np
import pytest

from shoal.core.algorithm import Plan, Report
from shoal.core.algorithms.fedavg import ALGORITHM, Parameters
from shoal.core.algorithms.fedavg import server as server_half
from shoal.core.errors import ConfigError
from shoal.core.exchange.messages import Evaluate, Evaluated, Train, Trained
from shoal.core.types import Tensors


def model(value: float) -> Tensors:
    return {"w": np.full(2, value, np.float32)}


def trained(device: str, value: float, examples: int) -> Report:
    return Report(device, Trained(model(value), examples, 0.1))


def planned(state: server_half.State, *devices: str) -> Plan:
    plan = server_half.plan(state, sorted(devices))
    assert plan is not None
    return plan


def test_algorithm_1_the_next_model_is_the_mean_weighted_by_samples() -> None:
    state = server_half.start(model(0.0), Parameters(inputs="raw", rounds=1))
    after = server_half.reduce(state, [trained("a", 1.0, 30), trained("b", 5.0, 10)])
    assert after.models["global"]["w"].tolist() == [2.0, 2.0]
    assert after.progress == 1
    assert after.assignments == {"a": "global", "b": "global"}


def test_every_device_that_is_there_trains_the_same_model() -> None:
    plan = planned(server_half.start(model(3.0), Parameters(inputs="raw")), "a", "b")
    assert set(plan.tasks) == {"a", "b"}
    task = plan.tasks["a"]
    assert isinstance(task, Train)
    assert task is plan.tasks["b"], "one message, so that it is stored and sent once"
    assert task.model["w"].tolist() == [3.0, 3.0]


def test_the_run_ends_with_a_measurement_on_the_devices_test_parts() -> None:
    state = server_half.reduce(
        server_half.start(model(0.0), Parameters(inputs="raw", rounds=1)), [trained("a", 1.0, 1)]
    )
    task = planned(state, "a").tasks["a"]
    assert isinstance(task, Evaluate)
    assert task.part == "test"
    done = server_half.reduce(state, [Report("a", Evaluated(0.75, 0.5, 8))])
    assert done.metrics["a"].accuracy == 0.75
    assert server_half.plan(done, ["a"]) is None


def test_the_paper_preset_keeps_the_round_of_lowest_held_out_loss() -> None:
    parameters = ALGORITHM.configure("paper", {"rounds": 3, "evaluate": False})
    state = server_half.start(model(0.0), parameters)
    for value, loss in ((1.0, 0.9), (2.0, 0.4), (3.0, 0.6)):
        state = server_half.reduce(state, [trained("a", value, 1), trained("b", value, 1)])
        task = planned(state, "a", "b").tasks["a"]
        assert isinstance(task, Evaluate)
        assert task.part == "held_out"
        # By samples: a's loss counts three times b's.
        measured = [Report("a", Evaluated(0.5, loss, 30)), Report("b", Evaluated(0.5, loss + 0.4, 10))]
        state = server_half.reduce(state, measured)
    assert state.models["global"]["w"].tolist() == [2.0, 2.0]
    assert state.best_loss == pytest.approx(0.5)
    assert server_half.plan(state, ["a"]) is None


def test_parameters_that_cannot_work_are_refused_at_the_start() -> None:
    for change in ({"rounds": 0}, {"select": "best"}, {"learning_rate": 0.0}, {"batch_size": 0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            server_half.start(model(0.0), ALGORITHM.configure("default", change))


def test_a_newcomer_gets_the_one_model_there_is() -> None:
    answer = server_half.place(server_half.start(model(0.0), Parameters()), None)
    assert answer.cluster == "global"  # type: ignore[union-attr]
