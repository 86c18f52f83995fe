"""A round's devices train together on a GPU, which a small network of one device keeps busy for a fraction.

Each task that trains is done up to where it trains, on a thread of its own and in a network of its own. When
all tasks of the round have come so far, what can be trained together is (`training.stacked`), and the rest
one after the other. Only one thread runs at a time, in the order of the tasks, so nothing else about a task
is different from one device after the other; algorithms know nothing of it.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from threading import Semaphore, Thread

import torch
from torch import nn

from shoal.core.device_kit.context import choose_device
from shoal.core.device_kit.training import stacked
from shoal.core.device_kit.training.train import TRAINER, TrainingJob, alone
from shoal.core.engine.simulate import Device
from shoal.core.errors import Diverged
from shoal.core.exchange.messages import Message
from shoal.core.server_kit.history.figures import trains
from shoal.core.types import DeviceId
from shoal.simulation.progress import Progress
from shoal.simulation.simulated import SimulatedDevices
from shoal.simulation.workers import Task

GPUS = {"cuda"}
"""Kinds of processors on which devices train together."""
AT_ONCE = 64
"""Devices that train together at most: each has a network, a thread, and its samples once more."""


@contextmanager
def together(devices: SimulatedDevices, device: str, say: Progress) -> "Iterator[Together | None]":
    """What does the devices' tasks where they compute on a GPU; elsewhere None. device: auto, cpu or cuda.

    In the end the GPU's memory is free for other programs, but for what `devices` hold: PyTorch would keep
    what it has had once for as long as this process lives.
    """
    if choose_device(device).type not in GPUS:
        yield None
        return
    running = Together(devices, say)
    try:
        yield running
    finally:
        running.end()
        torch.cuda.empty_cache()


class Together:
    """It is given tasks ahead, as `workers.Workers` is. remark: that it had too little memory, which the
    result has to repeat, since in a notebook the next line of progress overwrites it; else empty."""

    def __init__(self, devices: SimulatedDevices, say: Progress) -> None:
        self._devices, self._plainly = devices, devices.calls()
        self._say, self.remark = say, ""
        self._networks: list[nn.Module] = []
        self._waiting = deque[Task]()
        self._done: dict[DeviceId, Message | BaseException] = {}

    def calls(self) -> dict[DeviceId, Device]:
        """The devices as `shoal.core.engine.simulate` takes them; it gives `begin` tasks ahead."""
        return {name: partial(self._perform, name) for name in self._devices.fleet}

    def begin(self, name: DeviceId, message: Message, seed: int) -> None:
        if trains(message):
            self._waiting.append((name, message, seed))

    def _perform(self, name: DeviceId, message: Message, seed: int) -> Message:
        if not trains(message):
            return self._plainly[name](message, seed)
        while name not in self._done:
            started = time.perf_counter()
            self._do([self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))])
            self._devices.training_seconds += time.perf_counter() - started
        answer = self._done.pop(name)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def end(self) -> None:
        """Let go of the networks in which devices trained."""
        self._networks.clear()

    def _do(self, tasks: Sequence[Task]) -> None:
        """Do these tasks."""
        while len(self._networks) < len(tasks):
            self._networks.append(self._devices.network())
        turns = [
            Turn(partial(self._devices.perform, *task, network))
            for task, network in zip(tasks, self._networks, strict=False)
        ]
        try:
            for turn in turns:
                turn.go_on()
            while waiting := [turn for turn in turns if turn.job is not None]:
                results = self._trained([turn.job for turn in waiting if turn.job is not None])
                for turn, result in zip(waiting, results, strict=True):
                    turn.go_on(result)
        finally:
            for turn in turns:
                turn.end()
        for (name, _, _), turn in zip(tasks, turns, strict=True):
            self._done[name] = turn.answer

    def _trained(self, jobs: Sequence[TrainingJob]) -> list[float | Diverged | None]:
        """The results of those that were trained together; None for the others, which have not changed."""
        found: list[float | Diverged | None] = [None] * len(jobs)
        kinds: dict[object, list[int]] = {}
        for number, job in enumerate(jobs):
            if (kind := stacked.kind_of(job)) is not None:
                kinds.setdefault(kind, []).append(number)
        for numbers in kinds.values():
            try:
                results = stacked.train([jobs[number] for number in numbers]) if len(numbers) > 1 else None
            except torch.cuda.OutOfMemoryError:
                results = None
                self._say_full(len(numbers))
            for number, result in zip(numbers, results or (), strict=False):
                found[number] = result
        return found

    def _say_full(self, count: int) -> None:
        if not self.remark:
            self.remark = (
                f"the GPU has too little memory to train {count} devices at once, so they train one by one, "
                "which is slower; free memory on it, or set a smaller batch_size"
            )
            self._say(self.remark)


class Turn:
    """A task that is done on a thread of its own, and stops where it wants to train.

    job: what it waits for; None if it does not wait. answer: once it is done, the answer or the error.
    """

    def __init__(self, task: Callable[[], Message]) -> None:
        self.job: TrainingJob | None = None
        self.answer: Message | BaseException = _Ended()
        self._result: float | BaseException | None = None
        self._go, self._stopped = Semaphore(0), Semaphore(0)
        self._thread = Thread(target=self._run, args=(task,), daemon=True)

    def go_on(self, result: float | BaseException | None = None) -> None:
        """Begin, or go on, until it waits or is done. result: of the job for which it waits: its loss, an
        error to raise, or None, if it is to train by itself."""
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._result = result
            self._go.release()
        self._stopped.acquire()

    def end(self) -> None:
        """End it where it waits, or as soon as it would."""
        self._result = _Ended()
        self._go.release()

    def _run(self, task: Callable[[], Message]) -> None:
        TRAINER.set(self._train)
        try:
            self.answer = task()
        except BaseException as error:  # it is raised where the answer is wanted
            self.answer = error
        self._stopped.release()

    def _train(self, job: TrainingJob) -> float:
        self.job = job
        self._stopped.release()
        self._go.acquire()
        self.job = None
        if isinstance(self._result, BaseException):
            raise self._result
        return alone(job) if self._result is None else self._result


class _Ended(BaseException):
    """The simulation ends, and with it the task."""
