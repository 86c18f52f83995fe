"""The history of a run on disk: page by page, bounded, and gone with the run."""

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedserver.store.journal import timeline
from fedserver.store.journal.outcomes import KEPT
from fedserver.store.journal.timeline import Place
from fedserver.store.store import Storage, Store
from shoal.core.engine.round.attendance import Memory
from shoal.core.errors import DataFault
from shoal.core.server_kit.history.records import (
    ClusterRound,
    DeviceRound,
    Digest,
    RoundHistory,
    digest_of,
)
from tests.server.store.samples import RECORD, checkpoint, closed


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store(tmp_path / "state")
    opened.runs.add(RECORD, checkpoint(opened, 0.0))
    yield opened
    opened.close()


def play(store: Store, rounds: int, devices: int = 20, run: str = "mnist") -> None:
    """Rounds of devices whose cluster never changes, so that only the first one assigns them."""
    assigned: dict[str, str] = {}
    for number in range(1, rounds + 1):
        found = tuple(
            DeviceRound(f"d{n}", "c0", 10, 0.1 * n * number, worked=1.0 * n) for n in range(devices)
        )
        history = RoundHistory(number, "training", clusters=(ClusterRound("c0"),), devices=found)
        history = replace(history, digest=digest_of(history, assigned))
        assigned |= history.digest.assigned if history.digest else {}
        store.runs.save_round(run, history, checkpoint(store, 1.0, run), 0, Memory())


def read(store: Store, *, devices: bool = True) -> list[RoundHistory]:
    found: list[RoundHistory] = []
    while page := store.journal.timeline.read("mnist", found[-1].round if found else 0, devices=devices):
        found += page
    return found


def test_rounds_are_read_page_by_page(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeline, "ROUNDS", 3)
    monkeypatch.setattr(timeline, "DEVICES", 40)
    play(store, 7)
    assert [each.round for each in store.journal.timeline.read("mnist")] == [1, 2]
    assert [each.round for each in store.journal.timeline.read("mnist", devices=False)] == [1, 2, 3]
    assert [each.round for each in read(store)] == list(range(1, 8))
    assert all(len(each.devices) == 20 for each in read(store))
    assert store.journal.timeline.read("mnist", 7) == store.journal.timeline.read("other") == []


def test_without_devices_each_round_has_a_digest(store: Store) -> None:
    play(store, 2)
    store.runs.save_round("mnist", closed(3), checkpoint(store, 1.0), 0, Memory())
    assert [each.digest for each in read(store)] == [None] * 3
    first, second, third = (each.digest for each in read(store, devices=False))
    assert first == Digest({f"d{n}": "c0" for n in range(20)}, "d19", 19.0)
    assert second == Digest({}, "d19", 19.0)
    assert third == Digest(), "of a round of which little is known"
    assert [each.round for each in store.journal.timeline.read("mnist", 1, most=1)] == [2]


def test_outcomes_follow_the_rounds_and_forget_those_that_are_dropped(store: Store) -> None:
    play(store, 2)
    assert (store.runs.outcomes.of("mnist").last, store.runs.outcomes.of("other").last) == (2, 0)
    lost = closed(3, abandoned="too few devices", devices=(DeviceRound("d1", missing="it left"),))
    store.runs.save_round("mnist", lost, checkpoint(store, 1.0), 1, Memory())
    measured = RoundHistory(4, "final evaluation", progress=3, accuracy=0.5, measured_on="test")
    store.runs.save_round("mnist", measured, checkpoint(store, 2.0), 0, Memory())
    found = store.runs.outcomes.of("mnist")
    assert (found.last, found.abandoned, found.accuracies[3]) == (4, {3: "too few devices"}, 0.5)
    assert found.missing == {}
    store.runs.drop_checkpoint("mnist", 5)
    found = store.runs.outcomes.of("mnist")
    assert (found.last, found.missing, 3 in found.accuracies) == (3, {"d1": "it left"}, False)


def spoil(store: Store, *rounds: int) -> None:
    """Damage these rounds for good: what is restored of them cannot be read either."""
    with store.database.transaction():
        for number in rounds:
            store.database.execute("UPDATE timeline SET summary = x'00' WHERE round = ?", (number,))


@pytest.mark.parametrize("lost", [(1,), (2,), (1, 2, 3), (3, 4), (4, 5), (5,)])
def test_a_round_that_is_lost_hides_no_other_from_operators(store: Store, lost: tuple[int, ...]) -> None:
    play(store, 5)
    spoil(store, *lost)
    there = [number for number in range(1, 6) if number not in lost]
    for most in (1, 2, 500):
        found: list[int] = []
        while page := store.journal.timeline.readable("mnist", found[-1] if found else 0, most=most):
            assert len(page) <= most
            found += [each.round for each in page]
        assert found == there
    with pytest.raises(DataFault):  # what decides by it has to know
        read(store)
    assert store.runs.outcomes.of("mnist").last == there[-1]


