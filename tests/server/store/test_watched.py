"""What devices say of their data, on disk: one answer of each in three months, as sums, gone with the run."""

from dataclasses import replace

from fedserver.store.journal.watched import DAYS_BETWEEN, DAYS_KEPT, Answer
from fedserver.store.store import Store
from shoal.core.server_kit.drift_answers import Day

SAID = Answer("mnist", "mnist@10", "c0", "d0", 1000, True)


def test_a_device_counts_once_and_again_after_three_months(store: Store) -> None:
    watched = store.journal.watched
    assert watched.add(SAID)
    assert not watched.add(SAID)
    assert not watched.add(replace(SAID, cluster="c1", moved=False)), "in no other cluster either"
    assert not watched.add(replace(SAID, day=1000 + DAYS_BETWEEN - 1))
    assert watched.add(replace(SAID, device="d1", moved=False))
    assert watched.all() == {("mnist@10", "c0"): [Day(1000, 2, 1)]}
    assert watched.add(replace(SAID, day=1000 + DAYS_BETWEEN))
    assert watched.add(replace(SAID, device="d2", day=900)), "the server's clock was set back"
    assert watched.all()["mnist@10", "c0"] == [
        Day(900, 1, 1),
        Day(1000, 2, 1),
        Day(1000 + DAYS_BETWEEN, 1, 1),
    ]


def test_old_sums_go_and_the_rest_with_the_run(store: Store) -> None:
    watched = store.journal.watched
    watched.add(SAID)
    watched.add(replace(SAID, device="d1", cluster="", day=1001 + DAYS_KEPT))
    assert list(watched.all()) == [("mnist@10", "")]
    store.runs.remove("mnist")
    assert watched.all() == {}
