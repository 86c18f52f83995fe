"""What newcomers were answered, on disk: one record for each answer, bounded, and gone with the run."""

from dataclasses import replace

import pytest

from fedserver.rpc.wire.operator_wire import PLACEMENT
from fedserver.store.journal import placements
from fedserver.store.journal.newcomers import EVIDENCE, OUTCOMES, PlacementRecord
from fedserver.store.journal.watched import Answer
from fedserver.store.records import ReleaseRecord
from fedserver.store.store import Store
from shoal.core.errors import NotFound

PLACED = PlacementRecord("mnist", "d1", "descriptor", "placed", "c0", "c1", 0.75, "near", ("c0",), 4)
CHOSEN = PlacementRecord("mnist", "d2", "wish", "handed_out", reason="it chooses", models=("c0", "c1"))


def stored(store: Store, **which: str | int) -> list[PlacementRecord]:
    """The records without their times and numbers."""
    found = store.journal.placements.read(**which)  # type: ignore[arg-type]
    return [replace(each, since=0.0, at=0.0, number=0) for each in found]


def test_answers_are_recorded_and_repeated_ones_are_counted(store: Store) -> None:
    record = store.journal.placements
    for each in (PLACED, CHOSEN):
        record.add(each)
    first = record.read()
    assert stored(store) == [PLACED, CHOSEN]
    surer = replace(PLACED, confidence=0.8, progress=5)
    record.add(surer)
    assert stored(store) == [CHOSEN, replace(surer, times=2)], "the newest answer comes last"
    (again,) = record.read(after=first[-1].number)
    assert again.since == first[0].since <= first[0].at <= again.at
    record.add(replace(PLACED, cluster="c1", models=("c1",)))
    assert [(each.cluster, each.times) for each in stored(store, device="d1")] == [("c0", 2), ("c1", 1)]
    assert stored(store, run="other") == []


def test_what_is_too_much_goes_oldest_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placements, "MAX_OF_DEVICE", 2)
    monkeypatch.setattr(placements, "MAX_RECORDS", 5)
    store.journal.placements.add(CHOSEN)
    for number in range(4):
        store.journal.placements.add(replace(PLACED, cluster=f"c{number}", reason="x" * 5000))
    assert [each.cluster for each in stored(store)] == ["", "c2", "c3"], "one device cannot displace others"
    assert {len(each.reason) for each in stored(store, device="d1")} == {placements.TEXT}
    for number in range(5):
        store.journal.placements.add(replace(PLACED, device=f"e{number}"))
    assert [each.device for each in stored(store)] == [f"e{number}" for number in range(5)]


def test_they_are_read_page_by_page_and_go_with_the_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placements, "PAGE", 2)
    for number in range(3):
        store.journal.placements.add(replace(PLACED, device=f"e{number}"))
    page = store.journal.placements.read("mnist")
    assert [each.device for each in page] == ["e0", "e1"]
    assert [each.device for each in store.journal.placements.read("mnist", "", page[-1].number)] == ["e2"]
    store.runs.remove("mnist")
    assert store.journal.placements.read() == []


def test_newcomers_that_fit_nowhere_again_and_again_are_found(store: Store) -> None:
    record, lost = store.journal.placements, replace(PLACED, outcome="abstained", models=())
    for _ in range(2):
        record.add(lost)
        record.add(replace(lost, device="d3"))
    assert record.unplaced(0.0) == []
    record.add(replace(lost, outcome="nearest", cluster="c1"))
    record.add(replace(lost, device="d3"))
    assert record.unplaced(0.0) == [("mnist", "d1", 3), ("mnist", "d3", 3)]
    assert record.unplaced(2e10) == [], "not if it was long ago"
    record.add(replace(PLACED, device="d3"))
    record.add(replace(lost, device="d3"))
    assert record.unplaced(0.0) == [("mnist", "d1", 3)], "it has been placed meanwhile"


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("evidence", EVIDENCE)
def test_every_kind_travels_to_operators(evidence: str, outcome: str) -> None:
    for found in (PLACED, CHOSEN):
        each = replace(found, evidence=evidence, outcome=outcome, since=1.8e9, at=1.8e9 + 0.5, number=1 << 40)
        assert PLACEMENT.from_pb(PLACEMENT.to_pb(each)) == each


def test_of_a_run_that_was_removed_meanwhile_it_is_said_and_what_was_released_stays(store: Store) -> None:
    store.runs.remove("mnist")
    for _ in range(2):
        with pytest.raises(NotFound, match="run 'mnist' was removed"):
            store.journal.placements.add(PLACED)
    with pytest.raises(NotFound, match="run 'mnist' was removed"):
        store.journal.watched.add(Answer("mnist", "mnist@10", "c0", "d1", 1000, True))
    for _ in range(2):
        store.journal.note_releases([ReleaseRecord("mnist", "d1", "weights")])
    assert store.runs.statements.of("mnist") == {}
    found = store.runs.statements.of_all()
    assert found is not None
    assert len(found["d1"].unprotected) == 1
