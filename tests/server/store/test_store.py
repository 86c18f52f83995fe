"""What is on disk holds: one server at a time, whole transitions, and nothing that is not needed."""

import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from fedserver.store.content.blob_cache import BlobCache
from fedserver.store.journal.journal import LOG_LINES
from fedserver.store.journal.timeline import BEGIN
from fedserver.store.records import (
    DeviceRecord,
    RunRecord,
    Standing,
    Traffic,
)
from fedserver.store.reports import Arrival
from fedserver.store.runs import VERSIONS
from fedserver.store.store import Store
from shoal.core.algorithm import APART
from shoal.core.algorithms.fedavg.server import State
from shoal.core.engine.checkpoint import blobs_of, decode
from shoal.core.engine.round.attendance import Memory
from shoal.core.errors import ConfigError, StorageFault, Taken
from shoal.core.exchange.parts import Descriptor, Moments
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.tensors import digest
from shoal.core.exchange.wire import payload_to_bytes
from shoal.core.types import Tensors
from tests.server.store.conftest import Engine
from tests.server.store.samples import RECORD, SPEC, arrive, blobs_in, checkpoint, closed, model, report
from tests.waiting import HANG


@pytest.fixture
def store(engine: Engine, tmp_path: Path) -> Iterator[Store]:
    opened = engine.open(tmp_path / "state")
    yield opened
    opened.close()


def test_a_run_comes_back_as_it_was(store: Store) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    store.runs.open_round("mnist", ("a", "b"), "training round 1")
    store.runs.step_in("mnist", ("c",))
    store.runs.step_in("mnist", ("d", "e"))
    (found,) = store.runs.all()
    opened = found.opened
    assert 0.0 <= time.time() - opened < HANG
    assert found == RunRecord(
        "mnist",
        SPEC,
        1.5,
        Standing.ACTIVE,
        "",
        1,
        ("a", "b"),
        "training round 1",
        0,
        (("c",), ("d", "e")),
        opened,
    )
    state = decode(State, store.runs.checkpoint("mnist"), store.blobs.read)
    assert digest(state.models["global"]) == digest(model(1.0))


def test_reports_count_once_and_come_in_the_order_of_devices(store: Store) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    second, first = report(store, "b", 2.0), report(store, "a", 3.0)
    store.reports.add([Arrival.of(second)])
    store.reports.add([Arrival.of(first)])
    assert [each.device for each in store.reports.of_round("mnist", 1)] == ["a", "b"]
    found = store.reports.get("mnist", 1, "b")
    assert found is not None
    assert found == second
    assert found.data != first.data
    assert digest(store.blobs.read(found.payload.weights()[0])) == digest(model(2.0))
    with pytest.raises(Taken, match="counts already"):
        store.reports.add([Arrival.of(report(store, "b", 2.0))])


def test_same_does_not_care_for_the_order_of_the_parts_but_for_every_bit() -> None:
    def described(value: float) -> Descriptor:
        return Descriptor(Moments(np.array([[value]]), np.array([[1.0]]), np.array([2.0])), "a" * 64)

    def same(first: Payload, second: Payload) -> bool:
        return payload_to_bytes(first) == payload_to_bytes(second)

    first = Payload("described", {"descriptor": described(0.1), "examples": 3})
    assert same(first, Payload("described", {"examples": 3, "descriptor": described(0.1)}))
    assert not same(first, Payload("described", {"examples": 3, "descriptor": described(0.1 + 2e-17)}))
    assert not same(Payload("x", {"a": 1}), Payload("x", {"a": 1.0}))
    assert not same(Payload("x", {"a": 1}), Payload("x", {"a": True}))


