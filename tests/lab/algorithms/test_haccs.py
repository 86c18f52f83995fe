"""HACCS (Wolfrath et al. 2022): histograms, Hellinger distances, and groups by density."""

import numpy as np
import pytest

from shoal.core.algorithm import Report
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.errors import BadPayload, ConfigError, DataFault, DeviceFault
from shoal_lab.algorithms.haccs import ALGORITHM, Parameters
from shoal_lab.algorithms.haccs import server as server_half
from shoal_lab.algorithms.haccs.device import perform
from shoal_lab.algorithms.haccs.messages import Count, Counted
from tests.fleet import learner
from tests.reports import model

LABELS = Parameters(inputs="raw", classes=4)


def counted(device: str, *counts: float) -> Report:
    return Report(device, Counted(tuple(map(float, counts)), 9))


def context(x: np.ndarray, y: np.ndarray | None) -> DeviceContext:
    data = Dataset(x.astype(np.float32), y)
    return DeviceContext(learner(), Views(data, data), "cpu", 0, np.random.default_rng(0))


def test_section_4_labels_are_counted_or_inputs_by_label() -> None:
    x, y = np.array([[0.0, 0.4], [0.5, 1.0], [-3.0, 0.9]]), np.array([0, 2, 2])
    answer = perform(Count(3), context(x, y))
    assert isinstance(answer, Counted)
    assert answer.counts == (1, 0, 2)
    answer = perform(Count(3, bins=2), context(x, y))
    assert isinstance(answer, Counted)
    assert answer.counts == (2, 0, 0, 0, 1, 3), (
        "0.5 and 1 are in the upper half; what lies outside, at the end"
    )


def test_data_that_cannot_be_counted_are_told_why() -> None:
    x = np.zeros((3, 2))
    with pytest.raises(DeviceFault, match="needs labels"):
        perform(Count(3), context(x, None))
    with pytest.raises(DataFault, match="the label 5"):
        perform(Count(3), context(x, np.array([0, 1, 5])))
    with pytest.raises(BadPayload, match="histogram"):
        perform(Count(1 << 20, bins=16), context(x, np.array([0, 1, 2])))


def test_hellinger_distances_by_hand() -> None:
    histograms = {
        "a": np.array([[0.5, 0.5, 0.0]]),
        "b": np.array([[0.5, 0.0, 0.5]]),
        "c": np.array([[0, 0, 1.0]]),
    }
    apart = server_half.hellinger(histograms)
    assert apart[0, 1] == pytest.approx(np.sqrt(0.5))
    assert apart[0, 2] == pytest.approx(1.0)
    by_class = {"a": np.array([[1.0, 0], [0, 0], [0, 0]]), "b": np.array([[1.0, 0], [0.5, 0.5], [0, 0]])}
    assert server_half.hellinger(by_class)[0, 1] == pytest.approx(0.5), "a class that one of two lacks is far"


def test_devices_with_like_labels_train_one_model_and_who_is_like_nobody_has_its_own() -> None:
    rng = np.random.default_rng(0)
    reports = [counted(f"a{i}", 50 + rng.integers(5), 50, 1, 1, 0) for i in range(4)]
    reports += [counted(f"b{i}", 1, 1, 50, 50 + rng.integers(5), 0) for i in range(4)]
    reports += [counted("c", 0, 0, 0, 0, 9)]
    state = server_half.reduce(server_half.start(model(0, 0), Parameters(inputs="raw", classes=5)), reports)
    found = state.assignments
    assert len({found[f"a{i}"] for i in range(4)}) == 1
    assert len({found[f"b{i}"] for i in range(4)}) == 1
    assert len({found["a0"], found["b0"], found["c"]}) == 3


def test_one_device_two_devices_all_the_same_and_one_without_samples() -> None:
    for reports in (
        [counted("a", 1, 2, 3, 4)],
        [counted("a", 1, 0, 0, 0), counted("b", 0, 0, 0, 1)],
        [counted(device, 1, 2, 3, 4) for device in "abcd"],
    ):
        state = server_half.reduce(server_half.start(model(0, 0), LABELS), reports)
        assert len(state.models) == 1
    empty = [counted("a", 1, 2, 3, 4), counted("b", 0, 0, 0, 0), counted("c", 1, 2, 3, 4)]
    found = server_half.reduce(server_half.start(model(0, 0), LABELS), empty).assignments
    assert found["a"] == found["c"]


def test_an_answer_that_is_no_histogram_is_refused() -> None:
    for counts in ((1.0, 2.0), (1.0, 2.0, -3.0)):
        with pytest.raises(BadPayload, match="expected 3 counts of at least 0"):
            Count(3).admit(Counted(counts, 9))
    for counts in ((1.0, 0.0, 2.0), (4.5, 0.0, 4.5), (0.0, 0.0, 0.0), (1e9, 0.0, 1e9)):
        with pytest.raises(BadPayload, match="but there are 9 samples"):
            Count(3).admit(Counted(counts, 9))
    Count(3).admit(Counted((1.0, 0.0, 8.0), 9))
    with pytest.raises(BadPayload, match="the histograms count 17 values, but there are 9 samples"):
        Count(1, bins=2).admit(Counted((16.0, 1.0), 9))
    Count(1, bins=2).admit(Counted((16.0, 2.0), 9))


def test_parameters_that_cannot_work_are_refused() -> None:
    for change in ({"classes": 0}, {"bins": 0}, {"summary": "colors"}):
        with pytest.raises(ConfigError, match=next(iter(change))):
            server_half.start(model(0, 0), ALGORITHM.configure("default", change))
