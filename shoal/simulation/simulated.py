"""The devices of a fleet at work in one process: their data over time, and the one network in which they
take turns."""

import mmap
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from shoal.core.algorithm import Algorithm, DeviceHalf, ServerHalf, State, measurement
from shoal.core.data.dataset import Dataset
from shoal.core.data.seeds import generator
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext, choose_device
from shoal.core.device_kit.learner import Learner, OutOfMemory
from shoal.core.device_kit.tuning import tune
from shoal.core.engine.simulate import Device, Keep
from shoal.core.errors import ConfigError, DeviceFault, LearnerFault
from shoal.core.exchange.choosing import Choose, Chosen, Wish
from shoal.core.exchange.choosing.vote import Vote
from shoal.core.exchange.messages import Ensemble, Evaluate, Evaluated, Message
from shoal.core.exchange.parts import MAX_MODELS, ClusterAssignment, Evidence
from shoal.core.exchange.payload import fields_of
from shoal.core.exchange.tensors import manifest_of, pack, unpack
from shoal.core.inference.newcomer import NoClassifier, choose, members, vote
from shoal.core.privacy.accountant import Unmetered
from shoal.core.server_kit import placing
from shoal.core.server_kit.history.figures import trains
from shoal.core.types import DeviceId, ModelKey, Tensors
from shoal.simulation.fleet import Fleet, stage_at


