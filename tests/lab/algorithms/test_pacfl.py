"""PACFL (Vahidian et al. 2023): subspaces, principal angles, and groups."""

import numpy as np
import pytest

from shoal.core.algorithm import Report
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import BadPayload, ConfigError
from shoal.core.exchange.messages import Score
from shoal_lab.algorithms.pacfl import ALGORITHM, Parameters
from shoal_lab.algorithms.pacfl import server as server_half
from shoal_lab.algorithms.pacfl.device import perform
from shoal_lab.algorithms.pacfl.messages import Span, Spanned
from tests.fleet import contexts, data, first_model, learner
from tests.reports import model


def spanned(device: str, *rows: tuple[float, ...]) -> Report:
    flat = tuple(value for row in rows for value in row)
    return Report(device, Spanned(flat, len(rows[0]), 9))


def context(x: np.ndarray) -> DeviceContext:
    return DeviceContext(
        learner(), Views.of(Dataset(x.astype(np.float32))), "cpu", 0, np.random.default_rng(0)
    )


def test_algorithm_1_the_first_left_singular_vectors_of_the_data_matrix() -> None:
    x = np.random.default_rng(0).normal(size=(30, 64)) * np.linspace(3, 0.1, 64)
    answer = perform(Span(3), context(x))
    assert isinstance(answer, Spanned)
    found = np.array(answer.vectors).reshape(3, answer.width)
    expected = np.linalg.svd(x.astype(np.float32).astype(float).T)[0][:, :3].T
    np.testing.assert_allclose(np.abs(np.sum(found * expected, axis=1)), 1.0, atol=1e-6)
    one = perform(Span(3), context(x[:1]))
    assert isinstance(one, Spanned)
    assert len(one.vectors) == 64, "one sample spans one direction"
    with pytest.raises(BadPayload, match="0 singular vectors"):
        perform(Span(0), context(x))


def test_equations_2_and_3_smallest_angle_and_sum_of_angles() -> None:
    third = np.radians(30)
    one = np.array([[1.0, 0, 0, 0], [0, 1, 0, 0]])
    other = np.array([[np.cos(third), 0, np.sin(third), 0], [0, 0, 0, 1.0]])
    bases = {"a": one, "b": other}
    assert server_half.angles(bases, "smallest")[0, 1] == pytest.approx(30)
    assert server_half.angles(bases, "sum")[0, 1] == pytest.approx(120)
    turned = {"a": one, "b": one[::-1] * -1}
    assert server_half.angles(turned, "sum")[0, 1] == pytest.approx(0, abs=1e-5), (
        "the subspace counts, not its basis"
    )


def test_the_authors_code_takes_vectors_of_each_class_and_compares_them_one_by_one() -> None:
    x, y = np.random.default_rng(0).normal(size=(30, 8)).astype(np.float32), np.arange(30) % 3
    views = Views.of(Dataset(x, y), share=0.0)
    answer = perform(Span(2, True), DeviceContext(learner(), views, "cpu", 0, np.random.default_rng(0)))
    assert isinstance(answer, Spanned)
    found = np.array(answer.vectors).reshape(6, 8)
    for label in range(3):
        expected = np.linalg.svd(x[y == label].astype(float))[2][:2]
        np.testing.assert_allclose(np.abs((found[2 * label : 2 * label + 2] * expected).sum(axis=1)), 1.0)
    half = np.cos(np.radians(45))
    # The planes meet, so their smallest principal angle is 0; single vectors are 45 degrees apart.
    one, other = np.eye(3)[:2], np.array([[half, half, 0.0], [0.0, 0.0, 1.0]])
    assert server_half.angles({"a": one, "b": other}, "smallest")[0, 1] == pytest.approx(0.0, abs=1e-5)
    assert server_half.angles({"a": one, "b": other}, "pairs")[0, 1] == pytest.approx(45.0)


def test_by_class_a_device_may_send_vectors_of_any_length_and_many_of_them() -> None:
    reports = [
        spanned("a", (9, 0, 0), (0, 1e-5, 0), (0, 0, 0)),
        spanned("b", (-1, 0, 0)),
        spanned("c", (0, 0, 2)),
    ]
    state = server_half.start(model(0, 0), Parameters(inputs="raw", by_class=True, clusters=0, angle=30.0))
    plan = server_half.plan(state, ["a"])
    assert plan is not None
    task = plan.tasks["a"]
    assert isinstance(task, Span)
    for report in reports:
        task.admit(report.message)
    assert server_half.reduce(state, reports).assignments == {"a": "c0", "b": "c0", "c": "c1"}
    with pytest.raises(BadPayload, match="vectors of"):
        Span(2).admit(reports[0].message)


def test_algorithm_2_devices_of_like_subspaces_train_one_model() -> None:
    reports = [
        spanned("a", (1, 0, 0), (0, 1, 0)),
        spanned("b", (1, 0.1, 0), (0, 1, 0)),
        spanned("c", (0, 0, 1)),
    ]
    state = server_half.start(model(0, 0), Parameters(inputs="raw", clusters=0, angle=30.0))
    assert server_half.reduce(state, reports).assignments == {"a": "c0", "b": "c0", "c": "c1"}
    state = server_half.reduce(server_half.start(model(0, 0), Parameters(inputs="raw", clusters=2)), reports)
    assert state.assignments == {"a": "c0", "b": "c0", "c": "c1"}
    plan = server_half.plan(state, ["late"])
    assert plan is not None
    assert isinstance(plan.tasks["late"], Score)


@pytest.mark.parametrize(("numbers", "width"), [(0, 3), (2, 0), (7, 3), (9, 3)])
def test_an_answer_of_another_shape_is_refused(numbers: int, width: int) -> None:
    with pytest.raises(BadPayload, match="vectors of"):
        Span(2).admit(Spanned((1.0,) * numbers, width, 9))
    Span(2).admit(Spanned((1.0,) * 6, 3, 9))


def test_who_cannot_be_compared_is_at_right_angles_to_all_and_stops_nobody() -> None:
    reports = [
        spanned("a", (1, 0, 0)),
        spanned("b", (1, 0, 0)),
        spanned("wide", (1, 0, 0, 0)),
        spanned("zero", (0, 0, 0)),
    ]
    state = server_half.reduce(server_half.start(model(0, 0), Parameters(inputs="raw", clusters=0)), reports)
    assert state.assignments["a"] == state.assignments["b"]
    assert set(state.assignments) == {report.device for report in reports}
    assert server_half.reduce(
        server_half.start(model(0, 0), Parameters(inputs="raw")), reports[:1]
    ).assignments == {"a": "c0"}


def test_turned_images_span_other_subspaces() -> None:
    changes = {"rounds": 1, "epochs": 1, "clusters": 2, "evaluate": False}
    state = server_half.start(first_model(), ALGORITHM.configure("default", changes))
    fleet = contexts(ALGORITHM, [Views.of(data(number)) for number in range(6)])
    outcome = simulate(server_half, state, fleet, RoundPolicy(minimum=6), 3)
    assert [outcome.state.assignments[f"d{number}"] for number in range(6)] == ["c0", "c1"] * 3


def test_parameters_that_cannot_work_are_refused() -> None:
    for change in (
        {"vectors": 0},
        {"by_class": True, "measure": "sum"},
        {"measure": "largest"},
        {"clusters": 0, "angle": 0.0},
    ):
        with pytest.raises(ConfigError, match=list(change)[-1]):
            server_half.start(model(0, 0), ALGORITHM.configure("default", change))
