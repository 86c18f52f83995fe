"""What a store has after a stop between any two of its steps: all of a change, or nothing of it."""

import contextlib
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedserver.store.database import Database
from fedserver.store.records import (
    ReportRecord,
)
from fedserver.store.reports import Arrival
from fedserver.store.store import Store
from shoal.core.algorithms.fedavg.server import State
from shoal.core.engine.checkpoint import decode
from shoal.core.engine.round.attendance import Memory
from shoal.core.exchange.tensors import digest
from tests.server.store.conftest import Engine
from tests.server.store.samples import RECORD, blobs_in, checkpoint, closed, model, report, started


class Killed(BaseException):
    """The process ends here."""


class Killer:
    """Lets this many steps on disk happen, and none after that."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, steps: int, database: type[Database]) -> None:
        self.left, self.dead = steps, False
        for owner, name in [
            (os, "fsync"),
            (os, "link"),
            (Path, "unlink"),
            (Path, "rename"),
            (database, "execute"),
        ]:
            monkeypatch.setattr(owner, name, self.wrapped(getattr(owner, name)))

    def wrapped(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*arguments: Any, **options: Any) -> Any:
            self.left -= 1
            self.dead = self.dead or self.left < 0
            if self.dead:
                raise Killed
            return step(*arguments, **options)

        return guarded


def killed_at_each_step(
    engine: Engine, tmp_path: Path, prepare: Callable[[Store], Any]
) -> Iterator[tuple[Path, bool]]:
    """The state folder after a stop at each step of what `prepare` returns; True: it ended without one."""
    for steps in itertools.count():
        state = tmp_path / str(steps)
        store = engine.open(state)
        action = prepare(store)
        with pytest.MonkeyPatch.context() as monkeypatch:
            killer = Killer(monkeypatch, steps, type(store.database))
            with contextlib.suppress(Killed):
                action()
        store.database.connection.close()
        store._release()
        yield state, not killer.dead
        if not killer.dead:
            assert steps > 3
            return


def test_a_report_counts_wholly_or_not_at_all_and_is_uploaded_once_wherever_it_stops(
    engine: Engine, tmp_path: Path
) -> None:
    record: ReportRecord

    def prepare(store: Store) -> Callable[[], None]:
        nonlocal record
        record = report(started(store), "a", 2.0)
        return lambda: store.reports.add([Arrival.of(record)])

    outcomes = set()
    for state, finished in killed_at_each_step(engine, tmp_path, prepare):
        store = engine.open(state)
        store.clean_up()
        found = store.reports.of_round("mnist", 1)
        outcomes.add(len(found))
        assert finished <= len(found)
        for each in found:
            assert digest(store.blobs.read(each.payload.weights()[0])) == digest(model(2.0))
        if not found:
            store.reports.add([Arrival.of(record)])
        assert blobs_in(engine, state) == {digest(model(1.0)), digest(model(2.0))}
        assert not any(engine.blobs(state, "partial"))
        store.close()
    assert outcomes == {0, 1}


def test_a_round_is_over_wholly_or_not_at_all_wherever_it_stops(engine: Engine, tmp_path: Path) -> None:
    def prepare(store: Store) -> Callable[[], None]:
        started(store).reports.add([Arrival.of(report(store, "a", 2.0))])
        return lambda: store.runs.save_round("mnist", closed(1), checkpoint(store, 3.0), 0, Memory())

    outcomes = set()
    for state, finished in killed_at_each_step(engine, tmp_path, prepare):
        store = engine.open(state)
        store.clean_up()
        (found,) = store.runs.all()
        outcomes.add(found.round)
        value = decode(State, store.runs.checkpoint("mnist"), store.blobs.read).models["global"]["w"][0, 0]
        needed = {digest(model(1.0)), digest(model(2.0 if found.round == 1 else 3.0))}
        assert (found.round, found.asked, value) in [(1, ("a", "b"), 1.0), (2, (), 3.0)]
        assert finished <= (found.round == 2)
        assert blobs_in(engine, state) == needed
        assert not any(engine.blobs(state, "tmp"))
        store.close()
    assert outcomes == {1, 2}


def test_a_run_begins_wholly_or_not_at_all_wherever_it_stops(engine: Engine, tmp_path: Path) -> None:
    def prepare(store: Store) -> Callable[[], None]:
        return lambda: store.runs.add(RECORD, checkpoint(store, 1.0))

    outcomes = set()
    for state, finished in killed_at_each_step(engine, tmp_path, prepare):
        store = engine.open(state)
        store.clean_up()
        outcomes.add(len(store.runs.all()))
        assert finished <= len(store.runs.all())
        assert len(blobs_in(engine, state)) == len(store.runs.all())
        store.close()
    assert outcomes == {0, 1}
