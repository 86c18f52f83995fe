"""FedSoft (Ruan and Joe-Wong 2022): Algorithm 1, on numbers checked by hand."""

from dataclasses import replace

import numpy as np
import pytest

from shoal.core.algorithm import Report, measurement
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.errors import BadPayload, ConfigError, DeviceFault
from shoal.core.exchange.messages import Evaluated, TrainingSettings
from shoal.core.types import Tensors
from shoal_lab.algorithms.fedsoft import ALGORITHM, Parameters
from shoal_lab.algorithms.fedsoft import device as device_half
from shoal_lab.algorithms.fedsoft import server as server_half
from shoal_lab.algorithms.fedsoft.messages import Measure, SoftTrained, Train
from tests.slope import at, coin

SETTINGS = TrainingSettings(epochs=1, batch_size=4, learning_rate=0.5, momentum=0.0, proximal=0.2)
CENTRES = (at(1.0), at(-1.0), at(3.0))
P = 1.0 / (1.0 + np.exp(-1.0))


def device(*labels: int, seed: int = 0) -> DeviceContext:
    data = Dataset(np.zeros((len(labels), 1), np.float32), np.array(labels))
    return DeviceContext(
        coin(), Views(data, data.subset(slice(0, 0)), data), "cpu", seed, np.random.default_rng(0)
    )


def trained(context: DeviceContext, count: bool = True, models: tuple[Tensors, ...] = CENTRES) -> SoftTrained:
    answer = device_half.perform(Train(models, SETTINGS, count, 0.01), context)
    assert isinstance(answer, SoftTrained)
    return answer


def test_importance_is_the_share_of_samples_for_which_a_centre_is_the_best_and_never_0() -> None:
    """Class 0 is likeliest with the third center, class 1 with the second, and the first is best for none."""
    assert trained(device(0, 0, 0, 1)).shares == pytest.approx((0.01, 0.25, 0.75))


def test_the_update_goes_down_the_loss_and_towards_each_centre_by_its_importance() -> None:
    """With a model of its own, w = -1, and shares that stand: sum_s u_s (w - c_s) is written out."""
    memory = {"model/w": np.array(-1.0, np.float32), "numbers/shares": np.array([0.5, 0.2, 0.4])}
    context = device(0, 0, 0, 1).for_task(0, memory)
    answer = trained(context, count=False)
    of_data = (3 * -P + (1 - P)) / 4
    pull = 0.2 * (0.5 * (-1.0 - 1.0) + 0.2 * (-1.0 + 1.0) + 0.4 * (-1.0 - 3.0))
    expected = -1.0 - 0.5 * (of_data + pull)
    assert float(answer.model["w"]) == pytest.approx(expected, rel=1e-5)
    assert answer.shares == (0.5, 0.2, 0.4)
    assert context.remembered is not None
    assert float(context.remembered["model/w"]) == pytest.approx(expected, rel=1e-5)


def test_the_first_update_starts_from_the_mixture_of_the_centres_and_counts_whatever_the_round() -> None:
    """All samples are the third center's: shares 0.01, 0.01, 1. The pull is toward its start."""
    centre = (0.01 * 1.0 - 0.01 * 1.0 + 3.0) / 1.02
    slope = -1.0 / (1.0 + np.exp(centre))
    answer = trained(device(0, 0), count=False)
    assert float(answer.model["w"]) == pytest.approx(centre - 0.5 * slope, rel=1e-5)


def test_centres_are_means_by_importance_times_samples() -> None:
    parameters = ALGORITHM.configure("original", {"rounds": 2})
    state = server_half.start(at(0.0), parameters, at(1.0))
    reports = [
        Report("a", SoftTrained(at(1.0), 30, 0.1, shares=(0.5, 0.5))),
        Report("b", SoftTrained(at(5.0), 10, 0.1, shares=(0.5, 1.0))),
    ]
    after = server_half.reduce(state, reports)
    assert float(after.models["c0"]["w"]) == pytest.approx((15 * 1.0 + 5 * 5.0) / 20)
    assert float(after.models["c1"]["w"]) == pytest.approx((15 * 1.0 + 10 * 5.0) / 25)
    assert after.assignments == {"a": "c0", "b": "c1"}


def test_importance_is_counted_every_tau_rounds() -> None:
    state = server_half.start(at(0.0), Parameters(inputs="raw", interval=2, rounds=3))
    counts = []
    for _ in range(3):
        plan = server_half.plan(state, ["a"])
        assert plan is not None
        task = plan.tasks["a"]
        assert isinstance(task, Train)
        counts.append(task.count)
        state = server_half.reduce(state, [Report("a", SoftTrained(at(1.0), 3, 0.1, shares=(1.0, 1.0, 1.0)))])
    assert counts == [True, False, True]
    assert state.phase == "evaluate"


def test_a_device_measures_its_own_model_and_a_newcomer_the_centre_it_was_given() -> None:
    state = server_half.start(at(1.0), Parameters(inputs="raw", clusters=2), at(-1.0))
    for memory, accuracy in ((None, 0.25), ({"model/w": np.array(2.0, np.float32)}, 0.75)):
        question = measurement(server_half, state, "c1")
        assert isinstance(question, Measure)
        answer = device_half.perform(question, device(0, 0, 0, 1).for_task(0, memory))
        assert isinstance(answer, Evaluated)
        assert answer.accuracy == accuracy


def test_centres_that_begin_alike_part_as_each_device_draws_whom_to_prefer() -> None:
    alike = (at(1.0),) * 3
    preferred = [np.argmax(trained(device(0, 1, seed=seed), models=alike).shares) for seed in range(12)]
    assert set(preferred) == {0, 1, 2}
    assert all(
        sorted(trained(device(0, 1, seed=s), models=alike).shares) == [0.01, 0.01, 1.0] for s in range(3)
    )


def test_one_sample_and_more_centres_than_devices_are_no_special_case() -> None:
    answer = trained(device(1), models=(*CENTRES, *CENTRES))
    assert sum(share == 1.0 for share in answer.shares) == 1
    assert np.isfinite(answer.model["w"])


def test_what_does_not_fit_is_refused() -> None:
    task = Train(CENTRES, SETTINGS, True, 0.01)
    good = SoftTrained(at(1.0), 3, 0.1, shares=(0.1, 0.2, 1.0))
    task.admit(good)
    for shares in ((0.1, 0.2), (0.0, 0.2, 0.1), (0.1, 0.2, float("nan")), (0.1, 0.2, 1.5)):
        with pytest.raises(BadPayload, match="shares"):
            task.admit(replace(good, shares=shares))
    for change in ({"smoothing": 0.0}, {"interval": 0}, {"clusters": 0}, {"proximal": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            server_half.start(at(3.0), ALGORITHM.configure("default", change))
    unlabelled = DeviceContext(
        coin(), Views.of(Dataset(np.zeros((3, 1), np.float32))), "cpu", 0, np.random.default_rng(0)
    )
    with pytest.raises(DeviceFault, match="label some samples"):
        device_half.perform(task, unlabelled)
