"""The clinics' example does what its README says: real processes, an author's own network, csv files."""

import json
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.typed import commands

EXAMPLE = Path(__file__).parents[2] / "examples" / "clinics"


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the example, in which run.sh has run."""
    folder = tmp_path_factory.mktemp("example") / "clinics"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "results", "server"))
    with commands() as programs:
        path = os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]])
        done = subprocess.run(
            ["bash", "run.sh"], cwd=folder, env={**os.environ, "PATH": path}, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr
    return folder


def found(played: Path, name: str) -> dict[str, Any]:
    """What a verb wrote with --json."""
    data: dict[str, Any] = json.loads((played / "results" / f"{name}.json").read_text())["data"]
    return data


def accuracies(run: dict[str, Any]) -> dict[str, float]:
    return {device["device"]: device["accuracy"] for device in run["devices"]}


def instruments(played: Path) -> dict[str, str]:
    known: dict[str, str] = runpy.run_path(str(played / "make_data.py"))["INSTRUMENTS"]
    return known


def test_flux_finds_the_two_instruments_that_nobody_named(played: Path) -> None:
    clusters = found(played, "flux")["clusters"].values()
    known = instruments(played)
    clinics = [name for name in known if name != "newcomer"]
    expected = {frozenset(name for name in clinics if known[name] == instrument) for instrument in "AB"}
    assert {frozenset(members) for members in clusters} == expected


def test_every_clinic_gains_over_one_model_for_all(played: Path) -> None:
    one, grouped = accuracies(found(played, "fedavg")), accuracies(found(played, "flux"))
    assert len(one) == len(grouped) == 6
    for clinic in one:
        assert grouped[clinic] >= 0.9
        assert grouped[clinic] >= one[clinic] + 0.05


def test_the_newcomer_gets_the_model_of_its_instrument(played: Path) -> None:
    header = (played / "data" / "newcomer" / "measurements.csv").read_text().splitlines()[0]
    assert "malignant" not in header
    placed, run = found(played, "newcomer"), found(played, "flux")
    known = instruments(played)
    assert not placed["abstained"]
    assert {known[clinic] for clinic in run["clusters"][placed["cluster"]]} == {known["newcomer"]}
    assert found(played, "check")["accuracy"] > max(accuracies(found(played, "fedavg")).values())


def test_a_clinic_that_trained_gets_its_own_clusters_model_and_is_asked_for_nothing(played: Path) -> None:
    placed, run = found(played, "clinic"), found(played, "flux")
    assert "clinic-2" in run["clusters"][placed["cluster"]]
    assert placed["sent"] == 0
    assert placed["fine_tuning"]["before"] > 0.0
    assert found(played, "own")["accuracy"] >= 0.9


def test_its_predictions_are_written_down_and_are_those_that_were_checked(played: Path) -> None:
    classes = np.loadtxt(played / "results" / "classes.csv", delimiter=",", skiprows=1)[:, 1]
    truth = np.loadtxt(played / "data" / "newcomer-truth.csv", delimiter=",", skiprows=1)[:, -1]
    assert (classes == truth).mean() == found(played, "check")["accuracy"]


def test_nothing_is_left_running(played: Path) -> None:
    log = (played / "results" / "server.log").read_text()
    assert log.rstrip().endswith("stopped")
    assert not (played / "results" / "server" / "address").exists()
