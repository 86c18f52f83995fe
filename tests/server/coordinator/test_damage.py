"""What the disk damages while the server works is found when it is used, and no run is lost by it."""

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.content import checked
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import BadPayload, NotFound
from shoal.core.exchange.link import Failure, Outcome, Report, Task
from tests.server.coordinator.test_recovery import lines, quarantined, reports, spoil
from tests.server.servers import DEVICES, ROUNDS, expected, hands, models, scenario, serve_all, server, start
from tests.server.toys import Hands, honest, same_models
from tests.waiting import until


async def newest(coordinator: Coordinator) -> str:
    """The blob of the model that the run continues from."""
    run = coordinator.runs["toy"]
    last = (await coordinator.storage.call(coordinator.storage.runs.versions, "toy"))[-1]
    (weights,) = (await run.storage.call(run.blobs.models_of, run.state_type, last)).values()
    return weights.blob.sha256


def forget(coordinator: Coordinator) -> None:
    """Let the run have nothing in memory from which a blob could be written again."""
    run = coordinator.runs["toy"]
    run.blobs = run.repairs.blobs = coordinator.storage.blob_cache("toy")


async def complain(device: Hands, task: Task) -> Outcome:
    """Say what a device says that got wrong bytes twice."""
    failure = Failure(BadPayload.code, "the bytes do not match their hash")
    return (await device.link.report(Report(task.run, task.round, task.attempt, failure))).outcome


async def in_the_second_round(coordinator: Coordinator) -> tuple[Hands, Task]:
    await reports(coordinator, DEVICES)
    device = await hands(coordinator, 0)
    return device, await device.task()


@pytest.mark.parametrize("copied", [True, False])
def test_a_damaged_current_model_is_restored_when_a_device_complains(tmp_path: Path, copied: bool) -> None:
    async def story(coordinator: Coordinator) -> None:
        device, task = await in_the_second_round(coordinator)
        name = await newest(coordinator)
        if copied:
            await coordinator.caretaker.copy()
            forget(coordinator)
        spoil(tmp_path / "state", name)
        with pytest.raises(AssertionError):
            await device.fetch(*task.payload.weights())
        assert await complain(device, task) is Outcome.LATE
        assert quarantined(tmp_path / "state") == {name}
        where = "it was restored from its copy" if copied else "it was written again from memory"
        assert where in await lines(coordinator)
        assert "the disk damaged what the server stored" in coordinator.notices()[0]
        again = await device.task()
        assert again == task
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected())
        storage = coordinator.storage
        assert len(await storage.call(storage.journal.timeline.read, "toy")) == ROUNDS + 1

    scenario(story, tmp_path)


