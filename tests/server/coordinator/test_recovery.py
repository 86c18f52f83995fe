"""What a start finds damaged on the disk, and what becomes of it."""

import asyncio
import threading
from contextlib import closing
from pathlib import Path

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.content.blobs import Blobs
from fedserver.store.store import Store
from shoal.core.errors import StorageFault, Unavailable
from shoal.core.exchange.link import Idle, Outcome, Report
from shoal.core.exchange.messages import Train, TrainingSettings
from tests.server.servers import (
    DEVICES,
    ROUNDS,
    expected,
    hands,
    link,
    models,
    scenario,
    serve_all,
    server,
    start,
)
from tests.server.toys import MODEL, Hands, honest, pieces_of, same_models
from tests.waiting import HANG, until


async def reports(coordinator: Coordinator, count: int) -> None:
    """A run of which this many reports are in."""
    await start(coordinator)
    devices = [await hands(coordinator, number) for number in range(DEVICES)]
    for device in devices:
        await device.link.next_task(0.0)
    for report in range(count):
        number = report % DEVICES
        receipt = await devices[number].do(await devices[number].task(), honest(number))
        assert receipt.outcome is Outcome.ACCEPTED


def spoil(state: Path, name: str) -> None:
    """Turn one bit of a blob."""
    path = state / "blobs" / name[:2] / name
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)


def only_in(checkpoints: list[tuple[int, list[str]]], some: list[tuple[int, list[str]]]) -> list[str]:
    """The blobs of some checkpoints that no other checkpoint has."""
    others = {name for each in checkpoints if each not in some for name in each[1]}
    return sorted({name for _, names in some for name in names} - others)


def quarantined(state: Path) -> set[str]:
    return {path.name for path in (state / "quarantine").iterdir()}


async def lines(coordinator: Coordinator) -> str:
    return "\n".join(f"{line.device}: {line.text}" for line in await OperatorApi(coordinator).log("toy", 0))


def test_a_damaged_report_is_withdrawn_and_asked_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with server(tmp_path) as first:
            await reports(first, 2)
            (name,) = (await first.storage.call(first.storage.reports.of_round, "toy", 1))[1].blobs
        spoil(tmp_path, name)
        async with server(tmp_path) as second:
            assert quarantined(tmp_path) == {name}
            said = "d1: an ACKNOWLEDGED report of round 1 is lost and requested again: blob"
            assert f"{said} {name[:12]} is damaged" in await lines(second)
            assert said in caplog.text
            assert second.runs["toy"].engine.reported == {"d0"}
            await serve_all(second)
            assert same_models(models(second), expected())

    asyncio.run(play())
    assert "1 DAMAGED" in caplog.text


@pytest.mark.parametrize("lost", [1, 2])
def test_a_run_goes_back_to_the_newest_sound_checkpoint(tmp_path: Path, lost: int) -> None:
    async def play() -> None:
        async with server(tmp_path) as first:
            await reports(first, 2 * DEVICES + 1)
            checkpoints = await first.storage.call(first.storage.runs.checkpoints, "toy")
            assert [number for number, _ in checkpoints] == [3, 2, 1]
        names = only_in(checkpoints, checkpoints[:lost])
        for name in names:
            spoil(tmp_path, name)
        async with server(tmp_path) as second:
            assert quarantined(tmp_path) == set(names)
            assert second.runs["toy"].engine.round == 3 - lost
            assert "the checkpoint that round 3 opens with is lost" in await lines(second)
            assert len(await second.storage.call(second.storage.journal.timeline.read, "toy")) == 2 - lost
            await serve_all(second)
            assert same_models(models(second), expected())
            assert len(await second.storage.call(second.storage.journal.timeline.read, "toy")) == ROUNDS + 1

    asyncio.run(play())


def test_a_run_without_a_sound_checkpoint_is_set_aside_as_it_is(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path) as first:
            await reports(first, DEVICES + 1)
            checkpoints = await first.storage.call(first.storage.runs.checkpoints, "toy")
        for name in only_in(checkpoints, checkpoints):
            spoil(tmp_path, name)
        for _ in range(2):  # and again at the next start
            async with server(tmp_path) as second:
                (found,) = OperatorApi(second).runs()
                assert found.stage == "failed"
                assert "it cannot be read: no checkpoint is sound: blob" in found.waiting_for
                assert await second.storage.call(second.storage.runs.checkpoints, "toy") == checkpoints

    asyncio.run(play())


def test_a_run_that_goes_back_does_not_ask_those_that_stepped_in_later(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path) as first:
            await reports(first, DEVICES + 1)
            await first.storage.call(first.storage.runs.step_in, "toy", ("d9",))
            database = first.storage.store.database

            def forget_the_format() -> None:
                with database.transaction():
                    database.execute(
                        "UPDATE checkpoints SET structure = replace(structure, ?, ?) WHERE round = 2",
                        ('"format": 1', '"format": 0'),
                    )

            await first.storage.call(forget_the_format)
        async with server(tmp_path) as second:
            assert await second.storage.call(second.storage.runs.versions, "toy") == [1]
            devices = [await hands(second, number) for number in range(DEVICES)]
            for task in await asyncio.gather(*(device.task() for device in devices)):
                assert task.round == 1
            assert sorted(second.runs["toy"].engine.plan.tasks) == ["d0", "d1", "d2"]
            await serve_all(second)
            assert same_models(models(second), expected())

    asyncio.run(play())


