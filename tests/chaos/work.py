"""What the fleet works at, and which models must come out of it.

The model has a little more than two chunks, so that a cut can fall into any of them. The truth is the
simulator's: it plays the rounds that the server says it had, with the devices that it says were missing, and
nothing else may come out of real processes, whatever befell them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedcore.algorithm import find
from fedcore.bootstrap import Bootstrap, Unstarted
from fedcore.data import images
from fedcore.data.dataset import Dataset
from fedcore.data.pixels import rotate, unit
from fedcore.data.views import Views
from fedcore.errors import DeviceFault
from fedcore.events import Effect, Opened
from fedcore.local.bench import Bench
from fedcore.local.learner import builtin
from fedcore.messages import Message
from fedcore.rounds import RoundPolicy
from fedcore.simulate import simulate
from fedcore.tensors import digest
from fedcore.types import DeviceId
from fedserver.records import RunSpec

NAMES = ("ant", "bee", "cat", "dog")
ANGLES = (0, 90)
IMAGES, TESTS = 60, 40
LEARNER: dict[str, Any] = {
    "builtin": "mlp",
    "options": {"inputs": 64, "hidden": [1024, 512], "classes": 10},
}
MODEL = 4 * (64 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 10 + 10)
"""Bytes of the model."""
TRAINING = {"epochs": 1, "batch_size": 32, "learning_rate": 0.05}
PARAMETERS: Mapping[str, dict[str, Any]] = {
    "fedavg": {**TRAINING, "rounds": 3},
    "flux": {**TRAINING, "rounds": 3, "earliest": 1, "latest": 0.4, "privacy": "off"},
}
POLICY = RoundPolicy(
    devices=len(NAMES), minimum=len(NAMES), gather=600.0, deadline=600.0, silence=600.0, patience=20
)
"""A round waits for every device, so that what is combined never hangs on who was fast."""


@dataclass(frozen=True)
class Truth:
    """models: SHA-256 of each final model, by its key. up, down: bytes of models that each device moves."""

    models: Mapping[str, str]
    up: Mapping[DeviceId, int]
    down: Mapping[DeviceId, int]


Missing = Mapping[int, frozenset[DeviceId]]
"""Who did not count, by round."""
NOBODY: Missing = {}


def spec(name: str, algorithm: str, seed: int) -> RunSpec:
    return RunSpec(name, algorithm, parameters=PARAMETERS[algorithm], policy=POLICY, seed=seed)


def truth(algorithm: str, seed: int, missing: Missing = NOBODY) -> Truth:
    """What a run must come to when these devices were missing in these rounds."""
    card, _ = find(algorithm)
    current = 0

    def watch(effect: Effect) -> None:
        nonlocal current
        if isinstance(effect, Opened):
            current = effect.round

    def device(name: DeviceId) -> Callable[[Message, int], Message]:
        bench = _bench(name)

        def perform(message: Message, task_seed: int) -> Message:
            if name in missing.get(current, ()):
                raise DeviceFault("it was missing")
            return card.local().perform(message, bench.for_task(task_seed))

        return perform

    outcome = simulate(
        Bootstrap(card.central(), card.configure("default", PARAMETERS[algorithm])),
        Unstarted(),
        {name: device(name) for name in NAMES},
        POLICY,
        seed,
        watch=watch,
    )
    assert not outcome.failed, outcome.reason
    models = {key: digest(model) for key, model in outcome.state.models.items()}
    return Truth(models, outcome.up, outcome.down)


def write_data(name: DeviceId, folder: Path) -> None:
    """The files of a device: data.npz and test.npz."""
    for kind, data in zip(("data", "test"), _data(name), strict=True):
        assert data.y is not None
        np.savez(folder / f"{kind}.npz", x=data.x, y=data.y)


@cache
def _bench(name: DeviceId) -> Bench:
    import torch

    torch.set_num_threads(1)  # as on the devices: another number of threads gives other last bits
    train, test = (Dataset(unit(data.x).reshape(-1, 1, 8, 8), data.y) for data in _data(name))
    learner = builtin(LEARNER["builtin"], LEARNER["options"])
    return Bench(learner, Views.of(train, test), "cpu", 0, np.random.default_rng())


def _data(name: DeviceId) -> tuple[Dataset, Dataset]:
    """A device's own digits, all turned by the angle of its group: uint8 (n, 8, 8)."""
    number = NAMES.index(name)
    train, test = images.load("digits")
    angle = ANGLES[number % len(ANGLES)]
    parts = (train.subset(slice(number * IMAGES, (number + 1) * IMAGES)), test.subset(slice(0, TESTS)))
    own, measured = (Dataset(rotate(data.x, angle), data.y) for data in parts)
    return own, measured