@contextmanager
def on_threads(count: int) -> Iterator[None]:
    """PyTorch on this many threads, in this process; 0: on as many as it chooses.

    With several, each small step waits for all of them: where other programs keep a processor busy, a run
    takes a hundred times as long. And sums have other last bits than on a device, which has one. Raises
    ConfigError for less than 0.
    """
    if count < 0:
        raise ConfigError(f"threads cannot be {count}", "use 1 or more, or 0 to leave it to PyTorch")
    before = torch.get_num_threads()
    torch.set_num_threads(count or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


Memories = MutableMapping[DeviceId, Tensors]
"""What each device remembers of the run."""
NEWCOMER = "newcomer"
"""The label of the noise of a device that is not in the fleet."""


@dataclass(frozen=True)
class Progress:
    """How far a simulated device is. trained: its tasks that trained. stage: of its data. noise: the state of
    its random numbers. memory: what it remembers of the run."""

    trained: int
    stage: int
    noise: Mapping[str, Any]
    memory: Tensors | None


@dataclass(frozen=True)
class Placed:
    """Where a newcomer belongs. task: measures what it gets, on its test part. mixture: each model's share in
    its predictions, if several predict together."""

    assignment: ClusterAssignment
    task: Message
    mixture: Mapping[ModelKey, float] = field(default_factory=dict)


class Simulated:
    """A simulated device: a function from a task and its seed to the answer.

    What is remembered counts once there is an answer. keep: moves it off the heap, as
    `shoal.core.engine.simulate.Keep` does.
    """

    def __init__(
        self,
        device_half: DeviceHalf,
        context: DeviceContext,
        device: DeviceId,
        memories: Memories,
        keep: Callable[[Tensors], Tensors] = lambda tensors: tensors,
    ) -> None:
        self._device_half, self._context, self._device = device_half, context, device
        self._memories, self._keep = memories, keep

    def __call__(self, message: Message, seed: int) -> Message:
        context = self._context.for_task(seed, self._memories.get(self._device), message)
        answer = self._device_half.perform(message, context)
        if context.remembered is not None:
            self._memories[self._device] = self._keep(context.remembered)
        return answer


class SimulatedDevices:
    """A fleet's devices for one run. Memory holds only the data of their present stages and one network."""

    def __init__(
        self,
        algorithm: Algorithm,
        fleet: Fleet,
        learner: Learner,
        device: str,
        seed: int,
        keep: Keep = lambda tensors: tensors,
    ) -> None:
        """device: where to compute. seed: of the devices' noise. keep: takes what they remember off the
        heap."""
        self.learner, self.fleet = learner, fleet
        self.training_seconds = 0.0
        self._device_half = algorithm.device()
        self._device, self.seed = device, seed
        self._keep, self._memories = keep, dict[DeviceId, Tensors]()
        self._network = learner.module(seed=0)
        self._numbers: dict[DeviceId, int | str] = {name: number for number, name in enumerate(fleet)}
        self._trained = dict.fromkeys(fleet, 0)
        self._stages = dict.fromkeys(fleet, -1)
        self._contexts: dict[DeviceId, DeviceContext] = {}
        for name in fleet:
            self._contexts[name] = self._present(name)

    def calls(self) -> dict[DeviceId, Device]:
        """The devices as `shoal.core.engine.simulate` takes them."""
        return {name: self._call(name) for name in self.fleet}

    def perform(
        self, name: DeviceId, message: Message, seed: int, network: nn.Module | None = None
    ) -> Message:
        """A device's answer to a task. network: to work in, where devices do not take turns in the one."""
        context = self._contexts[name] = self._present(name)
        if network is not None:
            context = context.within(network)
        simulated = Simulated(self._device_half, context, name, self._memories, self._keep)
        answer = simulated(message, seed)
        self._trained[name] += trains(message)
        return answer

    def network(self) -> nn.Module:
        """A network like the one in which the devices take turns, on the same processor."""
        return self.learner.module(seed=0).to(choose_device(self._device))

    def accuracy(self, name: DeviceId, task: Message, newcomer: bool = False) -> float:
        """By a task that `shoal.core.algorithm.measurement` gave. A newcomer remembers nothing of the run."""
        return self.evaluated(name, task, newcomer).accuracy

    def evaluated(self, name: DeviceId, task: Message, newcomer: bool = False) -> Evaluated:
        """All that the task tells."""
        memory = None if newcomer else self._memories.get(name)
        answer = self._device_half.perform(task, self._contexts[name].for_task(0, memory, task))
        assert isinstance(answer, Evaluated)
        return answer

    def shown(self, name: DeviceId, question: Message, data: Dataset) -> Evidence:
        """What these data are evidence of. Raises DeviceFault where that takes labels and there are none."""
        answer = self._device_half.perform(question, self.context(name, data).for_task(0, None, question))
        parts = (getattr(answer, part) for part in fields_of(type(answer)))
        return next(part for part in parts if isinstance(part, Evidence))

    def placed(self, server: ServerHalf, state: State, name: DeviceId, data: Dataset) -> Placed:
        """Where a newcomer with these data belongs, by their labels if they have any, and what measures what
        it gets: of a choice, the models that it predicts with. Raises Refused or DeviceFault."""
        answer = placing.place(server, state, Wish(MAX_MODELS), MAX_MODELS)
        if isinstance(answer, Choose):
            try:
                return _chosen(answer, choose(answer, self.context(name, data).for_task(0, None, answer)))
            except NoClassifier:
                answer = server.place(state, None)
        if isinstance(answer, Vote):
            ballot = vote(answer, self.context(name, data).for_task(0, None, answer)).ballot
            answer = placing.place(server, state, ballot, MAX_MODELS)
        if isinstance(answer, Message):
            answer = server.place(state, self.shown(name, answer, data))
        assert isinstance(answer, ClusterAssignment)
        return Placed(answer, measurement(server, state, answer.cluster))

    def tuned(self, server: ServerHalf, state: State, name: DeviceId) -> Message | None:
        """The task that measures what a device of the run has that fine-tunes its cluster's model; None where
        it predicts in another way. Where fine-tuning fails, it has the cluster's model."""
        question = placing.own(server, state, name)
        if question is None:
            return None
        try:
            model = tune(question, self.context_of(name, question)).model
        except OutOfMemory:
            raise
        except (DeviceFault, LearnerFault):
            model = None
        return Evaluate(question.model if model is None else model, "test", question.cluster)

    def context_of(self, name: DeviceId, task: Message) -> DeviceContext:
        """The context of a device with the data that it has by now, for a task outside of the run."""
        return self._contexts[name].for_task(0, None, task)

    def context(self, name: DeviceId, data: Dataset) -> DeviceContext:
        """The context of a device with these data in place of its own, all of them to train on."""
        return self._context(name, Views(data, data.subset(slice(0, 0))))

    def _present(self, name: DeviceId) -> DeviceContext:
        """A device's context with the data that it has by now."""
        return self._at(name, stage_at(self.fleet[name].begins, self._trained[name]))

    def _at(self, name: DeviceId, stage: int) -> DeviceContext:
        holding = self.fleet[name]
        if stage != self._stages[name]:
            context = self._context(name, Views.of(holding.stage(stage), holding.test, self.fleet.held_out))
            self._stages[name] = stage
            return context
        return self._contexts[name]

    def progress(self, name: DeviceId) -> Progress:
        """How far a device is."""
        noise = self._contexts[name].noise.bit_generator.state
        return Progress(self._trained[name], self._stages[name], noise, self._memories.get(name))

    def restore(self, found: Mapping[DeviceId, Progress]) -> None:
        """Go on from where these devices are, as if they had done their tasks here."""
        for name, one in found.items():
            self._trained[name] = one.trained
            self._contexts[name] = self._at(name, one.stage)
            self._contexts[name].noise.bit_generator.state = one.noise
            if one.memory is not None:
                self._memories[name] = self._keep(one.memory)

    def _context(self, name: DeviceId, views: Views) -> DeviceContext:
        noise = generator(self.seed, "privacy noise", self._numbers.get(name, NEWCOMER))
        account = Unmetered(noise.bytes)
        return DeviceContext(self.learner, views, self._device, 0, noise, self._network, account)

    def _call(self, name: DeviceId) -> Callable[[Message, int], Message]:
        def perform(message: Message, seed: int) -> Message:
            started = time.perf_counter()
            answer = self.perform(name, message, seed)
            if trains(message):
                self.training_seconds += time.perf_counter() - started
            return answer

        return perform


def _chosen(question: Choose, found: Chosen) -> Placed:
    """What a newcomer gets that has chosen for itself."""
    where, parts = found.assignment, members(found)
    if found.mixture is None:
        model = question.models[question.keys.index(where.cluster)]
        return Placed(where, Evaluate(model, "test", where.cluster))
    shares = {question.keys[number]: found.mixture[number] for number in parts}
    models = tuple(question.models[number] for number in parts)
    return Placed(where, Ensemble(models, tuple(shares.values())), shares)


def spooled(tensors: Tensors) -> Tensors:
    """The same tensors in a mapped file that goes when they do: memory does not grow with the devices."""
    with tempfile.TemporaryFile() as file:
        for piece in pack(tensors):
            file.write(piece)
        if not file.tell():  # an empty file cannot be mapped
            return tensors
        file.flush()
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return unpack(manifest_of(tensors), memoryview(data))
