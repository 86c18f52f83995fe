"""A verb waits for a server that is starting, and says at once when there is none."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedserver.cli import options
from fedserver.rpc.channel import SOCKET
from fedserver.store.store import LOCK
from shoal.core.engine.timeouts import ANSWER
from shoal.core.errors import Unavailable


class Clock:
    """Time that goes on only during a sleep. at: what happens then."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now)
        monkeypatch.setattr("time.sleep", self.sleep)
        self.at: dict[float, object] = {}

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for moment in [moment for moment in self.at if moment <= self.now]:
            event = self.at.pop(moment)
            assert callable(event)
            event()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def reports() -> list[str]:
    return []


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_server_that_answers_is_reached_without_a_wait(
    tmp_path: Path, clock: Clock, reports: list[str]
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / SOCKET))
        server.listen()
        options.reach(tmp_path, 5.0, reports.append)
    assert (clock.now, reports) == (0.0, [])


@pytest.mark.parametrize("owner", ["", "alive"])
def test_a_server_process_that_runs_is_waited_for(
    tmp_path: Path, clock: Clock, reports: list[str], owner: str
) -> None:
    (tmp_path / LOCK).write_text(str(os.getpid()) if owner else "")
    with pytest.raises(Unavailable, match="is running but does not answer yet"):
        options.reach(tmp_path, None, reports.append)
    assert ANSWER <= clock.now < ANSWER + 0.5
    assert set(reports) == {f"waiting for the server of {tmp_path}"}


def lost(tmp_path: Path, folder: str) -> tuple[Path, str]:
    """A folder on which no server runs, and the error that says so."""
    if folder == "left":
        (tmp_path / LOCK).write_text(f"{gone()}\n")
    if folder == "missing":
        return tmp_path / "missing", f"there is no server folder at {tmp_path / 'missing'}"
    return tmp_path, f"no server is running on {tmp_path}"


@pytest.mark.parametrize("folder", ["missing", "empty", "left"])
def test_without_a_server_there_is_no_wait(
    tmp_path: Path, clock: Clock, reports: list[str], folder: str
) -> None:
    state, reason = lost(tmp_path, folder)
    with pytest.raises(Unavailable, match=reason):
        options.reach(state, None, reports.append)
    assert (clock.now, reports) == (0.0, [])


@pytest.mark.parametrize("folder", ["missing", "empty", "left"])
def test_a_wait_that_was_asked_for_is_kept(
    tmp_path: Path, clock: Clock, reports: list[str], folder: str
) -> None:
    state, reason = lost(tmp_path, folder)
    with pytest.raises(Unavailable, match=reason):
        options.reach(state, 5.0, reports.append)
    assert 5.0 <= clock.now < 5.5
    assert set(reports) == {f"waiting for the server of {state}"}


def test_a_wait_of_zero_is_none_even_for_a_process_that_runs(
    tmp_path: Path, clock: Clock, reports: list[str]
) -> None:
    (tmp_path / LOCK).write_text(str(os.getpid()))
    with pytest.raises(Unavailable, match="does not answer yet"):
        options.reach(tmp_path, 0.0, reports.append)
    assert clock.now == 0.0


def test_a_server_that_starts_during_the_wait_is_reached(
    tmp_path: Path, clock: Clock, reports: list[str]
) -> None:
    state = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:

        def listen() -> None:
            server.bind(str(state / SOCKET))
            server.listen()

        clock.at = {0.5: state.mkdir, 3.0: listen}
        options.reach(state, 5.0, reports.append)
    assert 3.0 <= clock.now < 3.5
