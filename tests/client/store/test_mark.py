"""The server's mark on the device's disk: the newest one is shown at every hello."""

from pathlib import Path

import pytest

from fedclient.store.state import MAX_MARK, Mark
from shoal.core.errors import DiskFull, StorageFault
from tests.client.memory_server import MemoryServer
from tests.client.visits import Device


def test_the_newest_mark_is_kept_and_shown(device: Device, server: MemoryServer) -> None:
    server.mark = "first"
    device.run()
    server.mark = ""  # a server in doubt gives none
    device.run()
    assert server.shown == ["", "first.2"]
    assert Mark(device.root / "mark").read() == "first.2"
    device.run()
    assert server.shown[-1] == "first.2"


def test_a_mark_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    mark = Mark(tmp_path / "mark")
    assert mark.read() == ""
    (tmp_path / "mark").write_bytes(b"\xff\xfe")
    assert mark.read() == ""
    (tmp_path / "mark").write_text("x" * 1000)
    assert len(mark.read()) == MAX_MARK


def test_a_full_disk_keeps_the_old_mark_and_a_broken_one_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = Mark(tmp_path / "mark")
    mark.keep("old")
    for error, kept in ((DiskFull("full"), True), (StorageFault("broken"), False)):

        def failing(path: Path, data: bytes, error: StorageFault = error) -> None:
            raise error

        monkeypatch.setattr("fedclient.store.state.write", failing)
        if kept:
            mark.keep("new")
        else:
            with pytest.raises(StorageFault, match="broken"):
                mark.keep("new")
        assert mark.read() == "old"
