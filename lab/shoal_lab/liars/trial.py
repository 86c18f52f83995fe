"""A small real fleet with one liar in it: rotated digits, and two groups of devices, one with the liar."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from shoal.checks.small_fleet import Device, digits, first_model, learner
from shoal.core.algorithm import Algorithm, measurement
from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import generator
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.exchange.messages import Evaluated, Message
from shoal.core.privacy.accountant import Unmetered
from shoal.core.server_kit.history.figures import trains
from shoal.core.types import DeviceId, Tensors
from shoal.simulation.images import rotate, unit
from shoal.simulation.simulated import Simulated
from shoal_lab.liars.attacks import Attack

ANGLES = (0, 90)
BESIDE = 3
"""Devices of the other group."""
SAMPLES = 100
LIAR = "z"
"""Its name: the last of the fleet, so that it sees what all others have answered."""


@dataclass(frozen=True)
class Found:
    """How the honest devices fared. accuracy: mean, in percent, on test digits of their own group. Next to a
    single mate of the liar, whom no one can help, only those of the other group count. ari: how well the
    clusters of all agree with their groups. reason: why the run failed, "" if it did not.
    """

    accuracy: float
    ari: float
    reason: str = ""


def trial(
    card: Algorithm, parameters: Any, mates: int, attack: Attack | None, seed: int, present: bool = True
) -> Found:
    """Train a fleet: the liar with `mates` honest devices, and a second group of `BESIDE` devices.

    attack: None for an honest device in its place. present: False for a fleet without it.
    """
    fleet = _Fleet(card, mates, seed, attack is not None and attack.mislabels)
    devices = dict(fleet.devices)
    if not present:
        del devices[LIAR]
    elif attack is not None:
        devices = _beside(devices, attack)
    half = card.server()
    state = half.start(first_model(), parameters)
    outcome = simulate(half, state, devices, RoundPolicy(minimum=mates + BESIDE), seed)
    return fleet.measured(half, outcome)


class _Fleet:
    """The devices, with data drawn by the seed."""

    def __init__(self, card: Algorithm, mates: int, seed: int, mislabels: bool) -> None:
        self._device_half, self._memories = card.device(), dict[DeviceId, Tensors]()
        train, test = digits()
        count = mates + BESIDE + 1
        rows = generator(seed, "liars").permutation(len(train))[: count * SAMPLES].reshape(count, -1)
        names = [*(f"a{i:02}" for i in range(mates)), *(f"b{i:02}" for i in range(BESIDE)), LIAR]
        self.groups = {name: int(name.startswith("b")) for name in names}
        tests = [Dataset(unit(rotate(test.x, angle)), test.y) for angle in ANGLES]
        self._contexts = {}
        network = learner().module(seed=0)
        for number, (name, own) in enumerate(zip(names, rows, strict=True)):
            x, y = unit(rotate(train.x[own], ANGLES[self.groups[name]])), train.y[own]  # type: ignore[index]
            part = Dataset(x, 9 - y if name == LIAR and mislabels else y)
            noise = np.random.default_rng((seed, number))
            views, account = Views.of(part, tests[self.groups[name]]), Unmetered(noise.bytes)
            self._contexts[name] = DeviceContext(learner(), views, "cpu", 0, noise, network, account)
        self.devices: dict[DeviceId, Device] = {
            name: Simulated(self._device_half, context, name, self._memories)
            for name, context in self._contexts.items()
        }

    def measured(self, half: Any, outcome: Outcome) -> Found:
        """What the honest devices measure with the models that they have in the end."""
        if outcome.failed:
            return Found(0.0, 0.0, outcome.reason)
        assigned = outcome.state.assignments
        honest = sorted(name for name in self.groups if name in assigned and name != LIAR)
        alone = sum(1 - group for group in self.groups.values()) == 2
        accuracies = []
        for name in honest:
            if alone and not self.groups[name]:
                continue
            task = measurement(half, outcome.state, assigned[name])
            context = self._contexts[name].for_task(0, self._memories.get(name), task)
            answer = self._device_half.perform(task, context)
            assert isinstance(answer, Evaluated)
            accuracies.append(answer.accuracy)
        ari = adjusted_rand_score([self.groups[name] for name in honest], [assigned[name] for name in honest])
        return Found(100.0 * float(np.mean(accuracies)), float(ari))


def _beside(devices: Mapping[DeviceId, Device], attack: Attack) -> dict[DeviceId, Device]:
    """The devices, with the last one lying and seeing what the others have answered to the same task."""
    seen: list[tuple[Message, Message]] = []
    taught = 0

    def watched(device: Device) -> Device:
        def perform(task: Message, seed: int) -> Message:
            answer = device(task, seed)
            seen.append((task, answer))
            return answer

        return perform

    def lying(task: Message, seed: int) -> Message:
        nonlocal taught
        honest = devices[LIAR](task, seed)
        mates = [answer for other, answer in seen if other is task and type(answer) is type(honest)]
        seen.clear()
        taught += trains(task)
        return honest if taught <= attack.patience and attack.patience else attack.lie(task, honest, mates)

    return {**{name: watched(device) for name, device in devices.items()}, LIAR: lying}
