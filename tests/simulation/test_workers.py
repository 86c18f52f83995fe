"""Worker processes give the same run as one process does: models, accuracies, and what devices remember."""

import os
import pickle
import signal

import numpy as np
import pytest
import torch

import shoal
from shoal.core.errors import ConfigError, LearnerFault, Unavailable
from shoal.simulation.simulate import SimulationResult, simulate
from shoal_lab import datasets, fleets

SETTINGS = {"rounds": 6, "learning_rate": 0.05, "batch_size": 16, "epochs": 1}


def fleet() -> shoal.Fleet:
    return fleets.px(datasets.digits(), level=4, devices=5, seed=7)


def played(algorithm: str, workers: int | None, **changes: object) -> SimulationResult:
    torch.set_num_threads(1)
    return simulate(algorithm, fleet(), seed=7, workers=workers, **{**SETTINGS, **changes})


@pytest.mark.parametrize("algorithm", ["flux", "apfl", "feroma"])
def test_any_number_of_workers_gives_the_same_bits(algorithm: str) -> None:
    single, *others = (played(algorithm, count) for count in (None, 1, 2, 9))
    for other in others:
        assert single.models.keys() == other.models.keys()
        for key, model in single.models.items():
            for name, array in model.items():
                np.testing.assert_array_equal(array, other.models[key][name])
        assert single.clusters == other.clusters
        assert single.accuracy == other.accuracy
        assert single.rows() == other.rows()


def test_an_error_of_a_device_is_the_same_error() -> None:
    class Broken(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(192, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("in the author's code")

    with pytest.raises(LearnerFault, match="in the author's code"):
        simulate("fedavg", fleet(), model=Broken, seed=7, workers=2, **SETTINGS)


def test_an_error_travels_with_its_kind_and_its_hint() -> None:
    for error in (Unavailable("away", "try again"), ConfigError("wrong")):
        found = pickle.loads(pickle.dumps(error))
        assert (type(found), str(found), found.args) == (type(error), str(error), error.args)


def test_a_worker_that_dies_ends_the_simulation_with_its_code() -> None:
    class Deadly(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(192, 10)
            self.parent = os.getpid()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if os.getpid() != self.parent:
                os.kill(os.getpid(), signal.SIGKILL)
            return self.linear(x.flatten(1))

    with pytest.raises(ChildProcessError, match="-9"):
        simulate("fedavg", fleet(), model=Deadly, seed=7, workers=2, **SETTINGS)


def test_less_than_one_worker_is_refused() -> None:
    with pytest.raises(ConfigError, match="use 1 or more"):
        simulate("fedavg", fleet(), seed=7, workers=0, **SETTINGS)
