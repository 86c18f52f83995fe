"""Reducers on other machines: the same bits whatever becomes of them, and no round that hangs."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.store.content.mapped import StoredTensors
from fedserver.store.engines import Elsewhere
from fedserver.store.store import Store
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.aggregation import pieces
from shoal.core.server_kit.aggregation.pieces import Job, spread_over
from shoal.core.server_kit.aggregation.robust import RULES, Update, combine
from shoal.core.types import Array, Tensors
from tests.buckets import Buckets
from tests.postgresql import Cluster
from tests.server.servers import SETTINGS, expected, models, serve_all, start
from tests.server.toys import same_models
from tests.waiting import HANG

remote = pytest.importorskip("fedserver.coordinator.aggregation.remote", reason="psycopg is not installed")
reducer = pytest.importorskip("fedserver.coordinator.aggregation.reducer", reason="psycopg is not installed")
queues = pytest.importorskip("fedserver.store.engines.job_queue", reason="psycopg is not installed")

BASE: Tensors = {"w": np.zeros((3, 300_000), np.float32), "b": np.zeros(7, np.float32)}


@pytest.fixture(params=["folder", "bucket"])
def elsewhere(request: Any, postgresql: Cluster, tmp_path: Path) -> Elsewhere:
    blobs = tmp_path / "shared"
    return Elsewhere(
        postgresql.database(),
        request.getfixturevalue("buckets").bucket() if request.param == "bucket" else blobs,
    )


@pytest.fixture
def in_folder(postgresql: Cluster, tmp_path: Path) -> Elsewhere:
    return Elsewhere(postgresql.database(), tmp_path / "shared")


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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small models are worth it, and the server leaves all jobs to reducers that are there."""
    monkeypatch.setattr(pieces, "WORTH", 1)
    monkeypatch.setattr(remote, "WORTH", 1)
    for name in ("QUIET", "STUCK"):
        monkeypatch.setattr(remote, name, HANG)
    monkeypatch.setattr(reducer, "IDLE", 0.01)
    monkeypatch.setattr(remote, "LOOK", 0.01)


@pytest.fixture
def leader(elsewhere: Elsewhere, tmp_path: Path, small: None) -> Iterator[Leader]:
    with closing(Leader(tmp_path / "state", elsewhere)) as found:
        yield found


@pytest.fixture
def leading(in_folder: Elsewhere, tmp_path: Path, small: None) -> Iterator[Leader]:
    """A leader whose blobs are in a folder."""
    with closing(Leader(tmp_path / "state", in_folder)) as found:
        yield found


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


# -- reducers that fail -------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("how", ["the server", "another reducer"])
def test_a_reducer_that_is_killed_at_its_job_costs_nothing_but_time(
    leading: Leader, tmp_path: Path, how: str
) -> None:
    wanted = leading.by_itself()
    with holding(leading.elsewhere, tmp_path, 1.0) as victim, ExitStack() as others:
        leading.until_there(1)
        combining = Combining(leading)
        assert victim.stdout is not None
        assert victim.stdout.readline() == "computes\n"
        if how == "another reducer":
            others.enter_context(working(leading.elsewhere))
            leading.until_there(2)
        victim.kill()
        assert combining.result() == wanted
    assert bool(leading.own) == (how == "the server")


def test_a_reducer_that_stands_still_loses_its_job(leading: Leader, tmp_path: Path) -> None:
    wanted = leading.by_itself()
    with holding(leading.elsewhere, tmp_path, 0.5) as frozen:
        leading.until_there(1)
        combining = Combining(leading)
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "computes\n"
        frozen.send_signal(signal.SIGSTOP)
        with working(leading.elsewhere):
            assert combining.result() == wanted
            assert leading.own == []


def test_a_reducer_that_renews_its_lease_for_ever_does_not_hold_up_the_round(
    leading: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "QUIET", 0.1)
    monkeypatch.setattr(remote, "STUCK", 0.5)
    with holding(leading.elsewhere, tmp_path, 600.0):
        leading.until_there(1)
        assert leading.combined() == leading.by_itself()


@contextmanager
def present(leader: Leader) -> Iterator[Any]:
    """The session of a reducer that does nothing by itself."""
    with closing(queues.JobQueue(leader.elsewhere.database, queues.REDUCER)) as queue:
        leader.until_there(1)
        yield queue


def test_a_reducer_that_takes_nothing_does_not_hold_up_the_round(
    leading: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "QUIET", 0.1)
    with present(leading):
        assert leading.combined() == leading.by_itself()
    assert leading.own


@pytest.mark.parametrize(
    ("standing", "silence", "left"),
    [
        (None, 0.0, True),  # the table was emptied
        (queues.Standing(True, True, 0), 1e9, False),
        (queues.Standing(False, True, 0), 0.0, False),
        (queues.Standing(False, True, 0), remote.QUIET + 1.0, True),
        (queues.Standing(False, True, queues.FAILURES), 0.0, True),
        (queues.Standing(False, False, queues.FAILURES), 0.0, False),
        (queues.Standing(False, False, 0), remote.QUIET + 1.0, False),
        (queues.Standing(False, False, 0), remote.STUCK + 1.0, True),
    ],
)
def test_which_jobs_the_server_does_itself(standing: Any, silence: float, left: bool) -> None:
    standings = {} if standing is None else {3: standing}
    assert remote.left_to_the_server(standings, [3], silence) == ([3] if left else [])


