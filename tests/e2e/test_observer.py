"""A machine that only looks on, on a real server: `fedclient watch`."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fedclient.__main__ import main
from fedclient.agent import service
from fedclient.identity.keyring import Keyring
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.status_types import RunSummary
from shoal.core.identity.joining import Role
from tests.e2e.identities import identity_of
from tests.server.authority.peers import World, play
from tests.server.servers import start
from tests.waiting import until


def watch(folder: Path, *arguments: str) -> Result:
    """`fedclient watch`, as it runs beside this thread's loop."""
    found: list[Result] = []
    line = ["watch", "--state", str(folder / "state"), *arguments]
    thread = threading.Thread(target=lambda: found.append(CliRunner().invoke(main, line)))
    thread.start()
    thread.join()
    return found[0]


async def joined(found: World, folder: Path, role: Role) -> None:
    """A device's folder with its identity."""
    peer = await found.device(folder.name, role=role)
    Keyring(folder / "state" / "identity").keep(identity_of(peer))


def test_it_sees_how_runs_stand_until_all_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "POLL_SECONDS", 0.1)
    looks: list[OperatorApi] = []
    runs = OperatorApi.runs

    def looked(api: OperatorApi) -> tuple[RunSummary, ...]:
        looks.append(api)
        return runs(api)

    monkeypatch.setattr(OperatorApi, "runs", looked)

    async def story(found: World) -> None:
        await joined(found, tmp_path / "board", Role.OBSERVER)
        none = await asyncio.to_thread(watch, tmp_path / "board")
        assert (none.exit_code, none.stdout.strip()) == (0, "there is no run")
        await start(found.coordinator)
        once = await asyncio.to_thread(watch, tmp_path / "board", "--once", "--json")
        run = {"run": "toy", "algorithm": "fedavg", "stage": "waiting", "round": 1, "title": ""}
        assert json.loads(once.stdout)["data"] == {"runs": [run]}
        before = len(looks)
        watching = asyncio.create_task(asyncio.to_thread(watch, tmp_path / "board"))
        await until(lambda: len(looks) > before + 1)
        assert not watching.done()
        await OperatorApi(found.coordinator).stop_run("toy", "enough")
        ended = await watching
        assert ended.exit_code == 0
        assert "toy (fedavg): waiting" in ended.stderr
        assert ended.stdout.strip() == "toy (fedavg): stopped"

    play(story, tmp_path / "s")


def test_no_other_role_may_look(tmp_path: Path) -> None:
    async def story(found: World) -> None:
        await joined(found, tmp_path / "phone", Role.INFER_ONLY)
        refused = await asyncio.to_thread(watch, tmp_path / "phone", "--once")
        assert (refused.exit_code, "only an observer may" in refused.stderr) == (5, True)

    play(story, tmp_path / "s")
