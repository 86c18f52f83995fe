"""Workers on Ray give the same run as one process does, with a network that only the author's file has."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import shoal
from shoal.core.errors import LearnerFault
from shoal.simulation.simulate import SimulationResult, simulate
from shoal_lab import datasets, fleets

ray = pytest.importorskip("ray", reason="Ray is not installed")
SETTINGS = {"rounds": 4, "learning_rate": 0.05, "batch_size": 16, "epochs": 1}
LEARNER = """
import torch

def build() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 10))

def latent(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x.flatten(1)[:, :8]
"""


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One cluster of two processors for all tests here."""
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


def fleet() -> shoal.Fleet:
    return fleets.px(datasets.digits(), level=4, devices=5, seed=7)


def played(algorithm: str, **changes: object) -> SimulationResult:
    torch.set_num_threads(1)
    return simulate(algorithm, fleet(), seed=7, **{**SETTINGS, **changes})  # type: ignore[arg-type]


def same(one: SimulationResult, other: SimulationResult) -> bool:
    for key, model in one.models.items():
        for name, array in model.items():
            np.testing.assert_array_equal(array, other.models[key][name])
    return (one.clusters, one.accuracy, one.rows()) == (other.clusters, other.accuracy, other.rows())


@pytest.mark.parametrize("algorithm", ["flux", "apfl"])
def test_a_cluster_gives_the_same_bits(algorithm: str) -> None:
    assert same(played(algorithm), played(algorithm, backend="ray"))


def test_an_authors_file_travels_to_the_cluster(tmp_path: Path) -> None:
    path = tmp_path / "learner.py"
    path.write_text(LEARNER)
    assert same(played("fedavg", model=path), played("fedavg", model=path, backend="ray", workers=2))


def test_an_error_of_a_device_is_the_same_error() -> None:
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(192, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("in the author's code")

    with pytest.raises(LearnerFault, match="in the author's code"):
        played("fedavg", model=Broken, backend="ray", workers=2)


def test_a_worker_that_dies_ends_the_simulation() -> None:
    here = os.getpid()

    class Deadly(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(192, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if os.getpid() != here:
                os.kill(os.getpid(), signal.SIGKILL)
            return self.linear(x.flatten(1))

    with pytest.raises(ChildProcessError, match="a worker of Ray ended"):
        played("fedavg", model=Deadly, backend="ray", workers=2)
