"""A server whose clock jumps says so, and says no more when it is right again."""

from pathlib import Path

import pytest

from tests.server.commands import commands
from tests.server.processes import Daemon, daemon

PROGRAM = """
import pathlib, time
real = time.time
time.time = lambda: real() + 3600.0 * float(pathlib.Path({path!r}).read_text())
from fedserver.__main__ import main
main()
"""


def test_a_clock_that_jumps_is_an_attention_line(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    hours, state = tmp_path / "hours", tmp_path / "s"

    def is_set(to: float) -> None:
        """In one step: the server reads it all the time."""
        (tmp_path / "next").write_text(str(to))
        (tmp_path / "next").replace(hours)

    def seen(server: Daemon) -> list[str]:
        code, out, _ = commands(capfd)("status", "--state", server.state)
        assert code == 0
        return [line for line in out.splitlines() if line.startswith("attention: the server's clock ")]

    is_set(0)
    program = ("-c", PROGRAM.format(path=str(hours)))
    with daemon(state, program) as server:
        assert seen(server) == []
        is_set(20 * 24)
        (line,) = seen(server)
        assert "was set forward by 20 d while it ran" in line
        is_set(-3)
        (line,) = seen(server)
        assert "was set back by 3 h while it ran" in line
        is_set(0)
        assert seen(server) == []
        assert server.stop() == 0
    is_set(-400 * 24)  # it is lost while the server does not run
    with daemon(state, program) as server:
        (line,) = seen(server)
        assert "is 400 d behind the end of the audit log" in line
        assert server.stop() == 0
    with daemon(state, program) as server:  # an operator says that it is right
        assert seen(server) == []
