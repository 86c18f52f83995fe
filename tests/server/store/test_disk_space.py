"""A full disk: uploads are refused first, decisions wait, the rest goes on, and it all recovers by itself."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.disk_space import RESERVE, DiskSpace
from fedserver.store.journal.journal import Journal
from fedserver.store.reports import Arrival
from fedserver.store.runs import Runs
from fedserver.store.store import Store
from shoal.core.errors import ConfigError, DiskFull, ServerFull, StorageFault
from shoal.core.exchange.link import Outcome, Report
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.tensors import nbytes
from shoal.core.exchange.wire import payload_to_bytes
from tests.server.servers import DEVICES, expected, hands, models, scenario, serve_all, spec, start
from tests.server.store.samples import RECORD, checkpoint, report
from tests.server.toys import MODEL, Hands, honest, pieces_of, same_models
from tests.waiting import until

MARK = Settings().low_water


class Disk:
    """How much is free, in place of what the file system says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
        self.free = free
        monkeypatch.setattr(DiskSpace, "free", lambda room: self.free)


def test_uploads_that_do_not_fit_are_refused_and_all_else_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        first = await devices[0].task()
        uploaded = devices[0].payload(honest(0)(await devices[0].open(first), first.seed))
        await devices[0].upload(uploaded)

        disk = Disk(monkeypatch, MARK + 100)  # the model has 136 bytes
        second = await devices[1].task()
        message = await devices[1].open(second)  # downloads go on
        payload = devices[1].payload(honest(1)(message, second.seed))
        with pytest.raises(ServerFull, match="needs 36 more free bytes for an upload of 136 bytes"):
            await devices[1].upload(payload)
        with pytest.raises(ServerFull):  # refused before a byte was on its way
            await devices[1].link.uploaded(payload.weights()[0].blob)
        assert await devices[0].link.uploaded(uploaded.weights()[0].blob) == 136
        operator = Hands(OperatorApi(coordinator))  # type: ignore[arg-type]
        weights = operator.keep(MODEL)
        with pytest.raises(ServerFull):
            await operator.link.upload(weights.blob, 0, pieces_of(operator.blobs[weights.blob.sha256]))
        receipt = await devices[0].link.report(Report(first.run, first.round, first.attempt, uploaded))
        assert receipt.outcome is Outcome.ACCEPTED  # its blob is here already
        assert (await OperatorApi(coordinator).status()).notices == ()
        disk.free = MARK - 5
        assert "the disk needs 5 more free bytes" in (await OperatorApi(coordinator).status()).notices[0]

        disk.free = MARK + DEVICES * 136
        assert (await devices[1].send(second, payload)).outcome is Outcome.ACCEPTED
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected())

    scenario(story, tmp_path)


def test_uploads_under_way_count_with_what_has_not_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, disk = DiskSpace(tmp_path), Disk(monkeypatch, 1000)
    with room.expecting(600, 100) as came:
        assert room.lacks(100, 300) == 0
        with pytest.raises(ServerFull), room.expecting(301, 100):
            pass
        came(500)
        disk.free -= 500
        assert (room.lacks(100, 300), room.lacks(100, 301)) == (0, 1)
        came(500)  # more than was announced
        assert room.lacks(100, 400) == 0
    assert room.lacks(0, 500) == 0


