"""Workers on this machine. The fleet is not copied: workers are forked and see its memory as it was."""

import multiprocessing
import signal
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, cast

import torch

from shoal.core.types import DeviceId
from shoal.simulation.backend import Task, Worker, done
from shoal.simulation.simulated import SimulatedDevices


class ForkedWorker:
    def __init__(self, devices: SimulatedDevices, names: Sequence[DeviceId]) -> None:
        context = multiprocessing.get_context("fork")
        self.line, theirs = context.Pipe()
        self._process = context.Process(target=_work, args=(theirs, devices, names), daemon=True)
        self._process.start()
        theirs.close()

    def send(self, task: Task | None) -> None:
        self.line.send(task)

    def answer(self) -> Any:
        try:
            return self.line.recv()
        except EOFError:
            self._process.join()
            raise ChildProcessError(f"a worker ended with code {self._process.exitcode}") from None

    def end(self) -> None:
        self.line.close()
        self._process.terminate()
        self._process.join()


class Forked:
    """The backend of this machine's processors."""

    def start(self, devices: SimulatedDevices, shares: Sequence[Sequence[DeviceId]]) -> list[Worker]:
        return [ForkedWorker(devices, share) for share in shares]

    def ready(self, working: Sequence[Worker]) -> Sequence[Worker]:
        lines = {cast(ForkedWorker, worker).line: worker for worker in working}
        return [lines[cast(Connection, line)] for line in wait(list(lines))]


def _work(line: Connection, devices: SimulatedDevices, names: Sequence[DeviceId]) -> None:
    """A worker's whole life. One thread, because sums over several differ in their last bits.

    Ctrl-C is the simulation's to handle, and if that process is gone, so is the worker.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    calls = devices.calls()
    while (task := _next(line)) is not None:
        line.send(done(devices, calls, task))
    line.send({name: devices.progress(name) for name in names})


def _next(line: Connection) -> Task | None:
    """The next task; None at the end of the run."""
    try:
        found: Task | None = line.recv()
    except EOFError:
        raise SystemExit(1) from None
    return found
