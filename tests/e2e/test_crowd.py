"""A fleet behind one address joins at one moment: the server paces it, and every device gets in."""

import asyncio
import itertools
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedclient.identity.join import join
from fedclient.store.state import DeviceFolder
from fedserver.authority import joining, rate_limit
from shoal.shell.console import Console
from tests.server.authority.peers import World, play

DEVICES = 6


def test_who_comes_too_early_comes_again_in_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(joining, "CHALLENGES", 4.0)
    monkeypatch.setattr(joining, "AT_ONCE", 2.0)
    first, calls = time.monotonic(), itertools.count()

    def clock() -> float:
        """To the server all devices ask at one moment, however long a busy machine takes to let them."""
        return first if next(calls) < DEVICES else time.monotonic()

    monkeypatch.setattr(rate_limit, "time", SimpleNamespace(monotonic=clock))

    async def story(found: World) -> None:
        line = await found.token(uses=DEVICES)
        folders = [DeviceFolder(tmp_path / f"d{number}") for number in range(DEVICES)]
        joins = [join(folder, line, folder.root.name, Console()) for folder in folders]
        assert all(is_new for _, is_new in await asyncio.gather(*joins))
        assert [each.device for each in found.peers.known()] == [folder.root.name for folder in folders]

    play(story, tmp_path / "s")
    assert "this address requests too many challenges; trying again in" in capfd.readouterr().err
