"""Reducers that fail, results that must not be used, and jobs that are lost: no round waits for them."""

import logging
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedserver.store.engines import Elsewhere
from tests.buckets import Buckets
from tests.postgresql import Cluster
from tests.server.reducers import Combining, Leader, holding, present, working
from tests.waiting import HANG

remote = pytest.importorskip("fedserver.coordinator.aggregation.remote", reason="psycopg is not installed")
reducer = pytest.importorskip("fedserver.coordinator.aggregation.reducer", reason="psycopg is not installed")
queues = pytest.importorskip("fedserver.store.engines.job_queue", reason="psycopg is not installed")


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