def test_outcomes_of_the_runs_of_years_do_not_stay_in_memory(store: Store) -> None:
    runs = [f"run-{number}" for number in range(2 * KEPT)]
    for run in runs:
        store.runs.add(replace(RECORD, run=run), checkpoint(store, 0.0))
        store.runs.save_round(run, closed(1), checkpoint(store, 1.0, run), 0, Memory())
    for _ in range(2):
        assert [store.runs.outcomes.of(run).last for run in runs] == [1] * len(runs)
        assert len(store.runs.outcomes._known) == KEPT


def test_what_is_too_much_goes_from_the_oldest_rounds_devices_first(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeline, "LARGEST", 4000)
    play(store, 30)
    found = read(store)
    known = [bool(each.devices) for each in found]
    assert known == sorted(known)
    assert known[0] is False
    assert known[-1] is True
    assert found[-1].round == 30
    ((size,),) = store.database.query("SELECT sum(length(summary) + length(devices)) FROM timeline")
    assert size <= 4000
    monkeypatch.setattr(timeline, "LARGEST", 400)
    store.runs.save_round("mnist", closed(31), checkpoint(store, 1.0), 0, Memory())
    assert 1 <= len(read(store)) < 4
    assert read(store)[-1].round == 31


def test_a_device_is_forgotten_in_some_rounds_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The history of years takes long, and others use the store meanwhile."""
    monkeypatch.setattr(timeline, "FORGOTTEN", 2)
    order = list[str]()

    def known(storage: Storage) -> list[list[bool]]:
        """For each run, whether the figures of the device are known of each round."""
        read = storage.journal.timeline.read
        found = [
            [next(each for each in rounds.devices if each.device == "d3") for rounds in read(run)]
            for run in ("mnist", "other")
        ]
        return [[bool(each.examples) and each.loss is not None for each in rounds] for rounds in found]

    def filled(storage: Storage) -> None:
        storage.runs.add(RECORD, checkpoint(storage.store, 0.0))
        storage.runs.add(replace(RECORD, run="other"), checkpoint(storage.store, 0.0, "other"))
        play(storage.store, 3)
        play(storage.store, 2, run="other")

    async def story() -> None:
        storage = await Storage.open(tmp_path / "state")
        await storage.call(filled, storage)
        assert await storage.call(known, storage) == [[True] * 3, [True] * 2]
        real = storage.store.forget_figures

        def forget(device: str, after: Place) -> Place | None:
            order.append(f"after {after}")
            others.append(asyncio.run_coroutine_threadsafe(storage.call(order.append, "another"), loop))
            return real(device, after)

        loop, others = asyncio.get_running_loop(), list[Any]()
        monkeypatch.setattr(storage.store, "forget_figures", forget)
        await storage.forget("d3")
        await asyncio.gather(*map(asyncio.wrap_future, others))
        assert await storage.call(known, storage) == [[False] * 3, [False] * 2]
        found = await storage.call(storage.journal.timeline.read, "mnist")
        assert [len(each.devices) for each in found] == [20] * 3
        assert all(each.examples for each in found[0].devices if each.device != "d3")
        await storage.close()

    asyncio.run(story())
    steps = [each for each in order if each != "another"]
    assert steps == ["after ('', 0)", "after ('mnist', 2)", "after ('other', 1)", "after ('other', 2)"]
    assert order.index("another") < order.index(steps[-1])


def test_a_round_of_which_little_is_known_has_that(store: Store) -> None:
    lost = closed(1, abandoned="the server was restored from an older state")
    store.runs.save_round("mnist", lost, checkpoint(store, 1.0), 1, Memory())
    (found,) = read(store)
    assert (found.abandoned, found.asked, found.seconds) == (lost.abandoned, 2, 0.5)


def test_history_goes_with_the_run_and_with_rounds_that_are_dropped(store: Store) -> None:
    play(store, 3)
    store.runs.drop_checkpoint("mnist", 4)
    assert [each.round for each in read(store)] == [1, 2]
    store.runs.remove("mnist")
    assert store.database.query("SELECT * FROM timeline") == []


def test_a_damaged_round_is_restored_from_its_copy(store: Store, tmp_path: Path) -> None:
    play(store, 2)
    before = read(store)
    with closing(sqlite3.connect(tmp_path / "state" / "shoal.db", isolation_level=None)) as other:
        other.execute("UPDATE timeline SET summary = x'00' WHERE round = 2")
    assert read(store) == before
    assert "row 2 of table timeline was damaged" in store.database.repaired[-1]
