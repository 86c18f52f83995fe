"""Digits under three concepts: own names, 9 - y, y + 1; two thirds of a device's are of half the classes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from shoal.core.algorithm import Report, find
from shoal.core.algorithms.fedrc import Parameters
from shoal.core.algorithms.fedrc import device as device_half
from shoal.core.algorithms.fedrc import server as server_half
from shoal.core.algorithms.fedrc.messages import Mix, Mixed, Mixing
from shoal.core.algorithms.fedrc.state import State
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.engine.events import Effect
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.exchange.admit import admit_message
from shoal.core.exchange.messages import TrainingSettings
from shoal.core.exchange.parts import MixtureCounts
from shoal.core.types import DeviceId
from shoal.simulation import images
from shoal.simulation.images import unit
from shoal.simulation.simulated import Memories, Simulated
from shoal_lab.shifts.three_concepts import named

DEVICES, SEED = 9, 3
LEARNER = builtin("mlp", {"inputs": 64, "hidden": (32,), "classes": 10})
QUICK = {"rounds": 12, "learning_rate": 0.1, "batch_size": 8}


def concept(device: int) -> int:
    return device % 3


def data(device: int) -> Dataset:
    """About 120 digits of its own, mostly of five classes, which differ within a concept."""
    train, _ = images.digits()
    assert train.y is not None
    rows = np.arange(len(train))[device::DEVICES]
    usual = (train.y[rows] + device // 3 * 3) % 10 < 5
    chosen = np.concatenate([rows[usual], rows[~usual][: usual.sum() // 2]])
    own = train.subset(chosen)
    assert own.y is not None
    return Dataset(unit(own.x), named(own.y, concept(device), 10))


def unseen(of: int) -> Dataset:
    """Digits that no device trains on, all classes alike, under the names of a concept."""
    _, test = images.digits()
    assert test.y is not None
    return Dataset(unit(test.x), named(test.y, of, 10))


def context(device: int, own: Dataset | None = None, memory: Any = None) -> DeviceContext:
    views = Views.of(data(device) if own is None else own, unseen(concept(device)))
    found = DeviceContext(LEARNER, views, "cpu", 0, np.random.default_rng(device))
    return found.for_task(0, memory)


def fleet(algorithm: str, memories: Memories | None = None) -> Mapping[DeviceId, Simulated]:
    card, _ = find(algorithm)
    remembered = {} if memories is None else memories
    return {
        f"d{number}": Simulated(card.device(), context(number), f"d{number}", remembered)
        for number in range(DEVICES)
    }


def run(
    algorithm: str,
    preset: str = "default",
    memories: Memories | None = None,
    watch: Callable[[Effect], None] = lambda effect: None,
    **changes: Any,
) -> Outcome:
    card, variant = find(algorithm)
    known = {name: value for name, value in QUICK.items() if name not in changes}
    parameters = card.configure(preset, {"inputs": "raw", **variant, **known, **changes})
    first, *others = (initial_weights(LEARNER, SEED + n) for n in range(card.initial(parameters)))
    server_half = card.server()
    state = server_half.start(first, parameters, *others)
    outcome = simulate(
        server_half, state, fleet(algorithm, memories), RoundPolicy(minimum=DEVICES), SEED, watch=watch
    )
    assert not outcome.failed, outcome.reason
    return outcome


MODELS = tuple(initial_weights(LEARNER, seed) for seed in range(3))
MIXING = Mixing(classes=10, first="equal")
SETTINGS = TrainingSettings(epochs=1, batch_size=8, learning_rate=0.1)
MIX = Mix(MODELS, "c0 c1 c2", MIXING, SETTINGS)


def mixed(task: Mix = MIX, device: int = 0, own: Dataset | None = None, memory: Any = None) -> Mixed:
    answer = device_half.perform(task, context(device, own, memory))
    assert isinstance(answer, Mixed)
    admit_message(task, answer)
    return answer


def reported(device: str, keys: str, counts: list[list[float]], *values: float) -> Report:
    models = tuple({"w": np.array([value])} for value in values)
    examples = round(np.sum(counts))
    return Report(device, Mixed(models, keys, MixtureCounts(np.array(counts)), examples, 0.5))


def begin(**changes: Any) -> State:
    parameters = replace(Parameters(inputs="raw", clusters=2, classes=2, rounds=3), **changes)
    return server_half.start({"w": np.zeros(1)}, parameters, {"w": np.ones(1)})
