"""Workers of a simulation: processes of this machine that do the devices' tasks beside each other.

Each device belongs to one worker for the whole run, because its random numbers, its memory and the stage of
its data go on from task to task. A device's answer depends on nothing else, so any number of workers gives
the same bits. The fleet is not copied: workers are forked and see its memory as it was.
"""

import multiprocessing
import signal
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import torch

from shoal.core.device_kit.context import choose_device
from shoal.core.engine.simulate import Device
from shoal.core.errors import ConfigError, ShoalError
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId
from shoal.simulation.simulated import SimulatedDevices

Task = tuple[DeviceId, Message, int]
"""A device, its task and the seed of the task."""


@contextmanager
def workers(devices: SimulatedDevices, count: int, device: str) -> "Iterator[Workers]":
    """This many workers, at most one for each device. In the end, `devices` is as if it had done the tasks
    itself, unless an error ended the block.

    Raises ConfigError for fewer than one, and where the devices compute on a GPU, which is not shared.
    """
    if count < 1:
        raise ConfigError(f"workers cannot be {count}", "use 1 or more")
    if choose_device(device).type != "cpu":
        raise ConfigError("workers compute on the CPU", "give device=cpu, or no workers")
    running = Workers(devices, count)
    try:
        yield running
        running.hand_back()
    finally:
        running.end()


class Workers:
    """Running workers. Used by `workers`."""

    def __init__(self, devices: SimulatedDevices, count: int) -> None:
        names = sorted(devices.fleet)
        self._devices = devices
        shares = [names[first::count] for first in range(min(count, len(names)))]
        self._all = [Worker(devices, share) for share in shares]
        self._of = {name: worker for worker, share in zip(self._all, shares, strict=True) for name in share}
        self._waiting = {worker: deque[Task]() for worker in self._all}
        self._working: dict[Connection, Worker] = {}
        self._done: dict[DeviceId, Message | ShoalError] = {}

    def calls(self) -> dict[DeviceId, Device]:
        """The devices as `shoal.core.engine.simulate` takes them; it tells `begin` of tasks ahead."""
        return {name: self._call(name) for name in self._devices.fleet}

    def begin(self, name: DeviceId, message: Message, seed: int) -> None:
        """Have the device's worker do this task when it comes to it."""
        worker = self._of[name]
        self._waiting[worker].append((name, message, seed))
        self._go_on(worker)

    def _go_on(self, worker: "Worker") -> None:
        """Give a worker the next task. It has at most one, so neither side waits for the other to read."""
        if self._waiting[worker] and worker.line not in self._working:
            worker.send(self._waiting[worker].popleft())
            self._working[worker.line] = worker

    def _call(self, name: DeviceId) -> Device:
        def perform(message: Message, seed: int) -> Message:
            while name not in self._done:
                self._listen()
            answer = self._done.pop(name)
            if isinstance(answer, ShoalError):
                raise answer
            return answer

        return perform

    def _listen(self) -> None:
        """Take the answers that are there, at least one, and give out the next tasks."""
        for line in wait(list(self._working)):
            worker = self._working.pop(cast(Connection, line))
            name, answer, seconds = worker.answer()
            self._go_on(worker)
            self._done[name] = answer
            self._devices.training_seconds += seconds

    def hand_back(self) -> None:
        """Give what the devices remember, and where their random numbers are, to this process."""
        for worker in self._all:
            worker.send(None)
        for worker in self._all:
            self._devices.restore(worker.answer())

    def end(self) -> None:
        for worker in self._all:
            worker.end()


class Worker:
    """A process with the devices of its share."""

    def __init__(self, devices: SimulatedDevices, names: Sequence[DeviceId]) -> None:
        context = multiprocessing.get_context("fork")
        self.line, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, devices, names), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, task: Task | None) -> None:
        """Give it a task; None at the end, and then its answer is the progress of its devices."""
        self.line.send(task)

    def answer(self) -> Any:
        """Its answer to what it was sent last: `_done` of a task. Raises ChildProcessError if it is gone."""
        try:
            return self.line.recv()
        except EOFError:
            self._process.join()
            raise ChildProcessError(f"a worker ended with code {self._process.exitcode}") from None

    def end(self) -> None:
        self.line.close()
        self._process.terminate()
        self._process.join()


def _work(line: Connection, devices: SimulatedDevices, names: Sequence[DeviceId]) -> None:
    """A worker's whole life. One thread, because sums over several differ in their last bits.

    Ctrl-C is the simulation's to handle, and if that process is gone, so is the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    calls = devices.calls()
    while (task := _next(line)) is not None:
        line.send(_done(devices, calls, task))
    line.send({name: devices.progress(name) for name in names})


def _next(line: Connection) -> Task | None:
    """The next task; None at the end of the run."""
    try:
        found: Task | None = line.recv()
    except EOFError:
        raise SystemExit(1) from None
    return found


def _done(
    devices: SimulatedDevices, calls: Mapping[DeviceId, Device], task: Task
) -> tuple[DeviceId, Message | ShoalError, float]:
    """Do a task. The device, its answer or its error, and the seconds of training."""
    name, message, seed = task
    before = devices.training_seconds
    answer: Message | ShoalError
    try:
        answer = calls[name](message, seed)
    except ShoalError as error:
        answer = error
    return name, answer, devices.training_seconds - before
