"""What marks say of a server's history, and what they cannot be made to say."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedserver.store.store import Store
from tests.server.store.test_store import RECORD, checkpoint, report


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "state")
    opened.boot()
    yield opened
    opened.close()


def older(store: Store, tmp_path: Path) -> Store:
    """Another server on a copy of the folder as it is now."""
    store._database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    copy = Store(tmp_path / "copy")
    copy.boot()
    return copy


def test_a_server_that_goes_on_doubts_none_of_its_marks(store: Store, tmp_path: Path) -> None:
    marks = [store.mark()]
    store.add_run(RECORD, checkpoint(store, 1.0))
    marks.append(store.mark())
    store.add_report(report(store, "a", 2.0))
    marks.append(store.mark())
    store.close()
    again = Store(tmp_path / "state")
    again.boot()
    marks.append(again.mark())
    assert len(set(marks)) == 4
    assert [again.doubt("d", mark) for mark in marks] == [""] * 4
    assert again.doubts() == {}
    again.close()


def test_what_happened_after_the_copy_is_doubted_and_what_was_before_is_not(
    store: Store, tmp_path: Path
) -> None:
    store.add_run(RECORD, checkpoint(store, 1.0))
    before = store.mark()
    copy = older(store, tmp_path)
    store.add_report(report(store, "a", 2.0))
    assert copy.doubt("d", before) == ""
    assert copy.doubt("d", store.mark()) == "revision 2 of start 1, which ended here at 1"
    copy.close()
    copy = Store(tmp_path / "copy")  # a restart forgets no doubt
    assert list(copy.doubts()) == ["d"]
    copy.close()


def test_of_two_servers_that_go_on_from_one_folder_each_doubts_the_other(
    store: Store, tmp_path: Path
) -> None:
    copy = older(store, tmp_path)
    store.boot()
    assert copy.doubt("d", store.mark()) == "start 2, which this server has not made"
    assert store.doubt("d", copy.mark()) == "start 2, which this server has not made"
    copy.close()


def test_what_is_accepted_is_not_doubted_again_and_what_comes_after_is(store: Store, tmp_path: Path) -> None:
    store.add_run(RECORD, checkpoint(store, 1.0))
    copy = older(store, tmp_path)
    for _ in range(3):
        store.boot()
    lost = store.mark()
    assert copy.doubt("d", lost)
    copy.accept()
    assert copy.doubts() == {}
    assert (copy.doubt("d", lost), copy.doubt("e", copy.mark())) == ("", "")
    copy.boot()
    for _ in range(3):
        store.boot()
    assert copy.doubt("d", store.mark())  # the other one is still at work
    copy.close()


@pytest.mark.parametrize(
    "what", ["", "x", "1.2.3", "99.aa.7.{code}", "a.b.c.d", "-1.a.1.b", "9" * 200 + ".a.1.b"]
)
def test_a_mark_that_this_server_did_not_make_says_nothing(store: Store, what: str) -> None:
    code = store.mark().rpartition(".")[2]
    assert store.doubt("d", what.replace("{code}", code)) == ""
    assert store.doubt("d", store.mark() + "\N{LATIN SMALL LETTER E WITH ACUTE}") == ""
    assert store.doubts() == {}


def test_the_mark_of_another_server_says_nothing(store: Store, tmp_path: Path) -> None:
    other = Store(tmp_path / "other")
    for _ in range(5):
        other.boot()
    assert store.doubt("d", other.mark()) == ""
    other.close()
