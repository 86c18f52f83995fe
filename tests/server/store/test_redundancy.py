"""What a disk does to the rows of the database is found when they are used, and undone."""

import asyncio
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.database import Row
from fedserver.store.identities.audit import Event
from fedserver.store.integrity.redundancy import DamagedRow
from fedserver.store.integrity.row_bytes import checksum, packed, unpacked
from fedserver.store.integrity.salvage import columns_of, damaged, tables
from fedserver.store.records import ReleaseRecord, Standing
from fedserver.store.store import Store
from shoal.core.errors import StorageFault
from tests.server.coordinator.test_recovery import reports
from tests.server.coordinator.test_releases import trained
from tests.server.servers import DEVICES, ROUNDS, expected, hands, models, scenario, serve_all, server
from tests.server.toys import same_models


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state folder with a run in its second round, as a stopped server left it."""
    state = tmp_path_factory.mktemp("redundancy") / "state"

    async def play() -> None:
        async with server(state) as coordinator:
            await reports(coordinator, DEVICES + 1)

    asyncio.run(play())
    return state


@pytest.fixture
def state(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "state")
    return tmp_path / "state"


def content(state: Path) -> dict[str, list[tuple[object, ...]]]:
    with closing(sqlite3.connect(state / "shoal.db")) as database:
        return {
            table: database.execute(f"SELECT rowid, * FROM {table} ORDER BY rowid").fetchall()
            for table in tables(database)
        }


def columns(state: Path) -> Iterator[tuple[str, str]]:
    """Every column of every table that has rows."""
    with closing(sqlite3.connect(state / "shoal.db")) as database:
        for table in tables(database):
            if database.execute(f"SELECT 1 FROM {table}").fetchone():
                yield from ((table, column) for column in columns_of(database, table))


def spoil(state: Path, table: str, column: str) -> None:
    """Change a value of the first row beside the server, as a flipped bit would."""
    with closing(sqlite3.connect(state / "shoal.db")) as database, database:
        ((value, kind),) = database.execute(f"SELECT {column}, typeof({column}) FROM {table} LIMIT 1")
        other = (
            f"{value}x"
            if kind == "text"
            else b"x"
            if kind == "blob"
            else 3
            if value is None
            else value + 1000
        )
        database.execute(
            f"UPDATE {table} SET {column} = ? WHERE rowid IN (SELECT rowid FROM {table} LIMIT 1)", (other,)
        )


def test_every_value_of_every_table_is_restored_at_the_start(state: Path) -> None:
    before = content(state)
    found = list(columns(state))
    assert {table for table, _ in found} >= {
        "runs",
        "checkpoints",
        "reports",
        "timeline",
        "log",
        "meta",
        "boots",
        "epoch",
    }
    for table, column in found:
        spoil(state, table, column)
        with closing(Store(state)) as store:
            assert store.database.repaired, (table, column)
            assert not damaged(store.database.connection)
        assert content(state) == before, (table, column)


def test_a_damaged_row_is_restored_when_it_is_used(state: Path) -> None:
    with closing(Store(state)) as store:
        spec = store.runs.get("toy").spec
        spoil(state, "runs", "spec")
        assert store.runs.get("toy").spec == spec
        assert store.database.repaired == ["row 1 of table runs was damaged, and was restored from its copy"]


def test_many_rows_are_compared_with_their_own_checksums_and_no_others_are_read(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(Store(state)) as store:
        with store.database.transaction():
            for number in range(1300):
                line = {"run": "toy", "at": 0.0, "device": "", "text": f"line {number}"}
                store.database.insert("log", line)
        with closing(sqlite3.connect(state / "shoal.db")) as database, database:
            database.execute("UPDATE log SET text = 'other' WHERE text = 'line 600'")
        read, query = list[Sequence[Row]](), store.database.query

        def noted(*asked: Any) -> Sequence[Row]:
            read.append(query(*asked))
            return read[-1]

        monkeypatch.setattr(store.database, "query", noted)
        found = store.database.rows("log", "WHERE text LIKE 'line %' ORDER BY number DESC LIMIT 30")
        assert (len(found), sum(map(len, read))) == (30, 60)
        assert {row["text"] for row in store.database.rows("log")} >= {f"line {n}" for n in range(1300)}
        assert len(store.database.repaired) == 1


def test_a_damaged_row_is_not_changed_but_restored_so_that_damage_never_gets_a_checksum(state: Path) -> None:
    with closing(Store(state)) as store:
        spec = store.runs.get("toy").spec
        spoil(state, "runs", "spec")
        with pytest.raises(DamagedRow, match="row 1 of table runs is damaged"):
            store.runs.open_round("toy", ["d0"], "once")
        store.runs.open_round("toy", ["d0"], "again")
        record = store.runs.get("toy")
        assert (record.spec, record.title) == (spec, "again")


def spoil_both(state: Path, table: str, column: str) -> None:
    """The same, and the copy of that row and of all others of its table."""
    spoil(state, table, column)
    with closing(sqlite3.connect(state / "shoal.db.copy")) as copy, copy:
        copy.execute("UPDATE copies SET data = x'00' WHERE tbl = ?", (table,))


def test_a_row_whose_copy_is_damaged_too_is_an_error_of_that_row_alone(state: Path) -> None:
    with closing(Store(state)) as store:
        spoil_both(state, "timeline", "summary")
        with pytest.raises(DamagedRow, match="row 1 of table timeline is damaged"):
            store.journal.timeline.read("toy")
        with pytest.raises(DamagedRow, match="row 1 of table timeline is damaged"):
            store.journal.timeline.read("toy")
        assert store.runs.get("toy").round == 2
        store.database.check()
    with closing(Store(state)) as store:
        assert "restore a backup" in store.database.repaired[0]


@pytest.mark.parametrize(
    ("table", "column"),
    [("devices", "last_seen"), ("traffic", "up"), ("log", "text"), ("released", "rho"), ("audit", "line")],
)
def test_a_row_that_is_lost_stops_no_server_and_hides_no_other(state: Path, table: str, column: str) -> None:
    async def work(coordinator: Coordinator) -> None:
        operator, storage = OperatorApi(coordinator), coordinator.storage
        await hands(coordinator, 0)
        await coordinator.in_turn(coordinator.write_journal())
        await operator.status()
        await storage.call(storage.journal.log_lines, "toy")
        await storage.call(storage.journal.traffic, "toy")
        await storage.note(Event.LOG_SET_ASIDE)
        await coordinator.caretaker.check()
        assert not coordinator.broken.done()

    async def play() -> None:
        async with server(state) as coordinator:
            await work(coordinator)
            count = len(content(state)[table])
            spoil_both(state, table, column)
            await work(coordinator)
        assert len(content(state)[table]) >= count - 1
        spoil_both(state, table, column)
        async with server(state) as coordinator:
            await work(coordinator)
        assert len(content(state)[table]) >= count - 2

    asyncio.run(play())


@pytest.mark.parametrize("there", [["a", "b"], ["a"]])
def test_a_release_that_is_lost_hides_no_later_one(state: Path, there: list[str]) -> None:
    """Where the newest row is lost, the next one gets its place."""
    with closing(Store(state)) as store:
        with store.database.transaction():
            store.database.execute("DELETE FROM released")
        store.journal.note_releases(ReleaseRecord("toy", name, "weights") for name in there)
        assert list(store.runs.statements.of("toy")) == list(store.runs.statements.of_all() or {}) == there
        spoil_both(state, "released", "rho")
        store.database.check()
        store.journal.note_releases([ReleaseRecord("toy", "later", "weights")])
        left = [*there[1:], "later"]
        assert list(store.runs.statements.of("toy")) == list(store.runs.statements.of_all() or {}) == left


def test_the_history_of_a_run_that_is_damaged_for_good_ends_no_run(state: Path) -> None:
    """A run says at its end whether it has learned, by what its rounds measured."""

    async def play() -> None:
        async with server(state) as coordinator:
            spoil_both(state, "timeline", "summary")
            operator = OperatorApi(coordinator)
            assert (await operator.show("toy")).summary.run == "toy"
            assert await operator.history("toy") == []
            await serve_all(coordinator)
            there = [each.round for each in await operator.history("toy")]
            assert there == list(range(2, ROUNDS + 2))
            assert coordinator.runs["toy"].standing is Standing.FINISHED
            assert not coordinator.broken.done()
            assert same_models(models(coordinator), expected())

    asyncio.run(play())


@pytest.mark.parametrize("column", ["secret", "floor"])
@pytest.mark.parametrize("restart", [False, True])
def test_an_epoch_that_is_lost_refuses_no_hello_and_forgets_no_conflict(
    state: Path, column: str, restart: bool
) -> None:
    with closing(Store(state)) as store:
        store.history.begin_start()
        older = store.history.mark()
        later = store.history._present()._replace(revision=1000)
        assert store.history.check_mark("d1", f"{later}.{store.history._code(later)}")
        if not restart:
            spoil_both(state, "epoch", column)
            assert store.history.check_mark("d0", older) == ""
            assert store.database.repaired[0].startswith("the secret that authenticates marks was lost")
            assert [*store.history.conflicts()] == ["d1"]
    if restart:
        spoil_both(state, "epoch", column)
    with closing(Store(state)) as store:
        assert [*store.history.conflicts()] == ["d1"]
        store.history.accept()
        newer = store.history.mark()
        assert (store.history.check_mark("d0", older), store.history.check_mark("d0", newer)) == ("", "")
        later = store.history._present()._replace(revision=1000)
        assert store.history.check_mark("d0", f"{later}.{store.history._code(later)}")
        assert not damaged(store.database.connection)


def test_a_channel_that_is_lost_ends_no_look_at_what_is_stored(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await trained(coordinator, "first", 0.7)
        await coordinator.caretaker.copy()
        copies = set(coordinator.caretaker._copied)
        spoil_both(tmp_path / "state", "channels", "why")
        await coordinator.caretaker.copy()
        await coordinator.caretaker.check()
        assert coordinator.caretaker._copied == copies

    scenario(story, tmp_path)


def test_the_standing_of_a_device_is_restored_and_else_it_alone_is_left_out(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with closing(Store(state)) as store:
        with store.database.transaction():
            for name in ("a", "b"):
                store.database.execute(
                    "INSERT INTO identities VALUES (?, 'train', '{}', 'approved', 1.0, ?, '')", (name, name)
                )
        both = store.journal.standings()
        assert [*both] == ["a", "b"]
        spoil(state, "identities", "standing")
        assert store.journal.standings() == both
        spoil(state, "identities", "standing")
        with closing(sqlite3.connect(state / "shoal.db.copy")) as copy, copy:
            copy.execute("UPDATE copies SET data = x'00' WHERE tbl = 'identities'")
        assert [*store.journal.standings()] == ["b"]


def test_a_lost_end_of_the_log_is_found_by_the_copy_that_is_ahead(state: Path) -> None:
    shutil.copy(state / "shoal.db", state.parent / "earlier")
    with closing(Store(state)) as store:
        store.runs.open_round("toy", ["d0"], "later")
    (state.parent / "earlier").rename(state / "shoal.db")
    with closing(Store(state)) as store:
        assert store.runs.get("toy").title == "later"
        assert "its last transactions are lost" in store.database.repaired[0]


def test_a_copy_that_is_behind_or_gone_or_damaged_is_made_again(state: Path) -> None:
    copy = state / "shoal.db.copy"
    shutil.copy(copy, state.parent / "earlier")
    for harm in (
        lambda: shutil.copy(state.parent / "earlier", copy),
        copy.unlink,
        lambda: copy.write_bytes(copy.read_bytes()[:5000]),
    ):
        with closing(Store(state)) as store:
            store.runs.open_round("toy", ["d1"], "later")
        harm()
        before = content(state)
        Store(state).close()
        spoil(state, "runs", "title")
        Store(state).close()
        assert content(state) == before


def test_a_copy_that_cannot_be_written_fails_no_transaction(state: Path) -> None:
    with closing(Store(state)) as store:
        with closing(sqlite3.connect(state / "shoal.db.copy", isolation_level=None)) as other:
            store.database.redundancy._copy.execute("PRAGMA busy_timeout=1")
            other.execute("BEGIN IMMEDIATE")
            store.runs.open_round("toy", ["d0"], "later")
        assert store.database.redundancy.stale
    with closing(Store(state)) as store:
        spoil(state, "runs", "title")
        assert store.runs.get("toy").title == "later"


def test_a_statement_that_fails_leaves_no_trace_in_the_copy(state: Path) -> None:
    with closing(Store(state)) as store:

        def fail() -> None:
            with store.database.transaction():
                store.database.execute("UPDATE runs SET title = 'never'")
                store.database.execute("INSERT INTO runs SELECT * FROM runs")

        with pytest.raises(StorageFault, match="UNIQUE"):
            fail()
        store.runs.open_round("toy", [], "later")
        spoil(state, "runs", "title")
        assert store.runs.get("toy").title == "later"


def test_the_server_continues_with_what_was_restored(state: Path) -> None:
    spoil(state, "checkpoints", "structure")
    spoil(state, "reports", "message")

    async def play() -> None:
        async with server(state) as coordinator:
            assert len(coordinator.notices()) == 1
            await serve_all(coordinator)
            assert same_models(models(coordinator), expected())

    asyncio.run(play())


def test_the_bytes_of_a_row_are_exact() -> None:
    row = (None, 0, -(2**62), 0.1, -0.0, float("inf"), "", "ä\x00'", b"", b"\x00\xff")
    assert unpacked(packed(row)) == row
    assert packed(("a", "b")) != packed(("ab", "")) != packed((1, "")) != packed((1.0, ""))


def test_a_checksum_is_good_for_one_row_only() -> None:
    data = packed(("d0", 1))
    sums = {checksum(place, data) for place in (("reports", 1), ("reports", 2), ("timeline", 1))}
    assert len(sums) == 3
    assert checksum(("reports", 1), data) in sums


def spoil_schema(state: Path) -> None:
    """Flip the highest bit of a letter in the name of a column: the text is no UTF-8 then."""
    path = state / "shoal.db"
    data = path.read_bytes()
    place = data.index(b"CREATE TABLE devices") + len(b"CREATE TABLE devices (\n    dev")
    path.write_bytes(data[:place] + bytes([data[place] ^ 0x80]) + data[place + 1 :])


def test_a_damaged_schema_is_found_also_where_its_text_cannot_be_decoded(state: Path) -> None:
    before = content(state)
    spoil_schema(state)
    with closing(Store(state)) as store:
        assert "and was made again of shoal.db.copy" in store.database.repaired[0]
    assert content(state) == before


def test_a_name_in_the_schema_that_cannot_be_decoded_is_damage_also_while_the_server_is_up(
    state: Path,
) -> None:
    before = content(state)
    with closing(Store(state)) as store:
        spoil_schema(state)
        with pytest.raises(StorageFault, match=r"shoal\.db is damaged"):
            store.database.check()
    with closing(Store(state)) as store:
        assert "and was made again of shoal.db.copy" in store.database.repaired[0]
    assert content(state) == before


def test_a_damaged_index_is_made_again_when_it_gives_other_values_than_the_table(state: Path) -> None:
    path = state / "shoal.db"
    with closing(sqlite3.connect(path)) as database:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'sqlite_autoindex_reports_1'"
        (page,) = database.execute(query).fetchone()
    with closing(Store(state)) as store:
        known = store.reports.of_round("toy", 1)
        data = bytearray(path.read_bytes())
        place = data.index(b"d1", (page - 1) * 4096)
        data[place + 1] = ord("4")  # the order of the keys is the same: d0, d4, d2
        path.write_bytes(data)
    with closing(Store(state)) as store:
        assert store.database.repaired
        assert store.reports.of_round("toy", 1) == known
