"""Who needs a server that was started a moment ago waits for it; who needs one that is not meant does not."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fedserver.cli import options
from fedserver.rpc.client import SOCKET
from fedserver.store.store import LOCK


class Clock:
    """Time that goes on only when somebody sleeps. at: what happens then."""

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
def told() -> list[str]:
    return []


def gone() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_server_that_answers_is_reached_without_a_wait(
    tmp_path: Path, clock: Clock, told: list[str]
) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / SOCKET))
        server.listen()
        assert options.reach(tmp_path, 5.0, told.append)
    assert (clock.now, told) == (0.0, [])


@pytest.mark.parametrize("owner", ["none", "", "alive"])
def test_a_folder_in_which_a_server_starts_is_worth_all_the_patience(
    tmp_path: Path, clock: Clock, told: list[str], owner: str
) -> None:
    if owner != "none":
        (tmp_path / LOCK).write_text(str(os.getpid()) if owner else "")
    assert not options.reach(tmp_path, 5.0, told.append)
    assert 5.0 <= clock.now < 5.5
    assert set(told) == {f"waiting for the server of {tmp_path}"}


@pytest.mark.parametrize("folder", ["missing", "left"])
def test_without_a_sign_of_a_server_there_is_but_a_moment(
    tmp_path: Path, clock: Clock, told: list[str], folder: str
) -> None:
    if folder == "left":
        (tmp_path / LOCK).write_text(f"{gone()}\n")
    state = tmp_path / "missing" if folder == "missing" else tmp_path
    assert not options.reach(state, 5.0, told.append)
    assert options.MOMENT <= clock.now < 5.0


def test_a_folder_that_could_not_be_made_is_not_waited_for(
    tmp_path: Path, clock: Clock, told: list[str]
) -> None:
    assert not options.reach(tmp_path / "no" / "such", 5.0, told.append)
    assert (clock.now, told) == (0.0, [])


def test_no_patience_is_no_wait(tmp_path: Path, clock: Clock, told: list[str]) -> None:
    assert not options.reach(tmp_path, 0.0, told.append)
    assert clock.now == 0.0


def test_a_server_that_comes_while_somebody_waits_is_reached(
    tmp_path: Path, clock: Clock, told: list[str]
) -> None:
    state = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as server:

        def listen() -> None:
            server.bind(str(state / SOCKET))
            server.listen()

        clock.at = {0.5: state.mkdir, 3.0: listen}
        assert options.reach(state, 5.0, told.append)
    assert 3.0 <= clock.now < 3.5
