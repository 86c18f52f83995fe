"""The audit log: a line for what happened and none for what did not; every change to it is found."""

import contextlib
import errno
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedserver.store.identities import audit
from fedserver.store.identities.audit import FILE, NO_HASH, Event, Head, follow, link, verify
from fedserver.store.store import Store
from shoal.core.errors import NotFound, StorageFault

LINES = 6


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A folder with a log of some lines, and no server on it."""
    with closing(Store(tmp_path / "s")) as store:
        for number in range(LINES):
            store.identities.audit.note(Event.APPROVED, device=f"d{number}", key=f"ä\n{number}")
    return tmp_path / "s"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedserver.store.identities.audit.COPY_SECONDS", 0.0)


def lines(state: Path) -> list[str]:
    return (state / FILE).read_text().splitlines()


def rewrite(state: Path, kept: list[str]) -> None:
    (state / FILE).write_text("".join(f"{line}\n" for line in kept))


def test_a_line_follows_the_one_before() -> None:
    head, first = link(Head(), 0.0, Event.START, {"address": "h:1", "missing": None})
    assert follow(Head(), first) == (head, "")
    assert '"previous":"' + NO_HASH in first
    assert "missing" not in first
    assert '"at":"1970-01-01T00:00:00.000Z"' in first
    after, second = link(head, 1.0, Event.STOP, {"reason": "x" * 9999})
    assert follow(head, second) == (after, "")
    assert len(second) < 1000
    assert follow(Head(), second)[1] == "its number is 2, but 1 was expected"
    assert follow(Head(1, "0" * 64), second)[1] == "it does not follow the previous line"
    for broken in ("", "[]", "{}", "x", second[:-1], second.replace("{", "{ ", 1)):
        assert follow(head, broken)[1]


def test_a_whole_log_is_whole(state: Path) -> None:
    verdict = verify(state)
    assert (verdict.head.number, verdict.wrong) == (LINES, "")
    assert len(lines(state)) == LINES  # a line break in a fact made none in the file
    assert verify(state, verdict.head).expected
    assert not verify(state, Head(LINES, "0" * 64)).expected
    assert (state / FILE).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("at", range(LINES))
def test_a_line_that_is_changed_taken_out_or_doubled_is_named(state: Path, at: int) -> None:
    good = lines(state)
    for changed in (
        [*good[:at], good[at].replace("approved", "revoked"), *good[at + 1 :]],
        [*good[:at], *good[at + 1 :]],
        [*good[: at + 1], *good[at:]],
        [*good[:at], good[at].replace('"number":', '"number": '), *good[at + 1 :]],
    ):
        rewrite(state, changed)
        assert f"line {at + 1}" in verify(state).wrong or f"line {at + 2}" in verify(state).wrong
    rewrite(state, good)
    assert verify(state).wrong == ""


def test_last_lines_that_are_taken_out_are_missed(state: Path) -> None:
    good = lines(state)
    for kept in range(LINES):
        rewrite(state, good[:kept])
        assert verify(state).wrong == f"line {kept + 1} is missing in {FILE}"


def test_lines_that_were_made_up_are_not_in_the_database(state: Path) -> None:
    head = verify(state).head
    _, forged = link(head, 0.0, Event.APPROVED, {"device": "evil"})
    rewrite(state, [*lines(state), forged])
    assert verify(state).wrong == f"line {LINES + 1} of {FILE} is not in the database"
    chain, head = [], Head()
    for number in range(LINES):
        head, line = link(head, float(number), Event.APPROVED, {"device": "evil"})
        chain.append(line)
    rewrite(state, chain)
    assert verify(state).wrong == f"line 1 of {FILE} differs from the database"


def test_rows_that_are_changed_are_found_too(state: Path) -> None:
    with closing(sqlite3.connect(state / "shoal.db")) as database, database:
        database.execute("UPDATE audit SET line = replace(line, 'approved', 'revoked') WHERE number = 3")
    assert verify(state).wrong == f"line 3 of {FILE} differs from the database"


def test_who_rewrites_both_is_found_by_a_head_that_was_kept_elsewhere(state: Path) -> None:
    kept = verify(state).head
    with closing(sqlite3.connect(state / "shoal.db")) as database, database:
        database.execute("DELETE FROM audit WHERE number = ?", (LINES,))
    rewrite(state, lines(state)[:-1])
    verdict = verify(state, kept)
    assert (verdict.wrong, verdict.expected) == ("", False)


def test_what_is_rolled_back_leaves_no_line(state: Path) -> None:
    with closing(Store(state)) as store:
        with contextlib.suppress(ZeroDivisionError), store.database.transaction():
            store.identities.audit.record(Event.APPROVED, device="d0")
            raise ZeroDivisionError
        store.identities.audit.note(Event.STOP)
    assert len(lines(state)) == LINES + 1
    assert verify(state).wrong == ""


def test_a_file_that_a_crash_left_behind_is_completed_at_the_start(state: Path) -> None:
    good = lines(state)
    for kept, rest in ((LINES - 1, ""), (LINES - 1, good[-1][:40]), (0, ""), (0, "{"), (2, good[2][:-1])):
        rewrite(state, good[:kept])
        with (state / FILE).open("a") as file:
            file.write(rest)
        Store(state).close()
        assert lines(state) == good
    (state / FILE).unlink()
    Store(state).close()
    assert lines(state) == good


def test_a_file_of_another_history_is_set_aside_and_kept(state: Path) -> None:
    """As after a backup of only the database was restored."""
    good = lines(state)
    _, more = link(verify(state).head, 0.0, Event.APPROVED, {"device": "later"})
    rewrite(state, [*good, more])
    Store(state).close()
    (aside,) = state.glob(f"{FILE}.*")
    assert aside.read_text().splitlines() == [*good, more]
    assert lines(state)[:-1] == good
    assert "log-set-aside" in lines(state)[-1]
    assert verify(state).wrong == ""


def test_a_file_that_cannot_be_written_stops_nothing_and_is_made_up_for(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def full(path: object, *arguments: int) -> int:
        if str(path).endswith(FILE):
            raise OSError(28, "No space left on device")
        return real(path, *arguments)  # type: ignore[arg-type]

    with closing(Store(state)) as store:
        with monkeypatch.context() as patched:
            patched.setattr(os, "open", full)
            store.identities.audit.note(Event.APPROVED, device="d0")
            assert len(lines(state)) == LINES
        store.identities.audit.note(Event.REVOKED, device="d0")
        assert len(lines(state)) == LINES + 2
    assert verify(state).wrong == ""


def test_a_file_that_a_start_cannot_read_is_not_written_from_the_beginning(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(path: Path) -> str:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(audit, "_last_line", failing)
        store = Store(state)
    before = lines(state)
    store.identities.audit.note(Event.START)
    store.close()
    assert lines(state)[:-1] == before
    assert not verify(state).wrong


def test_where_there_is_no_log_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=FILE):
        verify(tmp_path)
    (tmp_path / FILE).write_text("")
    with pytest.raises(StorageFault):
        verify(tmp_path)


def test_a_line_whose_content_was_changed_does_not_follow() -> None:
    _, line = link(Head(), 0.0, Event.APPROVED, {"device": "d0"})
    assert follow(Head(), line)[1] == ""
    assert follow(Head(), line.replace('"d0"', '"d1"'))[1] == "its content was changed"
    assert follow(Head(), line.replace(",", ", ", 1))[1] == "its content was changed"
