"""Reducers on other machines make the same bits as the server by itself."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.store.engines import Elsewhere
from shoal.core.server_kit.aggregation import pieces
from shoal.core.server_kit.aggregation.pieces import Job
from shoal.core.server_kit.aggregation.robust import RULES
from shoal.core.types import Array
from tests.server.reducers import BASE, Leader, working
from tests.server.servers import SETTINGS, expected, models, serve_all, start
from tests.server.toys import same_models
from tests.waiting import HANG

remote = pytest.importorskip("fedserver.coordinator.aggregation.remote", reason="psycopg is not installed")
reducer = pytest.importorskip("fedserver.coordinator.aggregation.reducer", reason="psycopg is not installed")


def test_any_number_of_reducers_makes_the_same_bits_with_every_rule(leader: Leader) -> None:
    wanted = {rule: leader.by_itself(rule) for rule in RULES}
    assert leader.reducers.count == 0
    assert {rule: leader.combined(rule) for rule in RULES} == wanted
    for count in (1, 2, 4) if isinstance(leader.elsewhere.blobs, Path) else (2,):
        with working(leader.elsewhere, count):
            leader.until_there(count)
            leader.own.clear()
            assert {rule: leader.combined(rule) for rule in RULES} == wanted
            assert leader.own == []


def test_reducers_read_only_the_ranges_that_they_need(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "READ", 1)  # a job for each piece
    sizes: list[int] = []
    read = reducer.Spans._read

    def noted(self: Any, number: int) -> bytes:
        sizes.append(len(found := read(self, number)))
        return found

    monkeypatch.setattr(reducer.Spans, "_read", noted)
    with working(leader.elsewhere, 2):
        leader.until_there(2)
        assert leader.combined("mean") == leader.by_itself("mean")
    whole = sum(array.nbytes for array in BASE.values())
    assert leader.own == []
    assert max(sizes) == pieces.BLOCK * 4 < whole
    assert sum(sizes) == whole * len(leader.updates)


def test_what_is_done_quickly_stays_with_the_server(leading: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "WORTH", 1 << 28)
    with working(leading.elsewhere):
        leading.until_there(1)
        assert leading.combined() == leading.by_itself()
    assert leading.own


def test_a_run_has_the_same_models(
    elsewhere: Elsewhere, tmp_path: Path, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    real = reducer.done

    def noted(job: Job) -> list[Array]:
        done.append(job.work)
        return real(job)

    monkeypatch.setattr(reducer, "done", noted)

    async def play() -> None:
        coordinator = await Coordinator.open(tmp_path / "state", SETTINGS, elsewhere)
        try:
            with working(elsewhere):
                await start(coordinator)
                await serve_all(coordinator)
                assert same_models(models(coordinator), expected())
        finally:
            await coordinator.close()

    asyncio.run(play())
    assert {"squares", "mean"} <= set(done)


def test_the_command_does_jobs_until_it_is_stopped(leading: Leader) -> None:
    where = ["--database", leading.elsewhere.database, "--blobs", str(leading.elsewhere.blobs)]
    command = [sys.executable, "-m", "fedserver", "reducer", "up", *where]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("waiting for jobs as ")
            leading.until_there(1)
            assert leading.combined() == leading.by_itself()
            assert leading.own == []
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG) == 0
        finally:
            process.kill()


def test_the_command_says_what_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fedserver", "reducer", "up", "--database", "postgresql://a@b/c"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert found.returncode == 3
    assert "give --database and --blobs" in found.stderr
