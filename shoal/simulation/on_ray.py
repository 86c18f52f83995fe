"""Workers on a cluster of Ray: actors, each on one processor. The fleet is copied to each node once.

Without a cluster, Ray starts one on this machine. Every node needs the same versions of Shoal and PyTorch;
the author's class or learner file travels with the fleet, but not the modules that a file imports. Anyone who
reaches the ports of a cluster of Ray can run code there, so these belong into a network of their own.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import ray
import torch

from shoal.core.device_kit.learner import Learner
from shoal.core.types import DeviceId
from shoal.shell.learners import FROM_FILE
from shoal.simulation.backend import Backend, Task, Worker, done
from shoal.simulation.simulated import SimulatedDevices


class _Share:
    """In an actor: the devices of one worker."""

    def __init__(self, devices: SimulatedDevices, names: Sequence[DeviceId]) -> None:
        torch.set_num_threads(1)  # sums over several threads differ in their last bits
        self._devices, self._names, self._calls = devices, names, devices.calls()

    def perform(self, task: Task | None) -> Any:
        if task is None:
            return {name: self._devices.progress(name) for name in self._names}
        return done(self._devices, self._calls, task)


class RayWorker:
    def __init__(self, fleet: Any, names: Sequence[DeviceId]) -> None:
        self._actor = ray.remote(num_cpus=1, max_restarts=0)(_Share).remote(fleet, names)
        self.answering: Any = None

    def send(self, task: Task | None) -> None:
        self.answering = self._actor.perform.remote(task)

    def answer(self) -> Any:
        try:
            return ray.get(self.answering)
        except ray.exceptions.RayActorError as error:
            raise ChildProcessError(f"a worker of Ray ended: {error}") from None

    def end(self) -> None:
        ray.kill(self._actor)


class OnRay:
    """The backend of a cluster."""

    def start(self, devices: SimulatedDevices, shares: Sequence[Sequence[DeviceId]]) -> list[Worker]:
        with _travelling(devices.learner):
            fleet = ray.put(devices)
        return [RayWorker(fleet, share) for share in shares]

    def ready(self, working: Sequence[Worker]) -> Sequence[Worker]:
        answering = {cast(RayWorker, worker).answering: worker for worker in working}
        found, _ = ray.wait(list(answering), num_returns=1)
        return [answering[each] for each in found]


@contextmanager
def _travelling(learner: Learner) -> Iterator[None]:
    """Send the module of a learner file as it is: no node could import it under its name here."""
    module = sys.modules.get(learner.build.__module__)
    if module is None or not module.__name__.startswith(FROM_FILE):
        yield
        return
    ray.cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        ray.cloudpickle.unregister_pickle_by_value(module)


@contextmanager
def connected() -> Iterator[tuple[Backend, int]]:
    """The cluster that RAY_ADDRESS names, or one on this machine, and how many processors it has.

    A connection that there is already is used, and stays.
    """
    is_ours = not ray.is_initialized()
    if is_ours:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        yield OnRay(), max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        if is_ours:
            ray.shutdown()
