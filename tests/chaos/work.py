"""What the fleet works at, and which models must come out of it.

The model has a little more than two chunks, so that a cut can fall into any of them. The truth is the
simulator's: it plays the rounds that the server says it had, with the devices that it says were missing, and
nothing else may come out of real processes, whatever befell them.
"""

from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from fedclient.store.ledger import Ledger
from fedserver.store.records import RunSpec
from shoal.core.algorithm import find
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import builtin
from shoal.core.engine.bootstrap import Bootstrap, Unstarted
from shoal.core.engine.events import Effect, Opened
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import DeviceFault
from shoal.core.exchange.messages import Message
from shoal.core.exchange.tensors import digest
from shoal.core.privacy.accountant import MaskedUpdate, R, T
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Debit, chosen
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import Payment
from shoal.core.types import DeviceId
from shoal.simulation import images
from shoal.simulation.images import rotate

NAMES = ("ant", "bee", "cat", "dog")
ANGLES = (0, 90)
IMAGES, TESTS = 60, 40
LEARNER: dict[str, Any] = {
    "builtin": "mlp",
    "options": {"inputs": 64, "hidden": [1024, 512], "classes": 10},
}
MODEL = 4 * (64 * 1024 + 1024 + 1024 * 512 + 512 + 512 * 10 + 10)
"""Bytes of the model."""
BUDGET = Budget(epsilon=1000.0, total_epsilon=1000.0)
"""Of each device: for many more releases than the runs of a fleet can ask for."""
TRAINING = {"epochs": 1, "batch_size": 32, "learning_rate": 0.05}
FLUX = {**TRAINING, "rounds": 3, "warm_up": "rounds", "earliest": 1, "privacy": "off"}
RUNS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "fedavg": ("fedavg", {**TRAINING, "rounds": 3}),
    "flux": ("flux", FLUX),
    "flux-private": ("flux", {**FLUX, "privacy": "explicit", "epsilon": 20.0, "delta": 1e-6}),
}
"""Algorithm and parameters, by what trials call them. In a private run each device makes one release."""
POLICY = RoundPolicy(
    devices=len(NAMES),
    minimum=len(NAMES),
    wait_for_devices=600.0,
    deadline=600.0,
    device_timeout=600.0,
    max_abandoned_rounds=20,
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
NONE_MISSING: Missing = {}


class Recalled:
    """A device's account in the truth: noise cannot be foreseen, so what the device released is looked up."""

    def __init__(self, folder: Path) -> None:
        made = chosen(Ledger(folder, BUDGET).entries(), Debit)
        self._ledger = Ledger(folder, BUDGET, made[-1].source if made else "")

    def pay(self, payment: Payment, exact: Callable[[], T], noised: Callable[[T, Entropy], R]) -> R:
        """Raises LookupError for what the device's ledger has no release of."""
        return self._ledger.pay(payment, _nothing_new, noised)

    def summed(self, update: MaskedUpdate) -> None:
        raise AssertionError

    def unprotected(self, what: str, data: str) -> None:
        pass


def _nothing_new() -> Any:
    raise LookupError("a release counted that the device's ledger does not have")


def spec(name: str, run: str, seed: int) -> RunSpec:
    algorithm, parameters = RUNS[run]
    return RunSpec(name, algorithm, parameters=parameters, policy=POLICY, seed=seed)


def truth(run: str, seed: int, ledgers: Mapping[DeviceId, Path], missing: Missing = NONE_MISSING) -> Truth:
    """What a run must come to when these devices were missing in these rounds. ledgers: their folders."""
    algorithm, parameters = RUNS[run]
    card, _ = find(algorithm)
    current = 0

    def watch(effect: Effect) -> None:
        nonlocal current
        if isinstance(effect, Opened):
            current = effect.round

    def device(name: DeviceId) -> Callable[[Message, int], Message]:
        context = copy(_context(name))
        context.account = Recalled(ledgers[name])

        def perform(message: Message, task_seed: int) -> Message:
            if name in missing.get(current, ()):
                raise DeviceFault("it was missing")
            return card.device().perform(message, context.for_task(task_seed, None, message))

        return perform

    outcome = simulate(
        Bootstrap(card.server(), card.configure("default", parameters)),
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
def _context(name: DeviceId) -> DeviceContext:
    import torch

    torch.set_num_threads(1)  # as on the devices: another number of threads gives other last bits
    train, test = (Dataset(data.x.reshape(-1, 1, 8, 8), data.y) for data in _data(name))
    learner = builtin(LEARNER["builtin"], LEARNER["options"])
    return DeviceContext(learner, Views.of(train, test), "cpu", 0, np.random.default_rng())


def _data(name: DeviceId) -> tuple[Dataset, Dataset]:
    """A device's own digits, all turned by the angle of its group: uint8 (n, 8, 8)."""
    number = NAMES.index(name)
    train, test = images.digits()
    angle = ANGLES[number % len(ANGLES)]
    parts = (train.subset(slice(number * IMAGES, (number + 1) * IMAGES)), test.subset(slice(0, TESTS)))
    own, measured = (Dataset(rotate(data.x, angle), data.y) for data in parts)
    return own, measured
