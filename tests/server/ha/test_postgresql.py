"""PostgreSQL: one session may write, and a server that loses it can commit nothing any more."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedserver.__main__ import main
from fedserver.ha import blob_folder, translation
from fedserver.store.engines import Elsewhere
from fedserver.store.engines.schema import VERSION
from fedserver.store.integrity import salvage
from fedserver.store.store import Store
from shoal.core.errors import ConfigError, NotLeader, StorageFault
from tests.postgresql import Cluster
from tests.server.processes import add_settings, daemon
from tests.server.store.samples import RECORD, checkpoint, model
from tests.waiting import HANG

module = pytest.importorskip("fedserver.ha.postgresql", reason="psycopg is not installed")
LINE = "INSERT INTO devices (device, software, first_seen, last_seen) VALUES (?, ?, ?, ?)"


@pytest.fixture
def elsewhere(postgresql: Cluster, tmp_path: Path) -> Elsewhere:
    return Elsewhere(postgresql.database(), tmp_path / "shared")


@pytest.fixture
def leader(elsewhere: Elsewhere, tmp_path: Path) -> Iterator[Store]:
    with closing(Store(tmp_path / "leader", elsewhere)) as store:
        yield store


def until_leading(state: Path, elsewhere: Elsewhere) -> Store:
    """A store, once no other server has its database."""
    deadline = time.monotonic() + HANG
    while True:
        try:
            return Store(state, elsewhere)
        except NotLeader:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def end_sessions(postgresql: Cluster, url: str) -> None:
    """What a restart of PostgreSQL, or an administrator, does to the sessions of servers."""
    with postgresql.session(url) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = 'fedserver'"
        )


def write(store: Store, device: str = "d1") -> None:
    with store.database.transaction():
        store.database.execute(LINE, (device, "toy", 1.0, 2.0))


def test_only_one_server_uses_a_database_and_the_next_goes_on_where_it_ended(
    leader: Store, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    write(leader)
    with pytest.raises(
        NotLeader,
        match=r"another server uses this database: its lock is held by \w+ from .*, process \d+ of",
    ):
        Store(tmp_path / "other", elsewhere)
    leader.close()
    with closing(Store(tmp_path / "other", elsewhere)) as other:
        assert [each.device for each in other.journal.devices()] == ["d1"]


def test_a_leader_that_has_lost_its_session_commits_nothing_of_what_it_has_begun(
    leader: Store, postgresql: Cluster, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    def begin_and_lose_the_session() -> None:
        with leader.database.transaction():
            leader.database.execute(LINE, ("d1", "toy", 1.0, 2.0))
            end_sessions(postgresql, elsewhere.database)
            with closing(until_leading(tmp_path / "other", elsewhere)) as other:
                write(other, "d2")

    with pytest.raises(StorageFault):
        begin_and_lose_the_session()
    with pytest.raises(StorageFault):
        write(leader, "d3")
    with closing(Store(tmp_path / "other", elsewhere)) as other:
        assert [each.device for each in other.journal.devices()] == ["d2"]


def test_a_server_learns_that_its_session_has_ended_even_if_it_has_nothing_to_write(
    leader: Store, postgresql: Cluster, elsewhere: Elsewhere
) -> None:
    end_sessions(postgresql, elsewhere.database)
    assert isinstance(leader.database.lost.result(HANG), StorageFault)


def test_a_session_that_is_silent_is_ended_by_postgresql(
    postgresql: Cluster, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a process that was stopped: it says nothing, and its connection stays open."""
    with monkeypatch.context() as stopped:
        stopped.setattr(module, "BEAT", 10 * HANG)
        stopped.setattr(module, "SILENCE", 0.5)
        silent = Store(tmp_path / "silent", elsewhere)
    try:
        with closing(until_leading(tmp_path / "other", elsewhere)) as other:
            write(other)
            with pytest.raises(StorageFault, match="idle-session timeout"):
                write(silent, "d2")
            assert [each.device for each in other.journal.devices()] == ["d1"]
    finally:
        silent.close()