def test_a_reducer_that_does_not_reach_the_reports_leaves_them_to_others(
    leading: Leader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reducer, "AGAIN", 0.01)
    monkeypatch.setattr(reducer, "LONGEST", 0.05)
    with working(replace(leading.elsewhere, blobs=tmp_path / "nowhere")):
        leading.until_there(1)
        assert leading.combined() == leading.by_itself()
    assert leading.own


# -- results that must not be used --------------------------------------------------------------------------


Harm = Callable[[bytes, str, int], tuple[bytes, str, int]]
HARMS: dict[str, tuple[Harm, str]] = {
    "rotten": (lambda data, sha256, read: (bytes([data[0] ^ 1]) + data[1:], sha256, read), "SHA-256"),
    "short": (lambda data, sha256, read: (data[:-1], sha256, read), "bytes"),
    "empty": (lambda data, sha256, read: (b"", "", 0), "bytes"),
    "of other reports": (lambda data, sha256, read: (data, sha256, read ^ 1), "other bytes"),
}


@pytest.mark.parametrize("name", HARMS)
def test_a_result_that_is_not_right_is_not_used(
    leading: Leader, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    harm, why = HARMS[name]
    compute = reducer.Reducer._compute
    monkeypatch.setattr(reducer.Reducer, "_compute", lambda *args: harm(*compute(*args)))
    with working(leading.elsewhere), caplog.at_level(logging.ERROR):
        leading.until_there(1)
        assert leading.combined() == leading.by_itself()
    assert leading.own
    assert why in caplog.text


def test_a_reducer_that_computes_otherwise_is_not_believed_again(
    leading: Leader, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = reducer.done
    monkeypatch.setattr(reducer, "done", lambda job: [np.nextafter(each, np.inf) for each in real(job)])
    with working(leading.elsewhere) as (liar,), caplog.at_level(logging.ERROR):
        leading.until_there(1)
        assert leading.combined() == leading.by_itself()
        assert leading.reducers._barred == {liar.name}
        monkeypatch.setattr(reducer, "done", real)
        leading.own.clear()
        assert leading.combined() == leading.by_itself()
    assert leading.own
    assert caplog.text.count("computes other values") == 1


def test_an_object_that_has_rotted_in_the_bucket_is_not_used(
    postgresql: Cluster, buckets: Buckets, tmp_path: Path, small: None, caplog: pytest.LogCaptureFixture
) -> None:
    elsewhere = Elsewhere(postgresql.database(), address := buckets.bucket())
    with closing(Leader(tmp_path / "state", elsewhere)) as leader:
        key = address.prefix + buckets.keys(address)[0]
        body = bytearray(buckets.client.get_object(Bucket=address.bucket, Key=key)["Body"].read())
        body[100] ^= 1
        buckets.client.put_object(Bucket=address.bucket, Key=key, Body=bytes(body))
        with working(elsewhere), caplog.at_level(logging.ERROR):
            leader.until_there(1)
            assert leader.combined() == leader.by_itself()
    assert "other bytes" in caplog.text


# -- the database and the leader ----------------------------------------------------------------------------


def ended(leader: Leader, postgresql: Cluster) -> None:
    with postgresql.session(leader.elsewhere.database) as owner:
        owner.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'fedserver jobs'"
        )


def emptied(leader: Leader, postgresql: Cluster) -> None:
    """As after a crash of PostgreSQL."""
    with postgresql.session(leader.elsewhere.database) as owner:
        owner.execute("TRUNCATE reducer_jobs")


@pytest.mark.parametrize("harm", [ended, emptied])
def test_the_server_combines_by_itself_when_the_jobs_are_lost(
    leading: Leader,
    postgresql: Cluster,
    harm: Callable[[Leader, Cluster], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote, "QUIET", 0.1)  # for the jobs that are not held
    monkeypatch.setattr(queues, "LEASE", HANG)
    wanted = leading.by_itself()
    with present(leading) as queue:
        combining = Combining(leading)
        deadline = time.monotonic() + HANG
        while queue.take("me") is None:
            assert time.monotonic() < deadline
        harm(leading, postgresql)
        assert combining.result() == wanted
    assert leading.own
    assert leading.store.database.query("SELECT 1")  # the session that leads has noticed nothing


def test_no_job_outlives_its_round_nor_its_leader(leading: Leader) -> None:
    with closing(queues.JobQueue(leading.elsewhere.database)) as former:
        former.post("before", "batch", [("left", b"")])
        with working(leading.elsewhere):
            leading.until_there(1)
            assert leading.combined() == leading.by_itself()
        assert leading.store.database.query("SELECT * FROM reducer_jobs") == []


def test_the_session_that_leads_waits_for_no_reducer(leading: Leader, postgresql: Cluster) -> None:
    """A reducer that stopped in the middle of a statement keeps its lock, and nothing of the store."""
    with closing(queues.JobQueue(leading.elsewhere.database)) as queue:
        queue.post("me", "batch", [("task", b"")])
    with postgresql.session(leading.elsewhere.database) as frozen, frozen.transaction():
        frozen.execute("SELECT * FROM reducer_jobs FOR UPDATE")
        with leading.store.database.transaction():
            leading.store.database.execute("DELETE FROM removed")
        with closing(queues.JobQueue(leading.elsewhere.database)) as other:
            assert other.take("other") is None


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
