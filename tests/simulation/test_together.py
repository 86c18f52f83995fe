"""Devices that train together, as they do on a GPU, make the run that they make one after the other."""

import gc
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch
from torch import nn

import shoal
from shoal.core.device_kit.learner import OutOfMemory
from shoal.core.device_kit.training import stacked
from shoal.core.errors import Diverged, LearnerFault
from shoal.simulation import simulated, together
from shoal.simulation.simulate import SimulationResult, simulate
from shoal.simulation.simulated import SimulatedDevices
from shoal_lab import datasets, fleets

SEED = 8
"""At some seeds rounding takes the input of a ReLU across 0, whatever rounds, and moves weights by 1e-3."""
SETTINGS = {"rounds": 5, "learning_rate": 0.05, "batch_size": 16, "epochs": 1}


def fleet() -> shoal.Fleet:
    return fleets.px(datasets.digits(), level=4, devices=5, seed=SEED)


def played(
    at_once: bool, monkeypatch: pytest.MonkeyPatch, algorithm: str, **changes: Any
) -> SimulationResult:
    """A run in which devices train together or do not, whatever this machine has. One thread, which makes
    the latter bits comparable."""
    torch.set_num_threads(1)
    monkeypatch.setattr(together, "GPUS", {"cpu", "cuda"} if at_once else set())
    return simulate(
        algorithm, changes.pop("fleet", None) or fleet(), seed=SEED, device="cpu", **SETTINGS, **changes
    )


def taught(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many devices trained together each time, from now on."""
    found, train = [], stacked.train

    def counted(jobs: Any) -> Any:
        results = train(jobs)
        found.append(len(results or ()))
        return results

    monkeypatch.setattr(stacked, "train", counted)
    return found


@pytest.mark.parametrize("algorithm", ["flux", "feroma", "ifca"])
def test_the_run_is_the_same_but_for_rounding(algorithm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = {"clusters": 2} if algorithm == "ifca" else {}
    single = played(False, monkeypatch, algorithm, **changes)
    found = taught(monkeypatch)
    result = played(True, monkeypatch, algorithm, **changes)
    assert found == [5] * 5
    assert result.clusters == single.clusters
    assert result.rows() == single.rows()
    for key, model in single.models.items():
        for name, array in model.items():
            np.testing.assert_allclose(result.models[key][name], array, rtol=0, atol=1e-4)


def test_more_devices_than_fit_train_in_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "AT_ONCE", 2)
    found = taught(monkeypatch)
    single, result = (played(each, monkeypatch, "fedavg") for each in (False, True))
    assert found == [2, 2] * 5  # the fifth device is alone
    np.testing.assert_allclose(list(result.accuracy.values()), list(single.accuracy.values()), atol=0.02)


def test_what_cannot_train_together_has_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 32), nn.ReLU(), nn.Dropout(0.5), nn.Linear(32, 10))

    single, result = (played(each, monkeypatch, "fedavg", model=build) for each in (False, True))
    for name, array in single.models["global"].items():
        np.testing.assert_array_equal(result.models["global"][name], array)


def test_who_simulates_hears_once_that_a_gpu_has_too_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(stack: Any) -> Any:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(stacked._Stack, "run", full)
    lines: list[str] = []
    single, result = (played(each, monkeypatch, "fedavg", progress=lines.append) for each in (False, True))
    assert [line for line in lines if "memory" in line] == [
        "the GPU has too little memory to train 5 devices at once, so they train one by one, which is "
        "slower; free memory on it, or set a smaller batch_size"
    ]
    assert [each for each in result.remarks if "memory" in each] == [
        each for each in lines if "memory" in each
    ]
    assert not [each for each in single.remarks if "memory" in each]
    for name, array in single.models["global"].items():
        np.testing.assert_array_equal(result.models["global"][name], array)


def test_nothing_of_a_run_stays_on_the_gpu_but_its_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    stacks, networks, made = WeakSet[Any](), WeakSet[nn.Module](), SimulatedDevices.network
    held: list[tuple[int, int]] = []

    def begin(stack: Any, jobs: Any) -> None:
        held.append((len(stacks), len(networks)))
        stacks.add(stack)
        prepare(stack, jobs)

    def network(devices: SimulatedDevices) -> nn.Module:
        networks.add(found := made(devices))
        return found

    prepare = stacked._Stack.__init__
    monkeypatch.setattr(stacked._Stack, "__init__", begin)
    monkeypatch.setattr(SimulatedDevices, "network", network)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: held.append((len(stacks), len(networks))))
    gc.disable()
    try:
        result = played(True, monkeypatch, "fedavg")
    finally:
        gc.enable()
    assert result.history
    assert held == [(0, 5)] * 5 + [(0, 0)], "before each round's training, and at the end"


def test_a_learner_that_a_gpu_has_no_memory_for_is_not_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Large(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    with pytest.raises(OutOfMemory, match="the GPU has too little memory for the learner's") as error:
        played(True, monkeypatch, "fedavg", model=lambda: Large(192, 10))
    assert error.value.hint == "free memory on it, or set a smaller batch_size"


def test_a_full_gpu_is_no_reason_to_go_on_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a round asks some of the devices only, another one takes the place of one that fails."""
    perform = SimulatedDevices.perform

    def full(devices: SimulatedDevices, name: str, *task: Any) -> Any:
        if name == "device-002":
            raise OutOfMemory("the GPU has too little memory for the learner's training")
        return perform(devices, name, *task)

    monkeypatch.setattr(SimulatedDevices, "perform", full)
    with pytest.raises(OutOfMemory, match="device-002: the GPU"):
        played(False, monkeypatch, "fedavg", participation=0.6)


def test_a_full_gpu_does_not_pass_for_fine_tuning_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*task: Any) -> Any:
        raise OutOfMemory("the GPU has too little memory for the learner's training")

    result = played(False, monkeypatch, "fedavg")
    monkeypatch.setattr(simulated, "tune", full)
    with pytest.raises(OutOfMemory):
        _ = result.tuned


def test_a_device_that_diverges_ends_the_run_with_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {name: (one.stage(0).x, one.stage(0).y) for name, one in fleet().items()}
    x, y = parts["device-003"]
    far = shoal.Fleet({**parts, "device-003": (x * np.float32(1e30), y)})
    said = []
    for at_once in (False, True):
        with pytest.raises(Diverged) as error:
            played(at_once, monkeypatch, "fedavg", fleet=far)
        said.append(str(error.value))
    assert said[0] == said[1]
    assert said[0].startswith("device-003: ")


def test_an_error_of_a_device_is_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError("in the author's code")

    with pytest.raises(LearnerFault, match="in the author's code"):
        played(True, monkeypatch, "fedavg", model=lambda: Broken(192, 10))
