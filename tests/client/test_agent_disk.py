"""A device whose disk is full says so, keeps what it has, and goes on when there is room."""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedclient.store.blobs import BlobStore
from fedclient.store.state import Outbox, Status
from shoal.core.errors import DiskFull, StorageFault, TooManyFiles
from shoal.core.exchange.link import Failure, Outcome, Receipt
from tests.client.memory_server import MemoryServer
from tests.client.visits import Device, trained


def full_at_first(times: int, real: Callable[..., Any], error: type[StorageFault] = DiskFull) -> Any:
    left = times

    def failing(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left >= 0:
            raise error("blobs: No space left on device", "free some space")
        return real(*arguments)

    return failing


@pytest.mark.parametrize(("owner", "method"), [(BlobStore, "fetch"), (Outbox, "keep")])
def test_what_does_not_fit_is_tried_again(
    device: Device, server: MemoryServer, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    monkeypatch.setattr(owner, method, full_at_first(3, getattr(owner, method)))
    device.run()
    assert device.executor.performed == [1, 2]  # no work is done twice for it
    assert [report.round for report in server.reports] == [1, 2]
    waits = [line for line in device.doing if line.startswith("waiting for disk space: ")]
    assert len(waits) == 3
    assert "No space left on device (free some space)" in waits[0]
    assert device.reporter.status.error["code"] == "disk-full"


def test_work_that_found_the_disk_full_is_done_again(device: Device, server: MemoryServer) -> None:
    device.executor.before = [lambda: Failure("disk-full", "no room for the result")]
    device.run()
    assert device.executor.performed == [1, 1, 2]
    assert not any(isinstance(report.result, Failure) for report in server.reports)


@pytest.mark.parametrize(("code", "again"), [(errno.EMFILE, True), (errno.EIO, False)])
def test_a_result_that_cannot_be_read_is_sent_again_or_reported(
    device: Device, server: MemoryServer, monkeypatch: pytest.MonkeyPatch, code: int, again: bool
) -> None:
    """Without a file descriptor it waits; what a disk has lost the round goes on without."""
    real, left = Path.open, [code]

    def fails_once(path: Path, *args: Any, **given: Any) -> Any:
        if given.get("buffering") == 0 and left:
            raise OSError(left.pop(), "it cannot be opened", str(path))
        return real(path, *args, **given)

    monkeypatch.setattr(Path, "open", fails_once)
    if again:
        with pytest.raises(TooManyFiles):
            device.run()
        assert not server.reports
    device.run()
    assert device.executor.performed == [1, 2]
    assert [isinstance(report.result, Failure) for report in server.reports] == [not again, False]


@pytest.mark.parametrize("error", [DiskFull, StorageFault])
def test_what_people_look_at_never_stops_the_work(
    device: Device, server: MemoryServer, monkeypatch: pytest.MonkeyPatch, error: type[StorageFault]
) -> None:
    monkeypatch.setattr(Status, "save", full_at_first(1 << 30, Status.save, error))
    device.run()
    assert [report.round for report in server.reports] == [1, 2]


def test_a_result_that_came_late_waits_for_the_same_task_under_another_lease(
    device: Device, server: MemoryServer
) -> None:
    """The server was away for longer than it waits: the lease is gone, the round is still open."""
    server.late = [Receipt(Outcome.LATE, "attempt 1 was replaced by attempt 2")]
    device.run()
    assert device.executor.performed == [1, 2]
    assert [report.round for report in server.reports] == [1, 2]
    assert trained(server, 0) == [0.0, 2.0, 4.0]
