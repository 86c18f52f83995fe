"""Workers of a simulation: processes that do the devices' tasks beside each other.

Each device belongs to one worker for the whole run, because its random numbers, its memory and the stage of
its data go on from task to task. A device's answer depends on nothing else, so any number of workers gives
the same bits, wherever they are: `forked` starts them on this machine, `on_ray` on a cluster.
"""

import importlib.util
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, get_args

from shoal.core.device_kit.context import choose_device
from shoal.core.engine.simulate import Device
from shoal.core.errors import ConfigError, ShoalError, near
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId
from shoal.simulation.backend import Backend, Task, Worker
from shoal.simulation.forked import Forked
from shoal.simulation.simulated import SimulatedDevices

BackendName = Literal["processes", "ray"]


@contextmanager
def workers(
    devices: SimulatedDevices, count: int | None, device: str, backend: BackendName = "processes"
) -> "Iterator[Workers]":
    """This many workers, at most one for each device; None: as many as the cluster of Ray has processors. In
    the end, `devices` is as if it had done the tasks itself, unless an error ended the block.

    Raises ConfigError for fewer than one, where the devices compute on a GPU, which is not shared, and
    without Ray if that is the backend.
    """
    if count is not None and count < 1:
        raise ConfigError(f"workers cannot be {count}", "use 1 or more")
    if choose_device(device).type != "cpu":
        raise ConfigError("workers compute on the CPU", "give device=cpu, or no workers")
    with _started(backend) as (place, processors):
        running = Workers(devices, count or processors, place)
        try:
            yield running
            running.hand_back()
        finally:
            running.end()


@contextmanager
def _started(name: str) -> Iterator[tuple[Backend, int]]:
    """A backend, and how many processors it has."""
    if name == "processes":
        yield Forked(), 1
    elif name == "ray":
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("the package ray is not installed", "pip install 'shoal-fed[ray]'")
        from shoal.simulation.on_ray import connected

        with connected() as found:
            yield found
    else:
        raise ConfigError(f"there is no backend {name!r}", near(name, [*get_args(BackendName)]))


class Workers:
    """Running workers. Used by `workers`."""

    def __init__(self, devices: SimulatedDevices, count: int, backend: Backend) -> None:
        names = sorted(devices.fleet)
        self._devices, self._backend = devices, backend
        shares = [names[first::count] for first in range(min(count, len(names)))]
        self._all = backend.start(devices, shares)
        self._of = {name: worker for worker, share in zip(self._all, shares, strict=True) for name in share}
        self._waiting = {id(worker): deque[Task]() for worker in self._all}
        self._working: list[Worker] = []
        self._done: dict[DeviceId, Message | ShoalError] = {}

    def calls(self) -> dict[DeviceId, Device]:
        """The devices as `shoal.core.engine.simulate` takes them; it tells `begin` of tasks ahead."""
        return {name: self._call(name) for name in self._devices.fleet}

    def begin(self, name: DeviceId, message: Message, seed: int) -> None:
        """Have the device's worker do this task when it comes to it."""
        worker = self._of[name]
        self._waiting[id(worker)].append((name, message, seed))
        self._go_on(worker)

    def _go_on(self, worker: Worker) -> None:
        """Give a worker the next task. It has at most one, so neither side waits for the other to read."""
        if self._waiting[id(worker)] and worker not in self._working:
            worker.send(self._waiting[id(worker)].popleft())
            self._working.append(worker)

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
        for worker in self._backend.ready(self._working):
            name, answer, seconds = worker.answer()
            self._working.remove(worker)
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