def test_a_device_that_complains_about_sound_bytes_has_failed(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        device, task = await in_the_second_round(coordinator)
        assert await complain(device, task) is Outcome.ACCEPTED
        assert "d0: it failed: the bytes do not match" in await lines(coordinator)

    scenario(story, tmp_path)


def test_what_was_repaired_before_a_restart_is_blamed_on_no_device(tmp_path: Path) -> None:
    """The server that sent the damaged bytes has repaired them; the one that hears of it does not know."""

    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await in_the_second_round(first)
        async with server(tmp_path / "state") as coordinator:
            devices = [await hands(coordinator, number) for number in range(DEVICES)]
            device, task = devices[0], await devices[0].task()
            assert await complain(device, task) is Outcome.LATE
            assert await device.task() == task
            for number, each in enumerate(devices):
                await each.do(await each.task(), honest(number))
            later = await device.task()
            assert later.round > task.round
            assert await complain(device, later) is Outcome.ACCEPTED, "in a later round it is known"

    asyncio.run(play())


def test_a_current_model_that_cannot_be_restored_costs_one_round(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await in_the_second_round(first)
        async with server(tmp_path / "state") as coordinator:
            device = await hands(coordinator, 0)
            task = await device.task()
            name = await newest(coordinator)
            await asyncio.to_thread(coordinator.storage.blobs.keep_copies, [])
            forget(coordinator)
            spoil(tmp_path / "state", name)
            assert await complain(device, task) is Outcome.LATE
            assert "the run went back to those after round 0" in await lines(coordinator)
            assert [
                number
                for number, _ in await coordinator.storage.call(coordinator.storage.runs.checkpoints, "toy")
            ] == [3, 1]
            await serve_all(coordinator)
            assert coordinator.runs["toy"].engine.state.progress == ROUNDS

    asyncio.run(play())


def test_a_current_model_without_any_older_one_pauses_the_run_and_keeps_it(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await reports(first, 0)
            name = await newest(first)
        async with server(tmp_path / "state") as coordinator:
            device = await hands(coordinator, 0)
            task = await device.task()
            await asyncio.to_thread(coordinator.storage.blobs.keep_copies, [])
            forget(coordinator)
            spoil(tmp_path / "state", name)
            await complain(device, task)
            (found,) = OperatorApi(coordinator).runs()
            assert not found.over
            assert "there is no older checkpoint" in found.waiting_for

    asyncio.run(play())


@pytest.mark.parametrize("harm", ["flip", "cut", "delete"])
def test_a_damaged_report_is_withdrawn_while_it_is_combined_and_asked_again(
    tmp_path: Path, harm: str
) -> None:
    async def story(coordinator: Coordinator) -> None:
        await reports(coordinator, DEVICES - 1)
        run, state = coordinator.runs["toy"], tmp_path / "state"
        (name,) = (await coordinator.storage.call(coordinator.storage.reports.of_round, "toy", 1))[0].blobs
        path = coordinator.storage.blobs.path(name)
        if harm == "flip":
            spoil(state, name)
        elif harm == "cut":
            path.write_bytes(path.read_bytes()[:50])
        else:
            path.unlink()
        last = await hands(coordinator, DEVICES - 1)
        await last.do(await last.task(), honest(DEVICES - 1))
        assert run._reduction is not None
        await run._reduction
        assert run.engine.reported == {"d1", "d2"}
        assert "d0: an ACKNOWLEDGED report of round 1 is lost and requested again: blob" in await lines(
            coordinator
        )
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected())

    scenario(story, tmp_path)


def test_without_the_device_the_round_goes_on_without_the_damaged_report(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=RoundPolicy(devices=DEVICES, minimum=2))
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        tasks = await asyncio.gather(*(device.task() for device in devices))
        await devices[0].do(tasks[0], honest(0))
        await devices[0].link.leave()
        (name,) = (await coordinator.storage.call(coordinator.storage.reports.of_round, "toy", 1))[0].blobs
        spoil(tmp_path / "state", name)
        for number in (1, 2):
            await devices[number].do(tasks[number], honest(number))
        run = coordinator.runs["toy"]
        await until(lambda: run.engine.round == 2)
        await OperatorApi(coordinator).show("toy")  # in turn: after the round was stored
        (closed,) = await coordinator.storage.call(coordinator.storage.journal.timeline.read, "toy")
        assert (closed.reported, closed.missing) == (2, {"d0": "its report was damaged on the server's disk"})

    scenario(story, tmp_path)


def test_the_caretaker_finds_damage_that_nobody_has_used(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await reports(coordinator, DEVICES + 1)
        state, caretaker = tmp_path / "state", coordinator.caretaker
        await caretaker.copy()
        current = await newest(coordinator)
        (report,) = (await coordinator.storage.call(coordinator.storage.reports.of_round, "toy", 2))[0].blobs
        for name in (current, report):
            spoil(state, name)
        with closing(sqlite3.connect(state / "shoal.db")) as database, database:
            database.execute("UPDATE log SET text = 'other'")
        await caretaker.check()
        assert quarantined(state) == {current, report}
        assert coordinator.runs["toy"].engine.reported == set()
        assert await coordinator.storage.call(coordinator.storage.runs.versions, "toy") == [1, 2]
        with closing(sqlite3.connect(state / "shoal.db")) as database:
            assert database.execute("SELECT count(*) FROM log WHERE text = 'other'").fetchone() == (0,)
        copy = next((state / "copies").glob("??/*"))
        copy.write_bytes(b"rot")
        await caretaker.check()
        await caretaker.copy()
        assert copy.read_bytes() == coordinator.storage.blobs.path(copy.name).read_bytes()
        await serve_all(coordinator)
        assert same_models(models(coordinator), expected())
        await caretaker.copy()
        names = (await coordinator.storage.call(coordinator.storage.runs.checkpoints, "toy"))[0][1]
        assert {path.name for path in (state / "copies").glob("??/*")} == set(names)

    scenario(story, tmp_path)


def test_one_run_that_cannot_be_read_keeps_no_other_from_working(tmp_path: Path) -> None:
    state = tmp_path / "state"

    async def play() -> None:
        async with server(state) as first:
            await start(first, name="old")
            await OperatorApi(first).stop_run("old", "")
            await start(first)
        for name, damage in (
            ("shoal.db", "UPDATE checkpoints SET structure = replace(structure, '\"', '') WHERE run = 'old'"),
            (
                "shoal.db.copy",
                "DELETE FROM copies WHERE tbl = 'checkpoints' AND instr(data, CAST('old' AS BLOB))",
            ),
        ):
            with closing(sqlite3.connect(state / name)) as database, database:
                assert database.execute(damage).rowcount == 1
        async with server(state) as second:
            found = {run.run: run for run in OperatorApi(second).runs()}
            assert "it cannot be read: row 1 of table checkpoints is damaged" in found["old"].waiting_for
            with pytest.raises(NotFound, match="run 'old' cannot be read"):
                await OperatorApi(second).show("old")
            await serve_all(second)
            assert same_models(models(second), expected())

    asyncio.run(play())


def test_abandoned_rounds_age_no_checkpoint(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        policy = RoundPolicy(devices=1, minimum=1, max_abandoned_rounds=7, retry_after=0.0)
        await start(coordinator, policy=policy, parameters={"rounds": 9})
        device = await hands(coordinator, 0)
        for _ in range(4):
            await device.do(await device.task(), honest(0))
        await until(lambda: coordinator.runs["toy"].engine.round == 5)
        await OperatorApi(coordinator).show("toy")
        kept = await coordinator.storage.call(coordinator.storage.runs.checkpoints, "toy")
        for _ in range(6):
            task = await device.task()
            await device.link.report(
                Report(task.run, task.round, task.attempt, Failure("learner-failed", "no"))
            )
        await until(lambda: coordinator.runs["toy"].engine.round == 11)
        await OperatorApi(coordinator).show("toy")
        now = await coordinator.storage.call(coordinator.storage.runs.checkpoints, "toy")
        assert [names for _, names in now] == [names for _, names in kept]
        assert [number for number, _ in now] == [kept[0][0] + 6, *(number for number, _ in kept[1:])]

    scenario(story, tmp_path)


def test_a_model_that_is_damaged_after_a_restart_changes_no_result(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "state") as first:
            await in_the_second_round(first)
        async with server(tmp_path / "state") as coordinator:
            devices = [await hands(coordinator, number) for number in range(DEVICES)]
            tasks = await asyncio.gather(*(device.task() for device in devices))
            messages = [await device.open(task) for device, task in zip(devices, tasks, strict=True)]
            path = coordinator.storage.blobs.path(await newest(coordinator))
            with path.open("r+b") as file:  # each update is measured against this model
                file.write(b"\x41" * 64)
            for number, (device, task) in enumerate(zip(devices, tasks, strict=True)):
                await device.send(task, device.payload(honest(number)(messages[number], task.seed)))
            await serve_all(coordinator)
            assert same_models(models(coordinator), expected())

    asyncio.run(play())


async def with_models_on_disk(state: Path, both: bool) -> tuple[str, str]:
    """A run whose models are never in memory, as large ones are not. In the second round the present one is
    damaged, maybe with its copy. Returns what the server said of the disk, and the run's log."""
    async with server(state) as first:
        await in_the_second_round(first)
    async with server(state) as coordinator:
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        tasks = await asyncio.gather(*(device.task() for device in devices))
        messages = [await device.open(task) for device, task in zip(devices, tasks, strict=True)]
        blobs, name = coordinator.storage.blobs, await newest(coordinator)
        copy = state / "copies" / name[:2] / name
        for path in [blobs.path(name), copy][: 2 if both else 1]:
            with path.open("r+b") as file:
                file.write(b"\x41" * 64)
        for number, (device, task) in enumerate(zip(devices, tasks, strict=True)):
            await device.send(task, device.payload(honest(number)(messages[number], task.seed)))
        await serve_all(coordinator)
        run = coordinator.runs["toy"]
        history = run.engine.state.guard.histories["global"]
        for model in (*run.engine.state.models.values(), history.good):
            assert isinstance(model, checked.Checked)
        assert run.engine.state.progress == ROUNDS
        if not both:  # a round that is repeated has other seeds
            assert same_models(models(coordinator), expected())
        await coordinator.caretaker.copy()
        names = (await coordinator.storage.call(coordinator.storage.runs.checkpoints, "toy"))[0][1]
        await coordinator.caretaker.copy()
        assert {path.name for path in (state / "copies").glob("??/*")} >= set(names)
        assert list((state / "tmp").iterdir()) == []
        return "; ".join(blobs.restored), await lines(coordinator)


@pytest.mark.parametrize("both", [False, True])
def test_a_large_model_that_is_damaged_while_devices_train_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, both: bool
) -> None:
    monkeypatch.setattr(checked, "MIN_BYTES", 0)
    restored, log = asyncio.run(with_models_on_disk(tmp_path / "state", both))
    assert ("it was restored from its copy" in restored) is not both
    assert ("the run went back to those after round 0" in log) is both


def test_without_an_older_model_a_run_whose_large_model_is_lost_is_paused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checked, "MIN_BYTES", 0)

    async def story(coordinator: Coordinator) -> None:
        await reports(coordinator, DEVICES - 1)
        name, last = await newest(coordinator), await hands(coordinator, DEVICES - 1)
        task = await last.task()
        payload = last.payload(honest(DEVICES - 1)(await last.open(task), task.seed))
        for folder in ("blobs", "copies"):
            (tmp_path / "state" / folder / name[:2] / name).write_bytes(b"rot")
        await last.send(task, payload)
        await until(lambda: coordinator.runs["toy"].paused != "")
        assert "there is no older checkpoint" in coordinator.runs["toy"].paused
        assert coordinator.runs["toy"].active
        assert not coordinator.runs["toy"].engine.reported
        assert await coordinator.storage.call(coordinator.storage.reports.of_round, "toy", 1) == []

    scenario(story, tmp_path)
