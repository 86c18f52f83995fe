"""Leaders and reducers on other machines, for tests."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedserver.store.content.mapped import StoredTensors
from fedserver.store.engines import Elsewhere
from fedserver.store.store import Store
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.aggregation import pieces
from shoal.core.server_kit.aggregation.pieces import Job, spread_over
from shoal.core.server_kit.aggregation.robust import Update, combine
from shoal.core.types import Array, Tensors
from tests.waiting import HANG

remote = pytest.importorskip("fedserver.coordinator.aggregation.remote", reason="psycopg is not installed")
reducer = pytest.importorskip("fedserver.coordinator.aggregation.reducer", reason="psycopg is not installed")
queues = pytest.importorskip("fedserver.store.engines.job_queue", reason="psycopg is not installed")

BASE: Tensors = {"w": np.zeros((3, 300_000), np.float32), "b": np.zeros(7, np.float32)}


class Leader:
    """A server that leads, with the reports of a round. own: the jobs that it did itself."""

    def __init__(self, state: Path, elsewhere: Elsewhere) -> None:
        self.elsewhere, self.store = elsewhere, Store(state, elsewhere)
        self.updates = {}
        for number in range(5):
            chance = np.random.default_rng(number)
            far = 30.0 if number == 2 else 0.1  # one is clipped
            model = {
                name: (far * chance.normal(size=array.shape)).astype(array.dtype)
                for name, array in BASE.items()
            }
            weights = self.store.blobs.keep(model)
            path = self.store.blobs.path(weights.blob.sha256)
            self.updates[f"d{number}"] = Update(StoredTensors(path, weights), 1.0 + number)
        self.own: list[Job] = []
        self.reducers = remote.RemoteReducers(elsewhere.database, self.store.blobs)
        compute = self.reducers._compute

        def noted(jobs: Sequence[Job], numbers: Sequence[int], found: dict[int, list[Array]]) -> None:
            self.own += [jobs[number] for number in numbers]
            compute(jobs, numbers, found)

        self.reducers._compute = noted

    def combined(self, rule: str = "trimmed") -> str:
        """The SHA-256 of the next model."""
        with spread_over(self.reducers):
            return digest(combine(rule, BASE, self.updates).model)

    def by_itself(self, rule: str = "trimmed") -> str:
        return digest(combine(rule, BASE, self.updates).model)

    def until_there(self, count: int) -> None:
        """Until this server sees as many reducers."""
        deadline = time.monotonic() + HANG
        while self.reducers.count != count:
            assert time.monotonic() < deadline
            self.reducers._looked = float("-inf")
            time.sleep(0.01)

    def close(self) -> None:
        self.reducers.close()
        self.store.close()


def leave_all_jobs_to_reducers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are worth it, and the server leaves all jobs to reducers that are there."""
    monkeypatch.setattr(pieces, "WORTH", 1)
    monkeypatch.setattr(remote, "WORTH", 1)
    for name in ("QUIET", "STUCK"):
        monkeypatch.setattr(remote, name, HANG)
    monkeypatch.setattr(reducer, "IDLE", 0.01)
    monkeypatch.setattr(remote, "LOOK", 0.01)


@contextmanager
def working(elsewhere: Elsewhere, count: int = 1) -> Iterator[list[Any]]:
    """Reducers, in threads of this process."""
    stop, found = threading.Event(), [reducer.Reducer(elsewhere, threading.Event()) for _ in range(count)]
    for each in found:
        each._stop = stop
    threads = [threading.Thread(target=each.serve, args=(lambda: None,)) for each in found]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        for each in found:
            each.close()


HOLDING = """
import sys, time
from pathlib import Path
from fedserver.coordinator.aggregation import reducer
from fedserver.store.engines import Elsewhere, job_queue, place

job_queue.LEASE = float(sys.argv[3])

def compute(job):
    print("computes", flush=True)
    time.sleep(1000)

if __name__ == "__main__":
    import threading
    reducer.done = compute
    elsewhere = Elsewhere(sys.argv[1], place(sys.argv[2], Path.cwd()))
    reducer.Reducer(elsewhere, threading.Event()).serve(lambda: print("waits", flush=True))
"""


@contextmanager
def holding(elsewhere: Elsewhere, folder: Path, lease: float) -> Iterator["subprocess.Popen[str]"]:
    """A process that takes a job and never brings it."""
    program = folder / "holding.py"
    program.write_text(HOLDING)
    command = [sys.executable, str(program), elsewhere.database, str(elsewhere.blobs), str(lease)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == "waits\n"
            yield process
        finally:
            process.kill()


class Combining(threading.Thread):
    """A round that is combined beside the test."""

    def __init__(self, leader: Leader) -> None:
        super().__init__()
        self._leader, self.found = leader, ""
        self.start()

    def run(self) -> None:
        self.found = self._leader.combined()

    def result(self) -> str:
        self.join(HANG)
        return self.found


@contextmanager
def present(leader: Leader) -> Iterator[Any]:
    """The session of a reducer that does nothing by itself."""
    with closing(queues.JobQueue(leader.elsewhere.database, queues.REDUCER)) as queue:
        leader.until_there(1)
        yield queue
