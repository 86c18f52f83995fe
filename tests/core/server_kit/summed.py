"""Ten small devices in a run with secure aggregation, some of which may do what they should not."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from shoal.core import algorithm
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import initial_weights
from shoal.core.engine.events import Effect, Opened, Save
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Outcome, simulate
from shoal.core.exchange.messages import Message, Train
from shoal.core.exchange.summing import TrainMasked
from shoal.core.privacy.accountant import Unmetered
from shoal.core.privacy.secure import fixed_point
from shoal.core.types import DeviceId, Tensors
from shoal.simulation.simulated import Simulated
from tests.core.device_kit.conftest import blobs, small

DEVICES = [f"d{number:02d}" for number in range(10)]
SECURE: dict[str, Any] = {"aggregation": "mean", "secure_aggregation": True, "central_clip": 4.0, "epochs": 1}
Fault = Callable[[DeviceId, Message, int], Message | None]
"""What a device answers in place of the right answer; None: nothing special. It may raise Unavailable."""


@dataclass
class Fleet:
    """Ten small devices. fault: see `Fault`. titles, states: of the rounds. tasks: all, in order."""

    name: str = "fedavg"
    fault: Fault = lambda device, message, number: None
    titles: list[str] = field(default_factory=list)
    states: list[Any] = field(default_factory=list)
    tasks: list[tuple[DeviceId, Message]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.learner = small()
        self.network = self.learner.module(seed=0)
        self.memories: dict[DeviceId, Tensors] = {}
        self.counts = dict.fromkeys(DEVICES, 0)

    def context(self, device: DeviceId) -> DeviceContext:
        number = DEVICES.index(device)
        noise = np.random.default_rng(number)
        views = Views.of(blobs(40 + 3 * number))
        return DeviceContext(self.learner, views, "cpu", 0, noise, self.network, Unmetered(noise.bytes))

    def run(self, minimum: int = 8, drawn: int = 0, **parameters: Any) -> Outcome:
        """drawn: how many devices each round of training asks; 0: all."""
        card = algorithm.discover()[self.name]
        half, device_half = card.server(), card.device()
        contexts = {device: self.context(device) for device in DEVICES}

        def call(device: DeviceId) -> Callable[[Message, int], Message]:
            usual = Simulated(device_half, contexts[device], device, self.memories)

            def perform(message: Message, seed: int) -> Message:
                self.tasks.append((device, message))
                self.counts[device] += 1
                other = self.fault(device, message, self.counts[device])
                return usual(message, seed) if other is None else other

            return perform

        state = half.start(
            initial_weights(self.learner, 0), card.configure("default", {**SECURE, **parameters})
        )
        calls = {device: call(device) for device in DEVICES}
        policy = RoundPolicy(devices=drawn, minimum=minimum, deadline=60.0)
        return simulate(half, state, calls, policy, 7, watch=self.watch)

    def watch(self, effect: Effect) -> None:
        if isinstance(effect, Opened):
            self.titles.append(effect.title)
        if isinstance(effect, Save):
            self.states.append(effect.state)

    def plain(
        self, base: Tensors, task: TrainMasked, seeds: dict[DeviceId, int], left: list[DeviceId]
    ) -> Tensors:
        """The mean of the updates of these devices, summed as whole numbers without any mask."""
        scale = fixed_point.scale_of(task.clip, 0.0, len(DEVICES))
        total = np.zeros(len(fixed_point.vector(base, base, 1.0)), np.int64)
        half = algorithm.discover()[self.name].device()
        for device in left:
            context = self.context(device).for_task(seeds[device])
            model: Any = half.perform(Train(base, task.settings, task.cluster), context)
            total += fixed_point.steps_of(fixed_point.vector(base, model.model, task.clip), scale)
        return fixed_point.moved_by(base, fixed_point.to_words(total), scale, len(left))
