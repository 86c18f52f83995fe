"""The example of an encoder of one's own, in one process: what its README says."""

import runpy
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shoal.core.algorithm import discover
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, initial_weights
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.messages import Evaluate, Evaluated, Represented
from shoal.core.exchange.parts import ClusterAssignment
from shoal.shell.learners import from_file
from tests.fleet import contexts

EXAMPLE = Path(__file__).parents[2] / "examples" / "encoder"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The readers' folders."""
    folder = tmp_path_factory.mktemp("example") / "encoder"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data", "results"))
    sys.path.insert(0, str(folder))
    try:
        runpy.run_path(str(folder / "make_data.py"), run_name="__main__")
    finally:
        sys.path.remove(str(folder))
    return folder / "data"


@pytest.fixture(scope="module")
def learner(data: Path) -> Learner:
    return from_file(data / "reader-1" / "learner.py")


def table(path: Path) -> Dataset:
    found = np.loadtxt(path, delimiter=",", skiprows=1)
    return Dataset(found[:, :-1].astype(np.float32), found[:, -1].astype(np.int64))


def readers(data: Path) -> list[Views]:
    folders = [data / f"reader-{number}" for number in range(1, 9)]
    return [Views.of(table(folder / "images.csv"), table(folder / "test.csv")) for folder in folders]


def finished(algorithm: str, data: Path, learner: Learner) -> tuple[Any, float]:
    """The last state, and the mean accuracy of the readers on their test parts."""
    card = discover()[algorithm]
    parameters = card.configure(
        "default", {"inputs": "raw", "rounds": 3, "learning_rate": 0.05, "batch_size": 16}
    )
    state = card.server().start(initial_weights(learner, 42), parameters)
    fleet = contexts(card, readers(data), learner)
    outcome = simulate(card.server(), state, fleet, RoundPolicy(minimum=8), 3)
    assert not outcome.failed
    accuracies = [one.accuracy for one in outcome.state.metrics.values()]
    assert len(accuracies) == 8
    return outcome.state, float(np.mean(accuracies))


def test_the_encoder_has_seen_no_image_that_a_device_has(data: Path) -> None:
    sys.path.insert(0, str(EXAMPLE))
    try:
        split = runpy.run_path(str(EXAMPLE / "split.py"))
    finally:
        sys.path.remove(str(EXAMPLE))
    public, _ = split["public"]()
    seen = {row.astype(np.float32).tobytes() for row in public}
    for path in data.glob("*/*.csv"):
        assert not seen & {row.tobytes() for row in table(path).x}


def test_readers_of_one_kind_share_a_model_which_beats_one_for_all(data: Path, learner: Learner) -> None:
    state, grouped = finished("fmcl", data, learner)
    _, one = finished("fedavg", data, learner)
    found = [state.assignments[f"d{number}"] for number in range(8)]
    assert found[:4] == found[4:]
    assert len(set(found)) == 4
    assert grouped > one + 0.05
    views = Views.of(table(data / "newcomer" / "images.csv"), table(data / "newcomer" / "test.csv"))
    newcomer = DeviceContext(learner, views, "cpu", 0, np.random.default_rng(0))
    answer = standard.perform(discover()["fmcl"].server().place(state, None), newcomer)  # type: ignore[arg-type]
    assert isinstance(answer, Represented)
    placed = discover()["fmcl"].server().place(state, answer.prototypes)
    assert isinstance(placed, ClusterAssignment)
    assert placed.cluster == found[1]
    measured = standard.perform(Evaluate(state.models[placed.cluster], "test"), newcomer)
    assert isinstance(measured, Evaluated)
    assert measured.accuracy > 0.9
