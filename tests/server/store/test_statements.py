"""What devices have released in a run: added up as rows come, it is the same as made of all rows."""

import random
from dataclasses import replace
from typing import Any

import pytest

from fedserver.store.journal.statements import KEPT
from fedserver.store.records import VOTE, ReleaseRecord
from fedserver.store.store import Store
from shoal.core.privacy.cost import ORDERS
from tests.server.store.released import releases, statements
from tests.server.store.samples import RECORD, checkpoint


def some(chance: random.Random, number: int) -> ReleaseRecord:
    """A release of some device: in the open, of a descriptor, of weights, or of a vote."""
    device = f"d{chance.randrange(4)}"
    kind = chance.choice(("weights", "bounds", "descriptor", "training", "vote"))
    if kind in ("weights", "bounds"):
        return ReleaseRecord("mnist", device, kind)
    curve = tuple(sorted(chance.random() for _ in ORDERS)) if kind in ("training", "vote") else ()
    delta, group = chance.choice((1e-5, 1e-6, 1e-7)), chance.choice((1, 2, 5))
    name = f"{VOTE if kind == 'vote' else ''}{number:064x}"
    return ReleaseRecord("mnist", device, name, 0.0 if curve else chance.random(), delta, group, curve)


@pytest.mark.parametrize("seed", range(5))
def test_what_is_added_up_is_what_all_rows_say(store: Store, seed: int) -> None:
    chance = random.Random(seed)
    assert store.runs.statements.of("mnist") == {}
    for step in range(6):
        store.journal.note_releases(some(chance, 100 * step + each) for each in range(chance.randrange(12)))
        for _ in range(2):
            found = store.runs.statements.of("mnist")
            assert found == statements(releases(store.database, "mnist"))
            assert list(found) == sorted(found)
    assert any(each.cost for each in found.values())
    assert any(each.unprotected for each in found.values())


def test_those_of_many_runs_do_not_stay_in_memory_and_are_the_same(store: Store) -> None:
    runs = [f"run-{number}" for number in range(2 * KEPT)]
    for run in runs:
        store.runs.add(replace(RECORD, run=run), checkpoint(store, 0.0))
        store.journal.note_releases([ReleaseRecord(run, "d0", "weights")])
    for _ in range(2):
        assert all(list(store.runs.statements.of(run)) == ["d0"] for run in runs)
        assert len(store.runs.statements._known) == KEPT


def test_a_run_that_gets_the_name_of_a_removed_one_has_none_of_its_releases(store: Store) -> None:
    first = ReleaseRecord("mnist", "d0", "weights")
    store.journal.note_releases([first])
    assert list(store.runs.statements.of("mnist")) == ["d0"]
    store.runs.remove("mnist")
    store.runs.add(RECORD, checkpoint(store, 0.0))
    assert store.runs.statements.of("mnist") == {}
    store.journal.note_releases([ReleaseRecord("mnist", "d1", "weights")])
    assert list(store.runs.statements.of("mnist")) == ["d1"]
    assert sorted(statements(releases(store.database))) == ["d0", "d1"], "the loss stays known"


@pytest.mark.parametrize("seed", range(3))
def test_what_is_added_up_over_all_runs_counts_each_release_once(
    store: Store, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr("fedserver.store.journal.statements.MANY", 3)
    chance, other = random.Random(seed), replace(RECORD, run="other", spec=replace(RECORD.spec, name="other"))

    def all_runs() -> dict[str, Any]:
        while (found := store.runs.statements.of_all()) is None:
            pass
        return found

    store.runs.add(other, checkpoint(store, 0.0))
    for step in range(6):
        made = [some(chance, 100 * step + each) for each in range(chance.randrange(12))]
        second = "other" if step <= 3 else "third"
        again = [replace(each, run=second) for each in made if chance.random() < 0.5]
        store.journal.note_releases([*made, *again])
        if step == 3:
            store.runs.remove("other")  # its releases stay known
            store.runs.add(replace(other, run="third"), checkpoint(store, 0.0))
        expected, found = statements(releases(store.database)), all_runs()
        assert list(found) == list(expected)
        for device, each in found.items():
            assert each.protected == pytest.approx(expected[device].protected)
            assert (each.delta, each.group_size) == (expected[device].delta, expected[device].group_size)
            assert sorted(each.unprotected) == sorted(expected[device].unprotected)
            assert each.trained == expected[device].trained
    assert all_runs() == found
