"""Digits under three concepts: own names, 9 - y, y + 1; two thirds of a device's are of half the classes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fedcore.admit import admit_message
from fedcore.algorithm import Report, find
from fedcore.algorithms.fedrc import Parameters, central, local
from fedcore.algorithms.fedrc.messages import Mix, Mixed, Mixing
from fedcore.algorithms.fedrc.state import State
from fedcore.data import images
from fedcore.data.dataset import Dataset
from fedcore.data.pixels import unit
from fedcore.data.views import Views
from fedcore.events import Effect
from fedcore.local.bench import Bench
from fedcore.local.learner import builtin
from fedcore.local.simulated import Memories, Simulated
from fedcore.local.weights import initial_weights
from fedcore.messages import TrainingSettings
from fedcore.parts import MixtureCounts
from fedcore.rounds import RoundPolicy
from fedcore.shifts.three_concepts import named
from fedcore.simulate import Outcome, simulate
from fedcore.types import DeviceId

DEVICES, SEED = 9, 3
LEARNER = builtin("mlp", {"inputs": 64, "hidden": (32,), "classes": 10})
QUICK = {"rounds": 12, "learning_rate": 0.1, "batch_size": 8}


def concept(device: int) -> int:
    return device % 3


def data(device: int) -> Dataset:
    """About 120 digits of its own, mostly of five classes, which differ within a concept."""
    train, _ = images.load("digits")
    assert train.y is not None
    rows = np.arange(len(train))[device::DEVICES]
    usual = (train.y[rows] + device // 3 * 3) % 10 < 5
    chosen = np.concatenate([rows[usual], rows[~usual][: usual.sum() // 2]])
    own = train.subset(chosen)
    assert own.y is not None
    return Dataset(unit(own.x), named(own.y, concept(device), 10))


def unseen(of: int) -> Dataset:
    """Digits that nobody trains on, all classes alike, under the names of a concept."""
    _, test = images.load("digits")
    assert test.y is not None
    return Dataset(unit(test.x), named(test.y, of, 10))


def bench(device: int, own: Dataset | None = None, memory: Any = None) -> Bench:
    views = Views.of(data(device) if own is None else own, unseen(concept(device)))
    found = Bench(LEARNER, views, "cpu", 0, np.random.default_rng(device))
    return found.for_task(0, memory)


def fleet(algorithm: str, memories: Memories | None = None) -> Mapping[DeviceId, Simulated]:
    card, _ = find(algorithm)
    remembered = {} if memories is None else memories
    return {
        f"d{number}": Simulated(card.local(), bench(number), f"d{number}", remembered)
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
    parameters = card.configure(preset, {**variant, **known, **changes})
    first, *others = (initial_weights(LEARNER, SEED + n) for n in range(card.initial(parameters)))
    central = card.central()
    state = central.start(first, parameters, *others)
    outcome = simulate(
        central, state, fleet(algorithm, memories), RoundPolicy(minimum=DEVICES), SEED, watch=watch
    )
    assert not outcome.failed, outcome.reason
    return outcome


MODELS = tuple(initial_weights(LEARNER, seed) for seed in range(3))
MIXING = Mixing(classes=10, first="equal")
SETTINGS = TrainingSettings(epochs=1, batch_size=8, learning_rate=0.1)
MIX = Mix(MODELS, "c0 c1 c2", MIXING, SETTINGS)


def mixed(task: Mix = MIX, device: int = 0, own: Dataset | None = None, memory: Any = None) -> Mixed:
    answer = local.perform(task, bench(device, own, memory))
    assert isinstance(answer, Mixed)
    admit_message(task, answer)
    return answer


def reported(device: str, keys: str, counts: list[list[float]], *values: float) -> Report:
    models = tuple({"w": np.array([value])} for value in values)
    examples = round(np.sum(counts))
    return Report(device, Mixed(models, keys, MixtureCounts(np.array(counts)), examples, 0.5))


def begin(**changes: Any) -> State:
    parameters = replace(Parameters(clusters=2, classes=2, rounds=3), **changes)
    return central.start({"w": np.zeros(1)}, parameters, {"w": np.ones(1)})
