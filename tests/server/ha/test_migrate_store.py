"""A store is moved to PostgreSQL and back: nothing is lost, and a move that is killed can be repeated."""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedserver.config import read_server
from fedserver.ha import migration
from fedserver.ha.bucket import BucketAddress
from fedserver.store.engines import Elsewhere
from fedserver.store.engines.schema import TABLES
from fedserver.store.identities.audit import Event, verify
from fedserver.store.identities.records import Terms
from fedserver.store.reports import Arrival
from fedserver.store.store import Store
from shoal.core.engine.round.attendance import Memory
from shoal.core.errors import DataFault, Refused
from shoal.core.identity.joining import Role
from shoal.shell import crash, disk
from tests.postgresql import Cluster
from tests.server.store.samples import RECORD, checkpoint, closed, report, started

engine = pytest.importorskip("fedserver.ha.postgresql", reason="psycopg is not installed")
Contents = dict[str, list[tuple[object, ...]]]


@pytest.fixture(params=["folder", "bucket"])
def elsewhere(postgresql: Cluster, tmp_path: Path, request: Any) -> Elsewhere:
    in_folder = request.param == "folder"
    blobs = tmp_path / "shared" if in_folder else request.getfixturevalue("buckets").bucket()
    return Elsewhere(postgresql.database(), blobs)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder with a run, a report, an admitted device and settings."""
    folder = tmp_path / "state"
    with closing(Store(folder)) as store:
        store.history.begin_start()
        started(store).reports.add([Arrival.of(report(store, "a", 2.0))])
        store.runs.save_round("mnist", closed(1, accuracy=1 / 3), checkpoint(store, 3.0), 0, Memory())
        store.runs.open_round("mnist", ("a", "b"), "training")
        store.reports.add([Arrival.of(report(store, "b", 4.0, 2))])
        store.identities.tokens.add(Terms(Role.TRAIN, 1, 60.0))
        store.journal.log("mnist", "a line with \u00e9")
    (folder / "fedserver.yaml").write_text("state: .\nlisten: 127.0.0.1:1\n")
    return folder


def contents(store: Store) -> Contents:
    found = {}
    for table in TABLES:
        rows = store.database.rows(table, "ORDER BY rowid")
        names = [name for name in (rows[0].keys() if rows else ()) if name not in ("row_", "rowid")]
        found[table] = [tuple(row[name] for name in names) for row in rows]
    return found


def blobs(store: Store) -> set[str]:
    return {name for (name,) in store.database.query("SELECT sha256 FROM needed_blobs")}


def test_everything_is_there_after_a_move_and_after_the_way_back(state: Path, elsewhere: Elsewhere) -> None:
    with closing(Store(state)) as store:
        before, needed = contents(store), blobs(store)
    settings = state / "fedserver.yaml"
    moved = migration.to_database(state, settings, elsewhere)
    assert (moved.rows, moved.blobs) == (sum(map(len, before.values())), len(needed))
    assert read_server({"state": state}).elsewhere == elsewhere
    assert yaml.safe_load(settings.read_text())["listen"] == "127.0.0.1:1"
    assert not (state / "shoal.db").exists()
    with closing(Store(state, elsewhere)) as store:
        assert contents(store) == before
        assert not [store.blobs.damage(name) for name in needed if store.blobs.damage(name)]
        store.journal.log("mnist", "written there")
        store.identities.audit.note(Event.START)
        after = contents(store)
        table = partial(engine.read, elsewhere.database)
        assert not verify(state, None, table).wrong
    migration.to_folder(state, settings, elsewhere)
    assert read_server({"state": state}).elsewhere is None
    with closing(Store(state)) as store:
        assert contents(store) == after != before
        assert not [store.blobs.damage(name) for name in needed if store.blobs.damage(name)]
        assert not store.database.repaired
    assert not verify(state).wrong
    assert not list(state.glob("audit.jsonl.*"))


class Killed(BaseException):
    """The process ends here."""


@pytest.fixture
def killing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Ends the process at the nth durable step from now on."""
    with monkeypatch.context() as patched:

        def at(step: int) -> None:
            patched.undo()
            left = iter(range(step))

            def passed(name: str) -> None:
                if next(left, None) is None:
                    raise Killed

            patched.setattr(crash, "point", passed)
            patched.setattr(disk.crash, "point", passed)

        yield at


def test_a_move_that_is_killed_at_any_step_can_be_repeated(
    state: Path, elsewhere: Elsewhere, killing: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store(state)) as store:
        before = contents(store)
    settings, steps = state / "fedserver.yaml", 0
    while True:
        killing(steps)
        with suppress(Killed):
            migration.to_database(state, settings, elsewhere)
            break
        steps += 1
        if read_server({"state": state}).elsewhere is not None:
            break
    assert steps >= (3 if isinstance(elsewhere.blobs, BucketAddress) else 6), (
        "those of the settings, and of blobs"
    )
    killing(1_000)  # the last move may have been killed after its settings were changed
    with closing(Store(state, elsewhere)) as store:
        assert contents(store) == before


def test_a_move_back_that_is_repeated_keeps_the_database_that_was_set_aside(
    state: Path, elsewhere: Elsewhere
) -> None:
    settings = state / "fedserver.yaml"
    migration.to_database(state, settings, elsewhere)
    before, aside = settings.read_bytes(), (state / "shoal.db.moved").read_bytes()
    migration.to_folder(state, settings, elsewhere)
    settings.write_bytes(before)  # as if the process had ended before it changed them
    migration.to_folder(state, settings, elsewhere)
    assert (state / "shoal.db.moved").read_bytes() == aside
    with closing(Store(state)) as store:
        assert len(store.runs.all()) == 1


def test_a_database_with_another_store_or_a_later_state_is_refused(
    state: Path, elsewhere: Elsewhere, tmp_path: Path
) -> None:
    settings = state / "fedserver.yaml"
    with closing(Store(tmp_path / "other", elsewhere)) as other:
        other.history.begin_start()
    with pytest.raises(Refused, match="another server"):
        migration.to_database(state, settings, elsewhere)
    assert read_server({"state": state}).elsewhere is None


def test_a_later_state_of_the_same_store_is_not_overwritten(state: Path, elsewhere: Elsewhere) -> None:
    settings = state / "fedserver.yaml"
    before = settings.read_bytes()
    migration.to_database(state, settings, elsewhere)
    with closing(Store(state, elsewhere)) as store:
        store.history.begin_start()
    for path in state.glob("shoal.db.moved*"):  # someone puts the old folder back
        path.rename(state / path.name.replace(".moved", ""))
    settings.write_bytes(before)
    with pytest.raises(Refused, match="later state"):
        migration.to_database(state, settings, elsewhere)


def test_a_damaged_blob_stops_the_move_before_any_row(state: Path, elsewhere: Elsewhere) -> None:
    with closing(Store(state)) as store:
        name = min(blobs(store))
        store.blobs.path(name).write_bytes(b"rot")
    with pytest.raises(DataFault, match="is damaged"):
        migration.to_database(state, state / "fedserver.yaml", elsewhere)
    with closing(sqlite3.connect(state / "shoal.db")) as database:
        assert database.execute("SELECT count(*) FROM runs").fetchone() == (1,)
    assert RECORD.run == "mnist"
