"""What the tests of the verbs of runs share."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.commands import commands

Verb = Callable[..., Any]


@pytest.fixture
def verb(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Verb:
    """Runs a verb of `fedserver run` for the server in `s`: its data, or the error with this exit code."""
    run = commands(capfd)

    def call(*arguments: str, code: int = 0) -> Any:
        ended, out, _ = run("run", *arguments, "--state", tmp_path / "s", "--json")
        assert ended == code, out
        return json.loads(out)["error" if code else "data"]

    return call
