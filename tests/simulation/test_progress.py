"""What a person sees of a simulation that goes on."""

import io
import sys

import pytest

from shoal.simulation import progress
from shoal.simulation.progress import Shown


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("wanted", "stream", "patience", "seen"),
    [
        (None, Terminal, 0.0, ["one", "two"]),
        (None, Terminal, 1e6, []),
        (None, io.StringIO, 0.0, []),
        (True, io.StringIO, 1e6, ["one", "two"]),
        (False, Terminal, 0.0, []),
    ],
)
def test_who_waits_at_a_terminal_sees_how_far_it_is(
    wanted: bool | None,
    stream: type[io.StringIO],
    patience: float,
    seen: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stderr", stream())
    monkeypatch.setattr(progress, "PATIENCE", patience)
    with Shown(wanted) as say:
        say("one")
        say("two")
    assert isinstance(sys.stderr, io.StringIO)
    written = sys.stderr.getvalue()
    assert [line.strip() for line in written.split("\r") if line.strip()] == seen
    assert written.endswith({None: "\r", True: "\n"}.get(wanted, "")) or not seen


def test_a_function_is_given_each_line() -> None:
    lines: list[str] = []
    with Shown(lines.append) as say:
        say("one")
    assert lines == ["one"]
