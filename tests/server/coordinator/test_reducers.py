"""Reducers are real processes: same bits, and none of them outlives its server or costs a round."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedserver.coordinator.aggregation.reducers import Reducers
from fedserver.coordinator.coordinator import Coordinator
from fedserver.store.content.mapped import MappedTensors
from shoal.core.exchange.tensors import digest, manifest_of, pack
from shoal.core.server_kit.aggregation import parallel
from shoal.core.server_kit.aggregation.parallel import Job, spread_over
from shoal.core.server_kit.aggregation.robust import RULES, Update, combine
from shoal.core.types import Array, Tensors
from tests.server.servers import SETTINGS, expected, models, serve_all, start
from tests.server.toys import same_models
from tests.waiting import HANG

BASE: Tensors = {"w": np.zeros((3, 100_000), np.float32), "b": np.zeros(7, np.float32)}


@pytest.fixture
def updates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Update]:
    monkeypatch.setattr(parallel, "MIN_VALUES_FOR_WORKERS", 1)
    found = {}
    for number in range(5):
        chance = np.random.default_rng(number)
        model = {name: chance.normal(size=array.shape).astype(array.dtype) for name, array in BASE.items()}
        path = tmp_path / str(number)
        path.write_bytes(b"".join(pack(model)))
        found[f"d{number}"] = Update(MappedTensors(path, manifest_of(model)), 1.0 + number)
    return found


@pytest.fixture
def reducers() -> Iterator[Reducers]:
    found = Reducers(2)
    yield found
    found.close()


def workers_of(process: int) -> set[int]:
    """The processes that a process has started."""
    listed = subprocess.run(["ps", "-o", "pid=", "--ppid", str(process)], capture_output=True, text=True)
    return set(map(int, listed.stdout.split()))


def test_processes_make_the_same_models_also_after_one_of_them_was_killed(
    reducers: Reducers, updates: dict[str, Update]
) -> None:
    expected = {rule: digest(combine(rule, BASE, updates).model) for rule in RULES}
    before = workers_of(os.getpid())
    with spread_over(reducers):
        assert {rule: digest(combine(rule, BASE, updates).model) for rule in RULES} == expected
        running = reducers._pool
        assert running is not None
        victim = next(iter(running._processes))
        os.kill(victim, signal.SIGKILL)
        assert victim not in before
        for rule in RULES:  # the server does it itself, and then with new workers
            assert digest(combine(rule, BASE, updates).model) == expected[rule]
        assert reducers._pool is not running


def test_a_run_has_the_same_models_with_reducers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "MIN_VALUES_FOR_WORKERS", 1)
    done: list[str] = []
    real = Reducers.map

    def noted(self: Reducers, jobs: Sequence[Job]) -> list[list[Array]]:
        done.extend(job.work.__name__ for job in jobs)
        return real(self, jobs)

    monkeypatch.setattr(Reducers, "map", noted)

    async def play() -> None:
        coordinator = await Coordinator.open(tmp_path, replace(SETTINGS, reducers=1))
        try:
            await start(coordinator)
            await serve_all(coordinator)
            assert same_models(models(coordinator), expected())
        finally:
            await coordinator.close()

    asyncio.run(play())
    assert {"_bearings", "_settle"} <= set(done)


SERVER = """
import sys, time
from fedserver.coordinator.aggregation.reducers import Reducers
if __name__ == "__main__":
    reducers = Reducers(1)
    reducers.map([])
    print(reducers._running().submit(__import__("os").getpid).result(), flush=True)
    time.sleep(1000)
"""


def test_a_reducer_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    with subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        reducer = int(server.stdout.readline())
        server.kill()
        server.wait()
    deadline = time.monotonic() + HANG
    while Path(f"/proc/{reducer}").exists() and "Z" not in state_of(reducer):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def state_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"
