"""A backup of a server at work, what is restored of it, and that everybody notices what was lost between."""

import asyncio
import json
import os
import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from fedserver.__main__ import main
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store import backup as module
from fedserver.store.backup import backup, restore
from fedserver.store.store import Store
from shoal.core.errors import ConfigError, InDoubt, StorageFault, Unavailable
from shoal.core.exchange.link import Hello, Placement
from shoal.shell import crash
from tests.programs import FORKS
from tests.server.coordinator.test_recovery import reports, spoil
from tests.server.servers import (
    DEVICES,
    ROUNDS,
    SETTINGS,
    expected,
    hands,
    link,
    models,
    serve_all,
    server,
    start,
)
from tests.server.toys import honest, same_models


def verb(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(main, [*map(str, arguments), "--json"])
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_restored_server_is_recognised_takes_nothing_and_goes_on_when_it_is_told(tmp_path: Path) -> None:
    state, copy, restored = tmp_path / "a", tmp_path / "backup", tmp_path / "b"

    async def lost() -> str:
        async with server(state) as first:
            await reports(first, DEVICES + 1)
            made = await asyncio.to_thread(verb, "backup", "--state", state, copy)
            assert made["data"]["runs"] == 1
            device = await hands(first, 1)
            receipt = await device.do(await device.task(), honest(1))
            assert receipt.outcome.value == "accepted"
            return receipt.mark

    async def doubted(mark: str) -> None:
        async with server(restored) as second:
            engine = second.runs["toy"].engine
            assert engine.reported == {"d0"}  # that of d1 is lost
            other = await hands(second, 2)
            task = await other.task()
            device = link(second, 1)
            assert (await device.hello(Hello("toy", mark=mark))).mark == ""
            for call in (
                device.next_task(0.1),
                other.send(task, other.payload(honest(2)(await other.open(task), task.seed))),
                OperatorApi(second).start_run(second.runs["toy"].spec, None),
            ):
                with pytest.raises(
                    InDoubt,
                    match="the server state is older than what devices have seen; new work is refused",
                ):
                    await call
            assert not await device.alive("toy", 2, 1)
            placed = await device.place("toy", None)
            assert isinstance(placed, Placement)
            assert placed.model is not None
            assert b"".join([piece async for piece in device.fetch(placed.model.blob, 0)])
            status = await OperatorApi(second).status()
            assert "d1 saw revision" in status.notices[0]
            assert "fedserver recover --accept" in status.notices[0]
            assert [run.waiting_for for run in status.runs] == ["an operator: see `fedserver status`"]
        async with server(restored) as again:  # a restart forgets no doubt
            assert list(again.conflicts) == ["d1"]
            with pytest.raises(InDoubt):
                await (await hands(again, 0)).task(0.1)

    async def accepted(mark: str) -> None:
        async with server(restored) as third:
            assert (third.runs["toy"].engine.round, third.runs["toy"].engine.reported) == (3, set())
            device = link(third, 1)
            assert (await device.hello(Hello("toy", mark=mark))).mark
            await serve_all(third)
            assert third.runs["toy"].standing.value == "finished"
            rounds = await third.storage.call(third.storage.journal.timeline.read, "toy")
            assert [bool(each.abandoned) for each in rounds] == [False, True] + [False] * ROUNDS
            assert rounds[1].abandoned == "the server was restored from an older state"

    mark = asyncio.run(lost())
    assert verb("restore", copy, "--state", restored)["status"] == "ok"
    assert verb("recover", "--accept", "--state", state)["error"]["code"] == "refused"  # never restored
    asyncio.run(doubted(mark))
    assert verb("recover", "--state", restored)["data"]["accepted"] is False
    found = verb("recover", "--state", restored, "--accept")["data"]
    assert (list(found["doubts"]), found["abandoned"]) == (["d1"], ["toy"])
    asyncio.run(accepted(mark))


def test_a_backup_of_a_server_that_is_stopped_has_all_that_lasts(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "a") as first:
            await reports(first, 2)

    asyncio.run(play())
    (tmp_path / "a" / "keys").mkdir()
    (tmp_path / "a" / "keys" / "authority.pem").write_text("secret")
    (tmp_path / "a" / "tmp" / "half").write_text("x")
    facts = backup(tmp_path / "a", tmp_path / "copy")
    assert (facts.runs, facts.blobs, facts.size) == (1, 3, 3 * 136)
    found = {
        str(path.relative_to(tmp_path / "copy")) for path in (tmp_path / "copy").rglob("*") if path.is_file()
    }
    assert {path for path in found if not path.startswith("blobs")} == {
        "shoal.db",
        "audit.jsonl",
        "backup.json",
        "keys/authority.pem",
    }
    for path in (tmp_path / "copy", tmp_path / "copy" / "blobs"):
        assert path.stat().st_mode & 0o777 == 0o700
    assert restore(tmp_path / "copy", tmp_path / "b") == facts
    assert (tmp_path / "b" / "shoal.db").stat().st_mode & 0o777 == 0o600

    async def again() -> None:
        async with server(tmp_path / "b") as second:
            await serve_all(second)
            assert same_models(models(second), expected())

    asyncio.run(again())


def test_blobs_that_go_while_they_are_copied_make_it_look_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone, took = 0, module._took_blobs

    def racing(state: Path, copy: Path) -> bool:
        nonlocal gone
        gone += 1
        return took(state, copy) if gone > 3 else False

    async def play() -> None:
        coordinator = await Coordinator.open(tmp_path / "a", SETTINGS)
        await start(coordinator)
        await coordinator.close()

    asyncio.run(play())
    monkeypatch.setattr(module, "_took_blobs", racing)
    backup(tmp_path / "a", tmp_path / "copy")
    assert gone == 4
    gone = -100
    with pytest.raises(Unavailable, match="faster than their blobs"):
        backup(tmp_path / "a", tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_damaged_backup_is_refused_and_nothing_is_made(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "a") as first:
            await start(first)

    asyncio.run(play())
    backup(tmp_path / "a", tmp_path / "copy")
    (path,) = (tmp_path / "copy" / "blobs").glob("??/*")
    data = path.read_bytes()
    path.unlink()  # it is a link to the server's own
    path.write_bytes(data)
    spoil(tmp_path / "copy", path.name)
    with pytest.raises(StorageFault, match="is damaged"):
        restore(tmp_path / "copy", tmp_path / "b")
    path.unlink()
    with pytest.raises(StorageFault, match="No such file"):
        restore(tmp_path / "copy", tmp_path / "b")
    assert sorted(each.name for each in tmp_path.iterdir()) == ["a", "copy"]


def test_what_is_there_is_never_written_over(tmp_path: Path) -> None:
    Store(tmp_path / "a").close()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ConfigError, match="is not a server's state folder"):
        backup(tmp_path / "full", tmp_path / "copy")
    with pytest.raises(ConfigError, match="already exists"):
        backup(tmp_path / "a", tmp_path / "full")
    with pytest.raises(ConfigError, match="is inside the folder to back up"):
        backup(tmp_path / "a", tmp_path / "a" / "copy")
    with pytest.raises(ConfigError, match="is not a backup"):
        restore(tmp_path / "full", tmp_path / "b")
    backup(tmp_path / "a", tmp_path / "copy")
    with pytest.raises(ConfigError, match="already exists"):
        restore(tmp_path / "copy", tmp_path / "full")
    (tmp_path / "empty").mkdir()
    restore(tmp_path / "copy", tmp_path / "empty")
    assert verb("recover", "--state", tmp_path / "nowhere")["error"]["code"] == "bad-config"
    assert not (tmp_path / "nowhere").exists()


def killed(function: str, source: str, target: str, point: str) -> None:
    os.environ[crash.VARIABLE] = point
    getattr(module, function)(Path(source), Path(target))


@pytest.mark.parametrize(
    ("function", "point"),
    [("backup", "server.backup-copied"), ("restore", "server.restored"), ("backup", "disk.renamed:2")],
)
def test_one_that_is_killed_leaves_nothing_that_counts(tmp_path: Path, function: str, point: str) -> None:
    Store(tmp_path / "a").close()
    if function == "restore":
        backup(tmp_path / "a", tmp_path / "copy")
    source, target = ("a", "copy") if function == "backup" else ("copy", "b")
    arguments = (function, str(tmp_path / source), str(tmp_path / target), point)
    process = FORKS.Process(target=killed, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    if point.startswith("disk"):
        assert (tmp_path / target / "backup.json").exists()  # it had its name, so it is whole
        return
    assert not (tmp_path / target).exists()
    getattr(module, function)(tmp_path / source, tmp_path / target)
    with closing(sqlite3.connect(tmp_path / target / "shoal.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
