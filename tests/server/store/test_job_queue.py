"""Jobs of reducers in PostgreSQL: each is held by one reducer at a time, and only who holds it brings it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from fedserver.store.engines import Elsewhere
from fedserver.store.store import Store
from shoal.core.errors import ConfigError, StorageFault
from tests.postgresql import Cluster

module = pytest.importorskip("fedserver.store.engines.job_queue", reason="psycopg is not installed")
JOBS = [("first", b"\x00\x01"), ("second", b""), ("third", b"\x02")]
RIGHTS = """
CREATE ROLE reducer LOGIN;
GRANT SELECT, UPDATE (holder, lease, failures, result, sha256, read) ON reducer_jobs TO reducer;
"""

Open = Callable[..., "module.JobQueue"]


@pytest.fixture
def url(postgresql: Cluster, tmp_path: Path) -> Iterator[str]:
    """The address of a database that a server leads."""
    elsewhere = Elsewhere(postgresql.database(), tmp_path / "shared")
    with closing(Store(tmp_path / "leader", elsewhere)):
        yield elsewhere.database


@pytest.fixture
def queue(url: str) -> Iterator[Open]:
    with ExitStack() as sessions:
        yield lambda *name: sessions.enter_context(closing(module.JobQueue(url, *name)))


def test_reducers_take_each_job_once_and_the_leader_gets_what_they_bring(queue: Open) -> None:
    leader, a, b = queue(), queue(module.REDUCER), queue(module.REDUCER)
    leader.post("me", "batch", JOBS)
    assert leader.reducers() == 2
    taken = [each.take(name) for each, name in ((a, "a"), (b, "b"), (a, "a"))]
    assert [(each.task, each.base) for each in taken] == JOBS
    assert b.take("b") is None
    assert a.finish(taken[0], "a", b"result", "hash", 7)
    assert leader.answer("batch", 0) == module.Answer("a", b"result", "hash", 7)
    assert leader.answer("batch", 1) is None
    standings = leader.standings("batch")
    assert [each.is_done for each in standings.values()] == [True, False, False]
    assert not any(each.is_free for each in standings.values() if not each.is_done)
    leader.remove("batch", [0, 1])
    assert not b.finish(taken[1], "b", b"", "", 0)
    assert set(leader.standings("batch")) == {2}
    leader.remove_all("batch")
    assert leader.standings("batch") == {}


def test_many_reducers_at_once_take_every_job_exactly_once(queue: Open) -> None:
    queue().post("me", "batch", [(str(number), b"") for number in range(60)])
    taken: list[str] = []

    def work(reducer: "module.JobQueue", name: str) -> None:
        while job := reducer.take(name):
            taken.append(job.task)
            assert reducer.finish(job, name, b"", "", 0)

    threads = [threading.Thread(target=work, args=(queue(), str(number))) for number in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert sorted(taken, key=int) == [str(number) for number in range(60)]


def test_a_lease_that_ran_out_gives_the_job_to_another_reducer(
    queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, slow, other = queue(), queue(), queue()
    leader.post("me", "batch", JOBS[:1])
    monkeypatch.setattr(module, "LEASE", 0.0)
    lost = slow.take("slow")
    monkeypatch.undo()
    assert leader.standings("batch")[0].is_free
    job = other.take("other")
    assert job == lost
    assert not slow.renew(lost, "slow")
    assert not slow.finish(lost, "slow", b"late", "", 0)
    slow.give_back(lost, "slow", failed=True)
    assert leader.standings("batch")[0] == module.Standing(False, False, 0)
    assert other.renew(job, "other")
    assert other.finish(job, "other", b"right", "", 0)
    assert leader.answer("batch", 0).result == b"right"


def test_a_lease_that_ran_out_costs_nothing_if_no_other_reducer_took_the_job(
    queue: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, slow = queue(), queue()
    leader.post("me", "batch", JOBS[:1])
    monkeypatch.setattr(module, "LEASE", 0.0)
    job = slow.take("slow")
    assert leader.standings("batch")[0].is_free
    assert slow.finish(job, "slow", b"right", "", 0)
    assert leader.standings("batch")[0].is_done
    assert slow.take("slow") is None


def test_a_job_that_reducers_cannot_do_is_left_to_the_server(queue: Open) -> None:
    leader, reducer = queue(), queue()
    leader.post("me", "batch", JOBS[:1])
    job = reducer.take("a")
    reducer.give_back(job, "a", failed=False)  # it had to stop
    for _ in range(module.FAILURES):
        assert not leader.standings("batch")[0].is_given_up
        job = reducer.take("a")
        reducer.give_back(job, "a", failed=True)
    assert reducer.take("a") is None
    assert leader.standings("batch")[0].is_given_up


def test_a_reducer_takes_no_jobs_of_another_format(queue: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    leader, reducer = queue(), queue(module.REDUCER)
    monkeypatch.setattr(module, "FORMAT", module.FORMAT + 1)
    monkeypatch.setattr(module, "REDUCER", "fedserver reducer of another format")
    leader.post("me", "batch", JOBS)
    assert leader.reducers() == 0
    monkeypatch.undo()
    assert leader.reducers() == 1
    assert reducer.take("a") is None


def test_a_new_leader_abandons_the_jobs_of_the_one_before(queue: Open) -> None:
    leader, reducer = queue(), queue()
    leader.post("before", "batch", JOBS)
    job = reducer.take("a")
    leader.post("now", "other", JOBS[:1])
    assert leader.remove_others("now") == len(JOBS)
    assert not reducer.finish(job, "a", b"", "", 0)
    assert len(leader.standings("other")) == 1


def test_jobs_need_a_role_that_may_do_nothing_else(url: str, postgresql: Cluster, queue: Open) -> None:
    queue().post("me", "batch", JOBS)
    with postgresql.session(url) as owner:
        owner.execute(RIGHTS)
        tables = [
            name
            for (name,) in owner.execute(
                "SELECT relname FROM pg_class WHERE relkind IN ('r', 'v')"
                " AND relnamespace = 'public'::regnamespace"
            ).fetchall()
        ]
    own = url.replace("shoal@", "reducer@")
    try:
        with closing(module.JobQueue(own, module.REDUCER)) as reducer:
            assert queue().reducers() == 1
            first, second = reducer.take("a"), reducer.take("a")
            assert reducer.renew(first, "a")
            assert reducer.finish(first, "a", b"result", "hash", 1)
            reducer.give_back(second, "a", failed=True)
            for refused in (
                lambda: reducer.post("me", "batch", JOBS),
                lambda: reducer.remove_all("batch"),
                lambda: reducer._count("UPDATE reducer_jobs SET task = $1", "other"),
            ):
                with pytest.raises(StorageFault, match="denied"):
                    refused()
            assert "runs" in tables
            for table in tables:
                if table != "reducer_jobs":
                    with pytest.raises(StorageFault, match="denied"):
                        reducer._rows(f"SELECT * FROM {table}")
    finally:
        with postgresql.session(url) as owner:
            owner.execute("DROP OWNED BY reducer; DROP ROLE reducer")


def test_jobs_are_not_in_the_write_ahead_log(url: str, postgresql: Cluster) -> None:
    with postgresql.session(url) as owner:
        query = "SELECT relpersistence FROM pg_class WHERE relname = 'reducer_jobs'"
        assert owner.execute(query).fetchone()[0] == "u"


def test_an_address_that_cannot_be_read_is_said_at_once() -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        module.JobQueue("postgresql://a b=c?", module.REDUCER)