def test_the_mark_grows_with_the_models(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        assert coordinator.low_water() == MARK
        coordinator.settings = Settings(low_water=0)
        await start(coordinator)
        assert coordinator.low_water() == 2 * nbytes(MODEL)

    scenario(story, tmp_path)


def test_a_negative_mark_is_refused() -> None:
    with pytest.raises(ConfigError, match="low_water"):
        Settings(low_water=-1)


def test_the_reserve_is_there_when_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    room, disk = DiskSpace(tmp_path), Disk(monkeypatch, RESERVE + 99)
    room.hold(100)
    assert list(tmp_path.iterdir()) == []
    disk.free += 1
    room.hold(100)
    reserve = tmp_path / "reserve"
    assert reserve.stat().st_size == RESERVE
    assert reserve.stat().st_blocks * 512 >= RESERVE
    room.make_way()
    assert reserve.exists()
    disk.free = RESERVE - 1
    room.make_way()
    assert not reserve.exists()
    assert not room.release()


@pytest.mark.parametrize("method", ["open_round", "save_round", "end", "log", "keep"])
def test_a_decision_that_does_not_fit_waits_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The second time that the run comes to it."""
    part = Journal if method == "log" else Runs
    real, passed, full = getattr(part, method), 0, asyncio.Event()

    def failing(store: object, *arguments: object) -> object:
        nonlocal passed
        if arguments[0] == "toy":
            passed += 1
        if passed == (1 if method == "end" else 2) and full.is_set():
            passed -= 1
            raise DiskFull("shoal.db: database or disk is full", "free some")
        return real(store, *arguments)

    monkeypatch.setattr(part, method, failing)
    monkeypatch.setattr("fedserver.store.store.RETRY", 0.01)

    async def story(coordinator: Coordinator) -> None:
        full.set()
        reserve = tmp_path / "state" / "reserve"
        assert reserve.exists()
        await start(coordinator)
        playing = asyncio.create_task(serve_all(coordinator))
        await until(lambda: coordinator.storage.full is not None)
        assert not reserve.exists()
        operator = OperatorApi(coordinator)
        status = await operator.status()
        assert "the disk is full, and all runs wait for space" in status.notices[0]
        assert [run.waiting_for for run in status.runs] == ["space on the server's disk"] * len(status.runs)
        assert (await operator.show("toy")).summary.run == "toy"
        device = await hands(coordinator, 9)
        for call in (
            device.link.next_task(1.0),
            device.link.leave(),
            operator.start_run(spec(name="x"), None),
        ):
            with pytest.raises(ServerFull):
                await call
        playing.cancel()
        full.clear()
        await asyncio.gather(playing, return_exceptions=True)
        await until(lambda: coordinator.storage.full is None)
        await serve_all(coordinator)
        assert coordinator.runs["toy"].standing.value == "finished"
        assert same_models(models(coordinator), expected())
        assert not coordinator.broken.done()

    scenario(story, tmp_path)


def test_a_server_that_stops_while_it_waits_for_room_decides_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(store: object, *arguments: object) -> None:
        raise DiskFull("full")

    monkeypatch.setattr(Runs, "save_round", full)

    async def before(coordinator: Coordinator) -> None:
        await start(coordinator)
        playing = asyncio.create_task(serve_all(coordinator))
        await until(lambda: coordinator.storage.full is not None)
        playing.cancel()
        await asyncio.gather(playing, return_exceptions=True)

    async def after(coordinator: Coordinator) -> None:
        assert len(await coordinator.storage.call(coordinator.storage.reports.of_round, "toy", 1)) == DEVICES
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected())

    scenario(before, tmp_path)
    monkeypatch.undo()
    scenario(after, tmp_path)


def test_a_report_that_does_not_fit_is_not_acknowledged_and_comes_again(tmp_path: Path) -> None:
    """SQLite itself says that it is full: there is a most that a database may have."""
    store = Store(tmp_path)
    store.runs.add(RECORD, checkpoint(store, 1.0))
    small = report(store, "a", 2.0)
    large = Payload("trained", {**small.payload.parts, "curve": (1.0,) * 2_500})
    found = replace(small, data=payload_to_bytes(large))
    (pages,) = store.database.connection.execute("PRAGMA page_count").fetchone()
    store.database.connection.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(DiskFull, match="full"):
        store.reports.add([Arrival.of(found)])
    assert store.reports.of_round("mnist", 1) == []
    assert not store.blobs.path(found.blobs[0]).exists()
    store.database.connection.execute(f"PRAGMA max_page_count = {pages + 100}")
    store.reports.add([Arrival.of(report(store, "a", 2.0))])
    assert len(store.reports.of_round("mnist", 1)) == 1
    store.close()


def test_what_fsync_refused_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second fsync would succeed without having written: the piece of the upload goes."""
    store = Store(tmp_path)
    weights = store.blobs.keep(MODEL)
    upload = store.blobs.receive("d", weights.blob, 0, 1 << 20)
    upload.append(b"x" * 64)
    with monkeypatch.context() as patched:
        patched.setattr(
            "os.fsync", lambda descriptor: (_ for _ in ()).throw(OSError(5, "Input/output error"))
        )
        with pytest.raises(StorageFault, match="Input/output"):
            upload.finish()
    upload.close()
    assert store.blobs.uploaded("d", weights.blob) == 0
    store.close()


def test_who_asks_before_it_is_known_that_the_disk_is_full_gets_an_answer(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        operator, storage, full = OperatorApi(coordinator), coordinator.storage, True

        def write() -> None:
            if full:
                raise DiskFull("shoal.db: database or disk is full", "free some")

        async with coordinator._turn:  # a decision is being stored
            calls = (operator.status(), operator.show("toy"), operator.clusters("toy"))
            asking = [asyncio.create_task(call) for call in calls]
            await until(lambda: len(coordinator._turn._waiters or ()) == len(asking))
            assert not any(task.done() for task in asking)
            storing = asyncio.create_task(storage.when_space(write))  # it does not fit, and waits
            status, shown, clusters = await asyncio.gather(*asking)
            assert "the disk is full, and all runs wait for space" in status.notices[0]
            assert shown.summary.waiting_for == "space on the server's disk"
            assert clusters == await operator.clusters("toy")
            full = False
            await storing
        assert (await operator.show("toy")).summary.waiting_for != "space on the server's disk"

    scenario(story, tmp_path)
