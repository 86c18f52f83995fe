"""What a simulation asks of its workers, wherever they run."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from shoal.core.engine.simulate import Device
from shoal.core.errors import ShoalError
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId
from shoal.simulation.simulated import SimulatedDevices

Task = tuple[DeviceId, Message, int]
"""A device, its task and the seed of the task."""


class Worker(Protocol):
    """A process with the devices of its share."""

    def send(self, task: Task | None) -> None:
        """Give it a task; None at the end, and then its answer is the progress of its devices."""

    def answer(self) -> Any:
        """Its answer to what it was sent last: `done` of a task. Raises ChildProcessError if it is gone."""

    def end(self) -> None: ...


class Backend(Protocol):
    """Where workers are started."""

    def start(self, devices: SimulatedDevices, shares: Sequence[Sequence[DeviceId]]) -> list[Worker]:
        """A worker for each share of the devices."""

    def ready(self, working: Sequence[Worker]) -> Sequence[Worker]:
        """Wait for an answer; those that have one."""


def done(
    devices: SimulatedDevices, calls: Mapping[DeviceId, Device], task: Task
) -> tuple[DeviceId, Message | ShoalError, float]:
    """In a worker: do a task. The device, its answer or its error, and the seconds of training."""
    name, message, seed = task
    before = devices.training_seconds
    answer: Message | ShoalError
    try:
        answer = calls[name](message, seed)
    except ShoalError as error:
        answer = error
    return name, answer, devices.training_seconds - before
