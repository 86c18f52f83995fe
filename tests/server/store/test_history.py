"""What marks say of a server's history, and what they cannot be made to say."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedserver.store.reports import Arrival
from fedserver.store.store import Store
from tests.server.store.samples import RECORD, checkpoint, report


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "state")
    opened.history.begin_start()
    yield opened
    opened.close()


def older(store: Store, tmp_path: Path) -> Store:
    """Another server on a copy of the folder as it is now."""
    store.database.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    copy = Store(tmp_path / "copy")
    copy.history.begin_start()
    return copy


def test_a_server_that_goes_on_doubts_none_of_its_marks(store: Store, tmp_path: Path) -> None:
    marks = [store.history.mark()]
    store.runs.add(RECORD, checkpoint(store, 1.0))
    marks.append(store.history.mark())
    store.reports.add([Arrival.of(report(store, "a", 2.0))])
    marks.append(store.history.mark())
    store.close()
    again = Store(tmp_path / "state")
    again.history.begin_start()
    marks.append(again.history.mark())
    assert len(set(marks)) == 4
    assert [again.history.check_mark("d", mark) for mark in marks] == [""] * 4
    assert again.history.conflicts() == {}
    again.close()


def test_what_happened_after_the_copy_is_doubted_and_what_was_before_is_not(
    store: Store, tmp_path: Path
) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    before = store.history.mark()
    copy = older(store, tmp_path)
    store.reports.add([Arrival.of(report(store, "a", 2.0))])
    assert copy.history.check_mark("d", before) == ""
    assert (
        copy.history.check_mark("d", store.history.mark()) == "revision 2 of start 1, which ended here at 1"
    )
    copy.close()
    copy = Store(tmp_path / "copy")  # a restart forgets no doubt
    assert list(copy.history.conflicts()) == ["d"]
    copy.close()


def test_of_two_servers_that_go_on_from_one_folder_each_doubts_the_other(
    store: Store, tmp_path: Path
) -> None:
    copy = older(store, tmp_path)
    store.history.begin_start()
    assert copy.history.check_mark("d", store.history.mark()) == "start 2, which this server does not know"
    assert store.history.check_mark("d", copy.history.mark()) == "start 2, which this server does not know"
    copy.close()


def test_what_is_accepted_is_not_doubted_again_and_what_comes_after_is(store: Store, tmp_path: Path) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    copy = older(store, tmp_path)
    for _ in range(3):
        store.history.begin_start()
    lost = store.history.mark()
    assert copy.history.check_mark("d", lost)
    copy.history.accept()
    assert copy.history.conflicts() == {}
    assert (copy.history.check_mark("d", lost), copy.history.check_mark("e", copy.history.mark())) == ("", "")
    copy.history.begin_start()
    for _ in range(3):
        store.history.begin_start()
    assert copy.history.check_mark("d", store.history.mark())  # the other one is still at work
    copy.close()


@pytest.mark.parametrize(
    "what", ["", "x", "1.2.3", "99.aa.7.{code}", "a.b.c.d", "-1.a.1.b", "9" * 200 + ".a.1.b"]
)
def test_a_mark_that_this_server_did_not_make_says_nothing(store: Store, what: str) -> None:
    code = store.history.mark().rpartition(".")[2]
    assert store.history.check_mark("d", what.replace("{code}", code)) == ""
    assert store.history.check_mark("d", store.history.mark() + "\N{LATIN SMALL LETTER E WITH ACUTE}") == ""
    assert store.history.conflicts() == {}


def test_the_mark_of_another_server_says_nothing(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    for _ in range(5):
        other.history.begin_start()
    assert store.history.check_mark("d", other.history.mark()) == ""
    other.close()
