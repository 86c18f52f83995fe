"""The agent's log: bounded, private to the owner, whole while it is followed, and safe to print."""

import stat
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedclient.__main__ import main
from fedclient.agent.reporter import figures
from fedclient.store import agent_log
from fedclient.store.agent_log import AgentLog
from shoal.core.exchange.payload import Payload


class Enough(Exception):
    """The test has seen what it wanted."""


def texts(lines: list[str]) -> list[str]:
    """Without the times."""
    return [line[20:] for line in lines]


def test_a_text_is_logged_once_with_its_time_and_shown(tmp_path: Path) -> None:
    shown: list[str] = []
    log = AgentLog(tmp_path)
    note = log.noting(shown.append)
    for text in (
        "waiting for a task",
        "waiting for a task",
        "digits: round 1",
        "failed\nerror[revoked]: made up",
    ):
        note(text)
    assert len(shown) == 4
    found = log.last(10)
    assert texts(found[:2]) == ["waiting for a task", "digits: round 1"]
    assert found[3] == "  | error[revoked]: made up", "a stranger's text cannot look like a line of ours"
    assert log.last(1) == found[-1:]
    assert found[0][:2] == "20"
    assert stat.S_IMODE(log.path.stat().st_mode) == 0o600


def test_the_log_is_bounded_and_a_disk_that_takes_nothing_stops_no_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_log, "LARGEST", 1000)
    log = AgentLog(tmp_path)
    for number in range(200):
        log.add(f"task {number}")
    assert sum(path.stat().st_size for path in (log.path, log.former) if path.exists()) < 2100
    assert texts(log.last(3)) == ["task 197", "task 198", "task 199"]
    log.add("x" * 100_000)
    assert len(log.last(1)[0]) < 9000
    AgentLog(tmp_path / "not" / "there").add("lost")


def test_a_log_is_followed_over_its_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_log, "LARGEST", 300)
    log, reader = AgentLog(tmp_path), AgentLog(tmp_path)
    steps = iter([*(f"task {number}" for number in range(20)), ""])

    def wait() -> None:
        """The agent goes on while the reader waits."""
        if not (step := next(steps)):
            raise Enough
        log.add(step)

    found: list[str] = []
    with pytest.raises(Enough):
        found.extend(reader.follow(wait))  # keeps what came before the end
    assert texts(found) == [f"task {number}" for number in range(20)]
    assert log.former.exists()


def test_a_person_reads_the_last_lines(tmp_path: Path) -> None:
    missing = CliRunner().invoke(main, ["logs", "--state", str(tmp_path)])
    assert missing.exit_code == 1
    assert "it begins with: fedclient run" in missing.output
    log = AgentLog(tmp_path)
    for text in ("first", "second", "third \x1b[2J\u202e"):
        log.add(text)
    shown = CliRunner().invoke(main, ["logs", "--state", str(tmp_path), "--lines", "2"])
    assert shown.exit_code == 0
    lines = shown.stdout.splitlines()
    assert texts(lines)[0] == "second"
    assert len(lines) == 2
    assert not {"\x1b", "\u202e"} & set(shown.stdout)


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ({"accuracy": 0.912, "loss": 0.31, "examples": 80}, "accuracy 91.2 %, loss 0.3100, 80 samples"),
        ({"loss": 2.5, "examples": 1}, "loss 2.5000, 1 sample"),
        ({"loss": 0.0, "examples": 80, "private": object()}, ""),
        ({"loss": 0.0, "accuracy": 0.5, "examples": 9, "rho": 0.1}, "accuracy with noise 50.0 %, 9 samples"),
        ({"examples": 80}, ""),
        ({}, ""),
    ],
)
def test_a_task_leaves_its_figures_but_not_the_zero_in_place_of_a_private_loss(
    parts: dict[str, Any], text: str
) -> None:
    assert figures(Payload("trained", parts)) == text
