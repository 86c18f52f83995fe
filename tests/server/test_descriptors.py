"""File descriptors run out: the server waits, closes connections that bring nothing, and loses nothing."""

import asyncio
import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode, aio

from fedserver.coordinator import combining
from fedserver.coordinator.coordinator import Coordinator
from fedserver.rpc.client import OperatorClient
from fedserver.store.content import in_file
from fedserver.store.engines import sqlite as database
from shoal.core.errors import DiskFull, StorageFault, TooManyFiles
from shoal.shell import disk
from tests.server.processes import daemon
from tests.server.servers import DEVICES, ROUNDS, expected, models, scenario, serve_all, spec, start
from tests.server.toys import MODEL, honest, same_models, serve
from tests.server.wire_link import WireLink

UNAVAILABLE, RESOURCE_EXHAUSTED = StatusCode.UNAVAILABLE, StatusCode.RESOURCE_EXHAUSTED
SPARE = 40
"""How many more descriptors the server may open than it has at its start."""


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_a_lack_of_descriptors_is_for_now(tmp_path: Path, number: int) -> None:
    with pytest.raises(TooManyFiles) as caught, disk.storing(tmp_path):
        raise OSError(number, os.strerror(number), str(tmp_path))
    assert isinstance(caught.value, DiskFull)  # so it is waited for, as space on the disk is


def test_reports_whose_files_cannot_be_opened_are_combined_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round fails twice, once at the first file and once at a later one."""
    real_reduce, real_reading = combining.reduce, in_file._reading
    tries, fails_in = 0, -1

    def reduce(*arguments: Any) -> Any:
        nonlocal tries, fails_in
        tries += 1
        fails_in = {1: 0, 2: 1}.get(tries % 3, -1)
        return real_reduce(*arguments)

    @contextmanager
    def failing(path: Path) -> Iterator[FileIO]:
        nonlocal fails_in
        fails_in -= 1
        if fails_in == -1:
            with disk.storing(path):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))
        with real_reading(path) as file:
            yield file

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        monkeypatch.setattr(combining, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(combining, "reduce", reduce)
        monkeypatch.setattr(in_file, "_reading", failing)
        await serve_all(coordinator)
        assert tries == 3 * ROUNDS + 1  # the reports of the last exchange have no files
        assert not coordinator.broken.done()
        assert same_models(models(coordinator), expected())

    scenario(story, tmp_path)


def test_a_module_that_cannot_be_loaded_for_now_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """numpy.unique() loads numpy.ma when it is first called."""
    real, tries = combining.reduce, 0

    def loading(*arguments: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "numpy/ma/__init__.py")
        return real(*arguments)

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        monkeypatch.setattr(combining, "RETRY_SECONDS", 0.01)
        monkeypatch.setattr(combining, "reduce", loading)
        await serve_all(coordinator)
        assert tries > 1
        assert same_models(models(coordinator), expected())

    scenario(story, tmp_path)


def test_a_database_that_cannot_open_a_file_is_not_taken_for_a_broken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sqlite3

    def failing() -> None:
        with database._faults():
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error

    with pytest.raises(StorageFault) as caught:
        failing()
    assert not isinstance(caught.value, DiskFull)  # there are descriptors, so that is not why
    monkeypatch.setattr(database, "is_out_of_descriptors", lambda: True)
    with pytest.raises(TooManyFiles):
        failing()


def test_a_stranger_with_many_connections_neither_ends_the_server_nor_a_run(tmp_path: Path) -> None:
    """More connections than the server has descriptors for, and new ones for those that it closes."""

    async def crowd(address: str) -> None:
        host, _, port = address.rpartition(":")
        held: list[Any] = []
        try:
            while True:
                held = [each for each in held if not each[0].at_eof()]
                while len(held) < 4 * SPARE:
                    with suppress(OSError):
                        held.append(await asyncio.open_connection(host, int(port)))
                await asyncio.sleep(0.05)
        finally:
            for _, writer in held:
                writer.transport.abort()

    refused: list[aio.AioRpcError] = []

    async def patiently(address: str, number: int) -> None:
        """A device that tries again when the server says that it cannot serve it now, as real ones do."""
        while True:
            async with aio.insecure_channel(address) as channel:
                try:
                    await serve(WireLink(channel, f"d{number}"), honest(number))
                except aio.AioRpcError as error:
                    refused.append(error)
                else:
                    return
            await asyncio.sleep(0.05)

    async def play(address: str) -> None:
        crowding = asyncio.create_task(crowd(address))
        try:
            await asyncio.gather(*(patiently(address, number) for number in range(DEVICES)))
        finally:
            crowding.cancel()
            await asyncio.gather(crowding, return_exceptions=True)

    state = tmp_path / "s"
    with daemon(state) as running, OperatorClient(state) as operator:
        operator.start_run(spec(), MODEL)
        pid = running.process.pid
        most = len(os.listdir(f"/proc/{pid}/fd")) + SPARE
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
        asyncio.run(play(running.address))
        assert running.process.poll() is None
        assert {error.code() for error in refused} <= {UNAVAILABLE, RESOURCE_EXHAUSTED}
        assert not any(str(tmp_path) in str(error) for error in refused)  # no path of the server's
        found = operator.show("toy")
        assert (found.summary.stage, found.summary.round) == ("finished", ROUNDS + 2), found
        assert same_models({key: operator.fetch(each) for key, each in found.models.items()}, expected())
