"""The devices of an experiment: their data over time, and the one network in which they take turns."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from shoal.core.algorithm import Algorithm
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext, Simulated
from shoal.core.device_kit.learner import Learner
from shoal.core.engine.simulate import Keep
from shoal.core.exchange.messages import Built, Describe, Evaluated, Message
from shoal.core.exchange.parts import Evidence
from shoal.core.exchange.payload import fields_of
from shoal.core.privacy.account import Unmetered
from shoal.core.seeds import generator
from shoal.core.types import DeviceId, Tensors
from shoal.lab.datasets.natural import NaturalDevice
from shoal.lab.shifts import DeviceData, DriftingDevice
from shoal.lab.shifts.drift import changes, stage_at


@dataclass(frozen=True, eq=False)
class Holding:
    """What a device has. stage: its data to train and measure on, stage by stage, made when asked for.

    begins: after how many of its own training tasks each stage begins. concept: number of the distribution
    of its test part; the truth, for the report alone.
    """

    stage: Callable[[int], Dataset]
    begins: Sequence[int]
    test: Dataset
    concept: int

    @classmethod
    def steady(cls, data: DeviceData) -> "Holding":
        return cls(lambda stage: data.train, (0,), data.test, data.concept)

    @classmethod
    def drifting(cls, device: DriftingDevice, rounds: int) -> "Holding":
        begins = changes(rounds, len(device.stages))
        return cls(device.stage, begins, device.test, device.test_of.number)

    @classmethod
    def natural(cls, device: NaturalDevice, rounds: int) -> "Holding":
        stages = device.stages
        return cls(lambda stage: stages[stage], changes(rounds, len(stages)), device.test, device.concept)


class Fleet:
    """Memory holds the data of the devices' present stages, and one network."""

    def __init__(
        self,
        algorithm: Algorithm,
        holdings: Sequence[Holding],
        learner: Learner,
        device: str,
        seed: int,
        keep: Keep = lambda tensors: tensors,
    ) -> None:
        """device: where to compute. seed: of the devices' noise. keep: takes what they remember off the
        heap."""
        self.learner, self.holdings = learner, holdings
        self.training_seconds = 0.0
        self._device_half = algorithm.device()
        self._device, self._seed = device, seed
        self._keep, self._memories = keep, dict[DeviceId, Tensors]()
        self._network = learner.module(seed=0)
        self._trained = [0] * len(holdings)
        self._stages = [-1] * len(holdings)
        self._contexts: list[DeviceContext] = [self._present(number) for number in range(len(holdings))]

    def devices(self) -> dict[DeviceId, Callable[[Message, int], Message]]:
        return {name(number): self._device_of(number) for number in range(len(self.holdings))}

    def accuracy(self, number: int, task: Message, newcomer: bool = False) -> float:
        """By a task that `shoal.core.algorithm.measurement` gave. A newcomer remembers nothing of the run."""
        memory = None if newcomer else self._memories.get(name(number))
        answer = self._device_half.perform(task, self._contexts[number].for_task(0, memory))
        assert isinstance(answer, Evaluated)
        return answer.accuracy

    def show(self, number: int, question: Message, labels: int) -> Evidence:
        """As a newcomer: the test part without labels, or so many samples of each class with them.

        Raises DeviceFault where the question takes labels and none are shown.
        """
        test = self.holdings[number].test
        labelled = labels > 0 and not (isinstance(question, Describe) and not question.classes)
        return self.shown(number, question, self._few(number, test, labels) if labelled else Dataset(test.x))

    def shown(self, number: int, question: Message, data: Dataset) -> Evidence:
        """What these data are evidence of."""
        answer = self._device_half.perform(question, self.context(number, data))
        parts = (getattr(answer, name) for name in fields_of(type(answer)))
        return next(part for part in parts if isinstance(part, Evidence))

    def context(self, number: int, data: Dataset) -> DeviceContext:
        """A bench of a device with these data in the place of its own, all of them to train on."""
        return self._context(number, Views(data, data.subset(slice(0, 0))))

    def _few(self, number: int, data: Dataset, each: int) -> Dataset:
        """At most so many samples of each class, by chance."""
        assert data.y is not None
        order = generator(self._seed, "labelled", number).permutation(len(data))
        ranks = [order[data.y[order] == label][:each] for label in np.unique(data.y)]
        return data.subset(np.concatenate(ranks))

    def _present(self, number: int) -> DeviceContext:
        """A device's bench with the data that it has by now."""
        holding = self.holdings[number]
        stage = stage_at(holding.begins, self._trained[number])
        if stage != self._stages[number]:
            context = self._context(number, Views.of(holding.stage(stage), holding.test))
            self._stages[number] = stage
            return context
        return self._contexts[number]

    def _context(self, number: int, views: Views) -> DeviceContext:
        noise = generator(self._seed, "privacy noise", number)
        account = Unmetered(noise.bytes)
        return DeviceContext(self.learner, views, self._device, 0, noise, self._network, account)

    def _device_of(self, number: int) -> Callable[[Message, int], Message]:
        device = name(number)

        def perform(message: Message, seed: int) -> Message:
            self._contexts[number] = self._present(number)
            simulated = Simulated(
                self._device_half, self._contexts[number], device, self._memories, self._keep
            )
            started = time.perf_counter()
            answer = simulated(message, seed)
            if _trains(message):
                self.training_seconds += time.perf_counter() - started
                self._trained[number] += 1
            return answer

        return perform


def _trains(message: Message) -> bool:
    """Whether models come back that the data have gone into."""
    types = {each for kinds, _ in fields_of(message.reply).values() for each in kinds}
    return message.reply is not Built and bool(types & {Tensors, tuple[Tensors, ...]})


def name(number: int) -> DeviceId:
    """Device ids sort as their numbers do."""
    return f"device-{number:03}"
