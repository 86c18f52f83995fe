"""The operators' commands, called in the process of the test."""

from collections.abc import Callable

import pytest

from fedserver.__main__ import main

Command = Callable[..., tuple[int, str, str]]


def commands(capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs `fedserver` with the arguments: its exit code, its stdout, its stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return run
