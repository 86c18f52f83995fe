"""A device's folder: its name, its lock, the result that waits, what it did last."""

import asyncio
import errno
import os
from pathlib import Path

import numpy as np
import pytest

from fedclient.agent.reporter import Reporter
from fedclient.store.state import STATUS, DeviceFolder, Outbox, Status, read_json
from shoal.core.errors import ConfigError, InUse, TooManyFiles
from shoal.core.exchange.link import Report
from shoal.core.exchange.payload import Payload

REPORT = Report("r1", 3, 2, Payload("evaluated", {"accuracy": 0.5, "loss": 1.0, "examples": 7}))


def test_a_name_is_made_once_and_kept(tmp_path: Path) -> None:
    folder = DeviceFolder(tmp_path / "state")
    assert folder.known_device() is None
    assert not folder.root.exists()  # asking leaves no trace
    name = folder.device(None)
    assert name
    assert DeviceFolder(tmp_path / "state").device(None) == name
    assert folder.device(name) == name
    assert DeviceFolder(tmp_path / "other").device(None) != name


def test_a_given_name_is_kept_and_no_other_one_is_taken(tmp_path: Path) -> None:
    folder = DeviceFolder(tmp_path / "state")
    assert folder.device("pi-17") == "pi-17"
    assert DeviceFolder(folder.root).known_device() == "pi-17"
    assert DeviceFolder(folder.root).device(None) == "pi-17"
    with pytest.raises(ConfigError, match="belongs to device pi-17, and this one is called pi-18") as caught:
        DeviceFolder(folder.root).device("pi-18")
    assert "--state" in caught.value.hint
    assert folder.known_device() == "pi-17"


def test_one_agent_works_in_a_folder(tmp_path: Path) -> None:
    folder = DeviceFolder(tmp_path / "state")
    assert not folder.busy()
    with folder.locked():
        assert folder.busy()
        assert folder.root.stat().st_mode & 0o077 == 0
        with (
            pytest.raises(InUse, match="is in use by another fedclient"),
            DeviceFolder(folder.root).locked(),
        ):
            pass
    assert not folder.busy()
    with folder.locked():
        assert folder.busy()


def test_what_a_crash_left_unfinished_is_removed_by_the_next_start(tmp_path: Path) -> None:
    folder = DeviceFolder(tmp_path)
    Outbox(folder.outbox).keep("a" * 64, REPORT)
    others = ("identity", "shadow", "watch")
    for place in (folder.root, folder.outbox, *(folder.root / name for name in others)):
        place.mkdir(exist_ok=True)
        (place / ".writing-1").write_bytes(b"half")
    with folder.locked():
        assert sorted(os.listdir(folder.root)) == sorted(["lock", "outbox", *others])
        assert not any(os.listdir(folder.root / name) for name in others)
        assert os.listdir(folder.outbox) == ["a" * 64]


def test_a_lack_of_file_descriptors_costs_no_result_and_no_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passes, and what is deleted meanwhile was paid for."""
    outbox = Outbox(tmp_path / "outbox")
    outbox.memory.propose("r1", "a" * 64, {"value": np.array(1.0)})
    outbox.keep("a" * 64, REPORT)

    def none_left(path: Path) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", none_left)
        for step in (outbox.pending, lambda: outbox.memory.forget(["r1"]), outbox.clear):
            with pytest.raises(TooManyFiles):
                step()
    assert outbox.pending() == ("a" * 64, REPORT)
    remembered = outbox.memory.before("r1", "b" * 64)
    assert remembered is not None
    assert remembered["value"] == 1.0


def test_the_outbox_holds_one_result(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    assert outbox.pending() is None
    outbox.clear()
    outbox.keep("a" * 64, REPORT)
    outbox.keep("b" * 64, REPORT)
    assert Outbox(tmp_path / "outbox").pending() == ("b" * 64, REPORT)
    outbox.clear()
    assert outbox.pending() is None
    assert os.listdir(tmp_path / "outbox") == []


def test_a_result_that_was_half_written_is_no_result(tmp_path: Path) -> None:
    outbox = Outbox(tmp_path / "outbox")
    outbox.keep("a" * 64, REPORT)
    whole = (tmp_path / "outbox" / ("a" * 64)).read_bytes()
    (tmp_path / "outbox" / ".writing-1").write_bytes(whole)
    (tmp_path / "outbox" / ("a" * 64)).write_bytes(whole[: len(whole) // 2])
    assert outbox.pending() is None


@pytest.mark.parametrize("pause", [3600.0, 0.01])
def test_what_is_reported_in_a_row_is_written_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    monkeypatch.setattr("fedclient.agent.reporter.PAUSE", pause)

    def written() -> object:
        return read_json(tmp_path / STATUS)["doing"]

    async def work() -> None:
        reporter = Reporter(Status("pi", "server"), tmp_path, str, str)
        reporter.doing("first")
        reporter.doing("second")
        if pause > 1.0:
            assert written() == "first"
        else:
            while written() != "second":  # noqa: ASYNC110 - a file
                await asyncio.sleep(pause)
        reporter.stopped()
        assert written() == "stopped"

    asyncio.run(work())


def test_what_was_saved_last_can_be_read(tmp_path: Path) -> None:
    Status("pi", "localhost:1", doing="round 3").save(tmp_path)
    found = read_json(tmp_path / STATUS)
    assert (found["device"], found["doing"]) == ("pi", "round 3")
    assert found["at"] > 0
    for damaged in (b"", b"[1]", b"{", b"\xff"):
        (tmp_path / STATUS).write_bytes(damaged)
        assert read_json(tmp_path / STATUS) == {}