def test_a_session_that_waits_for_a_long_query_is_not_silent(
    elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BEAT", 0.1)
    monkeypatch.setattr(module, "SILENCE", 3.0)
    with closing(Store(tmp_path / "leader", elsewhere)) as store:
        asking = threading.Thread(target=store.database.query, args=("SELECT pg_sleep(6)",))
        asking.start()
        while asking.is_alive():
            assert not store.is_deposed()
            asking.join(0.05)
        write(store)
        assert not store.is_deposed()


def test_text_that_postgresql_cannot_store_loses_one_character_and_no_run(leader: Store) -> None:
    write(leader, "a\0b")
    assert [each.device for each in leader.journal.devices()] == ["a\ufffdb"]


def test_names_are_in_the_order_of_their_bytes(leader: Store) -> None:
    for name in ("b", "a", "B", "a-1", "a1", "é", "z"):
        write(leader, name)
    assert [each.device for each in leader.journal.devices()] == ["B", "a", "a-1", "a1", "b", "z", "é"]


# -- tables ------------------------------------------------------------------------------------------------


def test_tables_that_cannot_all_be_made_are_not_made(
    elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(module, "SCHEMA", f"{module.SCHEMA} INSERT INTO no_such_table VALUES (1);")
        with pytest.raises(StorageFault, match="no_such_table"):
            Store(tmp_path / "a", elsewhere)
    with closing(Store(tmp_path / "a", elsewhere)) as store:
        write(store)
        assert set(store.database.rows("devices")[0].columns) == {
            *("device", "software", "first_seen", "last_seen", "rowid")
        }


@pytest.mark.parametrize("version", [VERSION - 1, VERSION + 1])
def test_a_database_of_another_version_is_refused(
    leader: Store, elsewhere: Elsewhere, tmp_path: Path, version: int
) -> None:
    with leader.database.transaction():
        leader.database.execute("UPDATE meta SET schema_version = ?", (version,))
    leader.close()
    with pytest.raises(ConfigError, match=f"has version {version} of the tables") as refused:
        Store(tmp_path / "leader", elsewhere)
    assert "use the version of fedserver that it was made with" in refused.value.hint


def test_both_engines_have_the_same_columns(leader: Store, tmp_path: Path) -> None:
    query = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
    found = {tuple(row) for row in leader.database.query(query) if row[1] != translation.ORDER.split()[0]}
    with closing(Store(tmp_path / "sqlite")) as other:
        tables = [
            name for (name,) in other.database.query("SELECT name FROM sqlite_master WHERE type = 'table'")
        ]
        expected = {
            (table, row["name"])
            for table in [*tables, "needed_blobs"]
            if table not in salvage.OWN and not table.startswith("sqlite_")
            for row in other.database.query(f"PRAGMA table_info({table})")
        }
    assert found == expected | {("blob_folders", "name")}


# -- the folder of blobs -----------------------------------------------------------------------------------


class Killed(BaseException):
    """The process ends here."""


def killed(name: str) -> None:
    raise Killed


def test_a_former_leader_cannot_delete_a_blob(leader: Store, elsewhere: Elsewhere, tmp_path: Path) -> None:
    leader.runs.add(RECORD, checkpoint(leader, 1.0))
    ((name,),) = leader.database.query("SELECT sha256 FROM needed_blobs")
    former = leader.blobs
    leader.close()
    with closing(Store(tmp_path / "other", elsewhere)) as other:
        assert other.blobs.path(name).is_file()
        assert (leader.is_deposed(), other.is_deposed()) == (True, False)
        former.remove([name])
        written = former.keep(model(2.0)).blob.sha256
        assert other.blobs.path(name).is_file()
        assert not other.blobs.path(written).exists()
    with closing(Store(tmp_path / "other", elsewhere)) as other:
        assert other.blobs.path(name).is_file()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_leader_that_dies_while_it_renames_the_folder_loses_nothing(
    leader: Store, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    leader.runs.add(RECORD, checkpoint(leader, 1.0))
    ((name,),) = leader.database.query("SELECT sha256 FROM needed_blobs")
    leader.close()
    move: Callable[..., None] = blob_folder.disk.move
    for _ in range(2):
        with monkeypatch.context() as dying:
            if when == "before":
                dying.setattr(blob_folder.crash, "point", killed)
            else:
                dying.setattr(blob_folder.disk, "move", lambda *paths: (move(*paths), killed("")))
            with pytest.raises(Killed):
                Store(tmp_path / "other", elsewhere)
    with closing(Store(tmp_path / "other", elsewhere)) as other:
        assert other.blobs.path(name).is_file()
        assert len(list(elsewhere.blobs.glob("blobs-*"))) == 1


def test_another_folder_than_that_of_the_database_is_refused(
    leader: Store, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    leader.runs.add(RECORD, checkpoint(leader, 1.0))
    leader.close()
    with pytest.raises(ConfigError, match="none of the folders"):
        Store(tmp_path / "other", Elsewhere(elsewhere.database, tmp_path / "wrong"))
    Store(tmp_path / "other", elsewhere).close()


def test_a_leader_whose_folder_was_taken_says_so(elsewhere: Elsewhere, tmp_path: Path) -> None:
    """As after a failover of the database, where the former one still runs and has its leader."""
    state = tmp_path / "s"
    add_settings(state, f"database: {elsewhere.database}\nblobs: {elsewhere.blobs}\n")

    def said() -> str:
        done = CliRunner().invoke(main, ["status", "--state", str(state)])
        assert done.exit_code == 0, done.output
        return done.stdout

    with daemon(state):
        assert "leads no more" not in said()
        (folder,) = (tmp_path / "shared").glob("blobs-*")
        taken = folder.rename(folder.with_name("blobs-of-the-next-leader"))
        assert "attention: this server leads no more" in said()
        taken.rename(folder)
