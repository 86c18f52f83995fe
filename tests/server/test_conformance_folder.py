"""`fedserver conformance` throws its server's folder away, whatever that server's threads still do."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedserver.__main__ import main
from fedserver.conformance import situations
from fedserver.conformance.situations import RULES
from fedserver.conformance.stage import Stage

FILES = 300
"""Written by a thread after the server has closed: many more than are removed meanwhile."""


def test_threads_that_outlive_the_server_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is on its way when the server stops is one: a thread cannot be canceled."""
    folders = list[Path]()

    async def play(stage: Stage, say: Any) -> dict[str, str]:
        folder = stage.coordinator.storage.blobs.folder
        folders.append(folder)

        def late() -> None:
            while not stage.coordinator.closed:
                pass
            for number in range(FILES):
                (folder / "tmp").mkdir(parents=True, exist_ok=True)
                (folder / "tmp" / str(number)).write_bytes(b"late")

        asyncio.get_running_loop().run_in_executor(None, late)
        return dict.fromkeys(RULES, "")

    monkeypatch.setattr(situations, "play", play)
    found = CliRunner().invoke(main, ["conformance"])
    assert found.exit_code == 0, found.output
    assert [each.exists() for each in folders] == [False]
