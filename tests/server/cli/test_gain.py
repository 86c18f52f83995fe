"""What `run show` of several runs says of grouping: by hand, for devices whose accuracies are known."""

import math

import pytest

from fedserver.cli.runs.gain import gains
from fedserver.coordinator.status_types import DeviceFigures, RunStatus, RunSummary


def run(name: str, clusters: int, accuracies: list[float | None]) -> RunStatus:
    devices = tuple(DeviceFigures(f"d{number}", "c0", each) for number, each in enumerate(accuracies))
    summary = RunSummary(name, name, name, "default", "finished", 9, cluster_count=clusters)
    return RunStatus(summary, {}, devices)


ONE = run("fedavg", 1, [0.5, 0.6, 0.7, None])


def test_a_gain_that_is_more_than_chance_is_said_in_points() -> None:
    (found,) = gains([run("flux", 3, [0.7, 0.82, 0.88, 0.9]), ONE])
    assert (found.devices, found.mean) == (3, pytest.approx(0.2))
    assert found.error == pytest.approx(0.02 / math.sqrt(3))  # differences of 0.20, 0.22 and 0.18
    beside = "(run flux beside run fedavg, 3 devices)"
    assert found.text() == f"grouping gained 20.0 points over one model {beside}"


def test_where_grouping_does_not_pay_that_is_said() -> None:
    (chance,) = gains([ONE, run("flux", 2, [0.55, 0.57, 0.71])])
    assert chance.text().startswith("one model may be as good here: grouping made a difference of 1.0 points")
    (worse,) = gains([ONE, run("flux", 2, [0.4, 0.51, 0.6])])
    assert worse.text().startswith("one model is better here: grouping lost 9.7 points")
    (few,) = gains([ONE, run("flux", 2, [0.9, 0.9])])
    assert few.error is None
    assert few.text().startswith("one model may be as good here")


def test_nothing_is_said_of_runs_that_cannot_be_compared() -> None:
    assert gains([run("flux", 2, [0.5]), run("ifca", 3, [0.6])]) == []
    assert gains([ONE, run("fedprox", 1, [0.6])]) == []
    assert gains([ONE, run("flux", 2, [None, None, None, 0.9])]) == []
