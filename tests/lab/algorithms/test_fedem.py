"""FedEM (Marfoq et al. 2021): Algorithm 1, on numbers checked by hand."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.algorithm import Report, measurement
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.errors import BadPayload, ConfigError, DeviceFault, LearnerFault
from shoal.core.exchange.messages import Evaluated, Score, TrainingSettings
from shoal.core.exchange.tensors import digest
from shoal.core.types import Tensors
from shoal_lab.algorithms.fedem import ALGORITHM, Parameters
from shoal_lab.algorithms.fedem import device as device_half
from shoal_lab.algorithms.fedem import server as server_half
from shoal_lab.algorithms.fedem.messages import Measure, Mix, Mixed
from tests.slope import at, coin, slope

SETTINGS = TrainingSettings(epochs=1, batch_size=3, learning_rate=0.3, momentum=0.0)
MODELS = (at(1.0), at(-1.0))
P = 1.0 / (1.0 + np.exp(-1.0))
"""The probability of class 0 with the first model, and of class 1 with the second."""


def device(*labels: int) -> DeviceContext:
    data = Dataset(np.zeros((len(labels), 1), np.float32), np.array(labels))
    return DeviceContext(
        coin(), Views(data, data.subset(slice(0, 0)), data), "cpu", 0, np.random.default_rng(0)
    )


def mixed(context: DeviceContext, models: tuple[Tensors, ...] = MODELS, first: str = "equal") -> Mixed:
    answer = device_half.perform(Mix(models, SETTINGS, first), context)
    assert isinstance(answer, Mixed)
    return answer


def test_e_step_the_weights_are_the_mean_of_what_each_model_explains() -> None:
    context = device(0, 0, 1)
    assert mixed(context).heaviest == 0
    expected = (2 * P + (1 - P)) / 3
    assert context.remembered is not None
    assert context.remembered["weights"] == pytest.approx([expected, 1 - expected])
    again = context.for_task(0, context.remembered)
    mixed(again)
    of_0, of_1 = ((expected * p / (expected * p + (1 - expected) * (1 - p))) for p in (P, 1 - P))
    assert again.remembered is not None
    assert again.remembered["weights"][0] == pytest.approx((2 * of_0 + of_1) / 3)


def test_m_step_each_model_goes_down_the_loss_of_what_it_explains() -> None:
    """The loss of class 0 has the slope -(1 - p) by w, that of class 1 the slope p, where p is of class 0."""
    answer = mixed(device(0, 0, 1))
    for model, p, explains in zip(answer.models, (P, 1 - P), ((P, 1 - P), (1 - P, P)), strict=True):
        gradient = (2 * explains[0] * -(1 - p) + explains[1] * p) / 3
        start = 1.0 if p == P else -1.0
        assert float(model["w"]) == pytest.approx(start - 0.3 * gradient, rel=1e-5)
    losses = 2 * (P * -np.log(P) + (1 - P) * -np.log(1 - P)) / 2
    assert answer.loss == pytest.approx(losses)


def test_a_device_predicts_with_the_mixture_of_probabilities() -> None:
    context = device(0, 0, 1)
    for weight in (0.9, 0.2):
        question = Measure(MODELS, (1.0, 0.0))
        answer = device_half.perform(
            question, context.for_task(0, {"weights": np.array([weight, 1 - weight])})
        )
        assert isinstance(answer, Evaluated)
        p = weight * P + (1 - weight) * (1 - P)
        assert answer.accuracy == pytest.approx(2 / 3 if p > 0.5 else 1 / 3)
        assert answer.loss == pytest.approx(-(2 * np.log(p) + np.log(1 - p)) / 3)


def test_what_is_remembered_of_other_models_is_left_alone() -> None:
    wrong: list[Tensors] = [{}, {"weights": np.array([1.0])}, {"weights": np.array([2.0, -1.0])}]
    wrong += [{"weights": np.array([0.3, 0.3])}, {"weights": np.array([np.nan, 1.0])}]
    for memory in wrong:
        answer = device_half.perform(Measure(MODELS, (0.0, 1.0)), device(0, 0, 1).for_task(0, memory))
        assert isinstance(answer, Evaluated)
        assert answer.accuracy == pytest.approx(1 / 3), "the weights that came"


def test_algorithm_1_the_server_takes_the_mean_of_each_model_by_samples() -> None:
    parameters = ALGORITHM.configure("paper", {"rounds": 1, "clusters": 2})
    state = server_half.start(at(0.0), parameters, at(1.0))
    reports = [
        Report("a", Mixed((at(1.0), at(2.0)), 0, 30, 0.1)),
        Report("b", Mixed((at(5.0), at(6.0)), 1, 10, 0.1)),
    ]
    after = server_half.reduce(state, reports)
    assert {key: float(model["w"]) for key, model in after.models.items()} == {"c0": 2.0, "c1": 3.0}
    assert (after.assignments, after.phase) == ({"a": "c0", "b": "c1"}, "evaluate")
    question = measurement(server_half, after, "c1")
    assert isinstance(question, Measure)
    assert question.weights == (0.0, 1.0), "where a device remembers none"


def test_models_that_begin_alike_part_where_each_device_draws_its_first_weights() -> None:
    alike = (at(1.0), at(1.0))
    equal, random = mixed(device(0, 0, 1), alike), mixed(device(0, 0, 1), alike, "random")
    assert float(equal.models[0]["w"]) == float(equal.models[1]["w"])
    assert float(random.models[0]["w"]) != float(random.models[1]["w"])
    server_half.start(at(1.0), Parameters())
    drawn = {"w": np.arange(8, dtype=np.float32)}
    for others in ((), (drawn,) * 2):  # the weights of a module are the same for each model
        begin = server_half.start(drawn, Parameters(first="equal", clusters=3), *others).models
        assert len({digest(each) for each in begin.values()}) == 3


def test_without_labels_nothing_can_be_told_and_the_device_says_what_would_work() -> None:
    unlabelled = DeviceContext(
        coin(), Views.of(Dataset(np.zeros((3, 1), np.float32))), "cpu", 0, np.random.default_rng(0)
    )
    question = server_half.place(server_half.start(at(1.0), Parameters()), None)
    assert isinstance(question, Score)
    for task in (Mix(MODELS, SETTINGS, "equal"), question):
        with pytest.raises(DeviceFault, match="flux"):
            device_half.perform(task, unlabelled)
    own = DeviceContext(slope(), device(0).views, "cpu", 0, np.random.default_rng(0))
    with pytest.raises(LearnerFault, match=r"its own loss\(\)"):
        device_half.perform(Mix(MODELS, SETTINGS, "equal"), own)


@pytest.mark.parametrize("labels", [(0,), (1, 1)])
def test_more_models_than_samples_or_classes_are_no_special_case(labels: tuple[int, ...]) -> None:
    context = device(*labels)
    answer = mixed(context, (at(1.0),) * 5, "random")
    assert context.remembered is not None
    assert context.remembered["weights"].sum() == pytest.approx(1.0)
    assert all(np.isfinite(model["w"]) for model in answer.models)


def test_answers_that_do_not_fit_their_task_are_refused() -> None:
    task = Mix(MODELS, SETTINGS, "equal")
    good = Mixed(MODELS, 1, 3, 0.1)
    task.admit(good)
    for wrong in (replace(good, heaviest=2), replace(good, heaviest=-1), replace(good, models=MODELS[:1])):
        with pytest.raises(BadPayload, match="models came for 2"):
            task.admit(wrong)
    for change in ({"clusters": 0}, {"first": "some"}, {"rounds": 0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            server_half.start(at(3.0), ALGORITHM.configure("default", change))