def test_the_last_versions_are_kept_and_older_blobs_are_not(engine: Engine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = engine.open(state)
    store.runs.add(RECORD, checkpoint(store, 0.0))
    for number in range(1, VERSIONS + 3):
        store.runs.open_round("mnist", ("a",), "training")
        store.reports.add([Arrival.of(report(store, "a", 100.0 + number, number))])
        store.runs.save_round("mnist", closed(number), checkpoint(store, float(number)), 0, Memory())
    newest = VERSIONS + 2
    kept = {digest(model(float(value))) for value in range(newest - VERSIONS + 1, newest + 1)}
    assert blobs_in(engine, state) == kept
    assert store.clean_up() == ""
    assert [each.round for each in store.journal.timeline.read("mnist")] == list(range(1, newest + 1))
    store.close()


def test_the_blobs_of_a_state_that_an_operator_changed_stay(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path)
    store.runs.add(RECORD, checkpoint(store, 1.0))
    changed = checkpoint(store, 2.0)
    store.runs.change("mnist", SPEC, 1, changed)
    ((number, names),) = store.runs.checkpoints("mnist")
    assert (number, names) == (1, sorted(blobs_of(changed)))
    store.close()
    store = engine.open(tmp_path)
    store.clean_up()
    assert store.runs.checkpoint("mnist") == changed
    assert blobs_in(engine, tmp_path) == set(names)
    store.close()


@dataclass(frozen=True)
class Parted:
    """A state with a part that is stored in a blob of its own, as FLUX's clustering is."""

    models: Mapping[str, Tensors]
    more: tuple[float, ...] | None = field(default=None, metadata=APART)


def test_the_models_of_a_state_are_found_without_a_look_into_them(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path)
    cache, state = BlobCache(store.runs, store.blobs, "mnist"), Parted({"c0": model(1.0)}, (0.5,))
    store.runs.add(RECORD, cache.store_state(Parted, state))
    kept = cache.weights(state.models["c0"])
    store.blobs.remove([kept.blob.sha256])
    assert BlobCache(store.runs, store.blobs, "mnist").models_of(Parted, 1) == {"c0": kept}
    store.close()


def test_what_a_run_remembers_of_its_devices_comes_back(store: Store) -> None:
    store.runs.add(RECORD, checkpoint(store, 0.0))
    memory = Memory(("a", "c"), {"b": 3}, {"train": 1 / 3})
    store.runs.save_round("mnist", closed(1), checkpoint(store, 1.0), 0, memory)
    (found,) = store.runs.all()
    assert found.memory == memory


def test_a_blob_that_another_run_needs_stays(engine: Engine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = engine.open(state)
    store.runs.add(RECORD, checkpoint(store, 1.0))
    other = RunRecord("other", SPEC, 1.5, Standing.ACTIVE, "", 1, (), "", 0)
    store.runs.add(other, checkpoint(store, 2.0, "other"))
    store.reports.add([Arrival.of(report(store, "a", 2.0))])
    store.runs.save_round("mnist", closed(1), checkpoint(store, 3.0), 0, Memory())
    assert digest(model(2.0)) in blobs_in(engine, state)
    task = store.runs.keep("other", model(9.0))
    store.runs.save_round("mnist", closed(2), checkpoint(store, 9.0), 0, Memory())
    store.runs.end("mnist", Standing.FINISHED, "complete", 9.5)
    assert store.blobs.read(task)["w"][0, 0] == 9.0
    store.close()


def test_two_servers_cannot_share_a_folder(tmp_path: Path) -> None:
    first = Store(tmp_path)
    with pytest.raises(ConfigError, match=f"another process .{os.getpid()}"):
        Store(tmp_path)
    first.close()
    Store(tmp_path).close()


def test_a_newer_database_is_refused_and_a_broken_one_named(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.database.execute("UPDATE meta SET schema_version = 99", ())
    store.close()
    with pytest.raises(ConfigError, match="version 99"):
        Store(tmp_path)
    for path in tmp_path.glob("shoal.db*"):
        path.unlink()
    (tmp_path / "shoal.db").write_bytes(b"not a database" * 100)
    with pytest.raises(StorageFault, match=r"shoal\.db"):
        Store(tmp_path)


def test_nobody_else_can_look_into_the_folder(tmp_path: Path) -> None:
    store = Store(tmp_path / "state")
    store.runs.keep("mnist", model(1.0))
    folders = [tmp_path / "state", *(path for path in (tmp_path / "state").rglob("*") if path.is_dir())]
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}
    store.close()


def test_devices_traffic_and_log(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    store.journal.note_devices([DeviceRecord("b", "toy 1", 1.0, 2.0), DeviceRecord("a", "toy 1", 1.0, 2.0)])
    store.journal.note_devices([DeviceRecord("b", "toy 2", 9.0, 9.0)])
    assert store.journal.devices() == [
        DeviceRecord("a", "toy 1", 1.0, 2.0),
        DeviceRecord("b", "toy 2", 1.0, 9.0),
    ]
    store.journal.add_traffic([Traffic("a", "mnist", 10, 1)])
    store.journal.add_traffic([Traffic("a", "mnist", 5, 2)])
    assert store.journal.traffic("mnist") == [Traffic("a", "mnist", 15, 3)]
    monkeypatch.setattr("fedserver.store.journal.journal.LOG_LINES", 3)
    for number in range(5):
        store.journal.log("mnist", f"line {number}", "a")
    lines = store.journal.log_lines("mnist")
    assert [line.text for line in lines] == ["line 2", "line 3", "line 4"]
    assert [line.text for line in store.journal.log_lines("mnist", lines[1].number)] == ["line 4"]
    assert LOG_LINES > 3


def test_the_log_tells_of_a_round_what_was_committed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.runs.add(RECORD, checkpoint(store, 1.0))
    store.runs.open_round("mnist", ("a",), "training", ("open",))
    with monkeypatch.context() as patched:
        patched.setattr("fedserver.store.runs.crash.point", lambda name: _broken())
        with pytest.raises(StorageFault):
            store.runs.save_round("mnist", closed(1), checkpoint(store, 2.0), 0, Memory(), ("lost",))
    assert [line.text for line in store.journal.log_lines("mnist")] == ["open"]
    store.runs.save_round("mnist", closed(1), checkpoint(store, 2.0), 0, Memory(), ("done", "a change"))
    assert [line.text for line in store.journal.log_lines("mnist")] == ["open", "done", "a change"]


def _broken() -> None:
    raise StorageFault("broken", "check the disk")


def test_the_blobs_of_a_report_that_counts_no_more_go_with_it(engine: Engine, tmp_path: Path) -> None:
    store = engine.open(tmp_path / "state")
    store.runs.add(RECORD, checkpoint(store, 1.0))
    store.runs.open_round("mnist", ("a", "b", "c"), "training")
    for device, value in (("a", 2.0), ("b", 3.0), ("c", 1.0)):
        store.reports.add([Arrival.of(report(store, device, value))])
    assert len(blobs_in(engine, tmp_path / "state")) == 3
    store.reports.withdraw("mnist", 1, "a")
    store.reports.withdraw("mnist", 1, "c")  # which has sent the model that the run began with
    assert blobs_in(engine, tmp_path / "state") == {digest(model(1.0)), digest(model(3.0))}
    assert store.forget_figures("b", BEGIN) is None, "no round is over"
    store.forget("b")
    assert blobs_in(engine, tmp_path / "state") == {digest(model(1.0))}
    store.close()


def test_the_scrub_removes_what_a_stop_left_and_says_so(engine: Engine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    store = engine.open(state)
    store.runs.add(RECORD, checkpoint(store, 1.0))
    store.runs.open_round("mnist", ("asked",), "training")
    arrive(store, "asked", model(5.0))
    arrive(store, "gone", model(6.0))
    store.runs.keep("mnist", model(7.0))
    (engine.blobs(state)[0].parents[2] / "tmp" / "half").write_bytes(b"xy")
    store.close()
    store = engine.open(state)
    assert store.clean_up() == "removed 3 unfinished files (50 bytes) left by the last stop"
    assert store.clean_up() == ""
    assert blobs_in(engine, state) == {digest(model(1.0))}
    assert [path.parent.name for path in engine.blobs(state, "partial")] == ["asked"]
    store.close()


def test_a_full_disk_is_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageFault, match=r"No space left on device \(free some space"):
        store.runs.keep("mnist", model(1.0))
    monkeypatch.undo()
    assert list((store.blobs.path("ab" * 32).parents[2] / "tmp").iterdir()) == []


def test_a_blob_stays_as_long_as_the_tasks_of_any_run_need_it(store: Store) -> None:
    model = {"w": np.full(100, 7.0, np.float32)}
    name = store.runs.keep("r1", model).blob.sha256
    assert store.runs.keep("r2", model).blob.sha256 == name
    store.runs.release("r1")
    assert store.blobs.path(name).is_file()
    store.runs.release("r2")
    assert not store.blobs.path(name).exists()