def test_an_older_checkpoint_that_is_damaged_is_dropped_while_the_server_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def play() -> None:
        async with server(tmp_path) as first:
            await reports(first, 2 * DEVICES + 1)
            checkpoints = await first.storage.call(first.storage.runs.checkpoints, "toy")
            name = only_in(checkpoints, checkpoints[1:])[0]  # a state has the model before its own, too
        spoil(tmp_path, name)
        async with server(tmp_path) as second:
            await until(lambda: "checkpoint that round 1 opens with is lost" in caplog.text)
            assert [
                number for number, _ in await second.storage.call(second.storage.runs.checkpoints, "toy")
            ] == [3]
            assert second.runs["toy"].engine.round == 3
            await serve_all(second)
            assert same_models(models(second), expected())

    asyncio.run(play())


def test_the_server_answers_while_it_checks_and_hands_nothing_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on, damage = threading.Event(), Blobs.damage

    def slow(blobs: Blobs, name: str, within: float = 0.0) -> str:
        assert go_on.wait(HANG)
        return damage(blobs, name, within)

    async def play() -> None:
        async with server(tmp_path) as first:
            await reports(first, 1)
        monkeypatch.setattr(Blobs, "damage", slow)
        monkeypatch.setattr("fedserver.coordinator.repair.recovery.AT_ONCE", 0.05)
        async with server(tmp_path, recovered=False) as second:
            device, operator = await Hands(link(second, 1)).hello(), OperatorApi(second)
            idle = await device.link.next_task(0.1)
            assert isinstance(idle, Idle)
            assert (idle.reason, idle.finished) == ("the server is checking its files after the start", False)
            (found,) = operator.runs()
            assert found.waiting_for == "the check of its files after the start"
            assert (await operator.status()).runs == (found,)
            report = Report("toy", 1, 1, device.payload(honest(1)(Train(MODEL, TrainingSettings()), 0)))
            (answer,) = report.result.weights()  # type: ignore[union-attr]
            for call in (
                device.link.report(report),
                device.link.alive("toy", 1, 1),
                anext(aiter(device.link.fetch(answer.blob, 0))),
                device.link.uploaded(answer.blob),
                device.link.upload(answer.blob, 0, pieces_of(b"any")),
                operator.show("toy"),
                operator.log("toy", 0),
            ):
                with pytest.raises(Unavailable, match="is being checked after the server's start"):
                    await call
            with pytest.raises(Exception, match="a run named 'toy' already exists"):
                await start(second)
            waiting = asyncio.create_task(device.link.next_task(10.0))
            watching = asyncio.create_task(anext(aiter(operator.watch("toy"))))
            await until(lambda: second.visitor("d1").polling == 1)
            assert not waiting.done()
            assert not watching.done()
            go_on.set()
            await waiting
            assert (await watching).summary.round == 1
            await serve_all(second)
            assert same_models(models(second), expected())

    asyncio.run(play())


def test_what_cannot_be_read_is_damaged_and_what_cannot_be_opened_now_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        blobs = coordinator.storage.blobs
        ((_, [name]),) = await coordinator.storage.call(coordinator.storage.runs.checkpoints, "toy")
        for number, text in ((24, "Too many open files"), (5, "Input/output error")):
            error = OSError(number, text)
            with monkeypatch.context() as patched:
                patched.setattr(
                    "fedserver.store.content.sums.Sums.add_file",
                    lambda sums, path, error=error: (_ for _ in ()).throw(error),
                )
                if number == 24:
                    with pytest.raises(StorageFault, match="Too many"):
                        blobs.damage(name)
                    assert blobs.path(name).exists()
                else:
                    assert "cannot be read and was moved to" in blobs.damage(name)
        assert quarantined(tmp_path / "state") == {name}

    scenario(story, tmp_path)


def test_a_damaged_database_is_made_again_of_its_copy_and_without_one_names_the_way_back(
    tmp_path: Path,
) -> None:
    store = Store(tmp_path)
    with store.database.transaction():
        for number in range(300):
            row = (f"device-{number:050}",)
            store.database.execute("INSERT INTO devices VALUES (?, 'toy', 1.0, 2.0)", row)
    known = store.journal.devices()
    store.close()
    path = tmp_path / "shoal.db"
    data = bytearray(path.read_bytes())
    for page in range(3, len(data) // 4096):
        data[page * 4096 : page * 4096 + 64] = b"\xff" * 64
    path.write_bytes(data)
    with closing(Store(tmp_path)) as store:
        assert store.journal.devices() == known
        assert "and was made again of shoal.db.copy" in store.database.repaired[0]
    assert (tmp_path / "shoal.db.damaged").read_bytes() == bytes(data)
    path.write_bytes(data)
    (tmp_path / "shoal.db.copy").write_bytes(b"no database")
    with pytest.raises(StorageFault, match="fedserver restore BACKUP --state DIR"):
        Store(tmp_path)
    assert path.read_bytes() == bytes(data)
