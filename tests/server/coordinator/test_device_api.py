"""A device's visit: sessions and leases, and what a device hears when the server ends or fails."""

import asyncio
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedserver.coordinator import runs
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from shoal.core.engine.events import Left
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import SessionLost, Unavailable, WrongVersion
from shoal.core.exchange.link import Hello, Idle, Outcome, Report, Task
from shoal.core.exchange.payload import BlobRef
from shoal.core.server_kit.aggregation.guard import Guard
from tests.server.servers import (
    DEVICES,
    SETTINGS,
    expected,
    hands,
    link,
    models,
    scenario,
    serve_all,
    start,
)
from tests.server.toys import MODEL, honest, same_models
from tests.waiting import until

ALONE = RoundPolicy(devices=1, minimum=1)


def test_a_later_hello_makes_the_earlier_session_void(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=ALONE)
        first = await hands(coordinator, 0)
        task = await first.task()
        second = await hands(coordinator, 0)
        again = await second.task()
        assert (again.round, again.attempt) == (task.round, task.attempt + 1)
        for call in (
            first.link.next_task(0.0),
            first.link.alive(task.run, task.round, task.attempt),
            first.link.uploaded(BlobRef("ab" * 32, 3)),
            first.link.report(Report(task.run, task.round, task.attempt, again.payload)),
            first.link.leave(),
            anext(first.link.fetch(task.payload.weights()[0].blob, 0)),
        ):
            with pytest.raises(SessionLost, match="another process has replaced this one"):
                await call
        assert await second.link.alive(again.run, again.round, again.attempt)
        assert not await second.link.alive(task.run, task.round, task.attempt)
        assert (await second.do(again, honest(0))).outcome is Outcome.ACCEPTED

    scenario(story, tmp_path)


def test_who_copies_a_devices_folder_is_told_by_the_status(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        one = await hands(coordinator, 0)
        for _ in range(3):
            assert coordinator.notices() == ()
            other = await hands(coordinator, 0)
            for _ in range(2):
                with pytest.raises(SessionLost):
                    await one.link.next_task(0.0)
            one = other
        (notice,) = coordinator.notices()
        assert "take turns as d0" in notice

    scenario(story, tmp_path)


def test_a_device_that_fell_silent_finds_its_task_again_when_it_fetches(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=ALONE)
        device = await hands(coordinator, 0)
        task = await device.task()
        await coordinator.runs["toy"].advance(Left("d0"))
        await device.open(task)
        assert (await device.task()).attempt == task.attempt + 1

    scenario(story, tmp_path)


def test_a_poll_of_an_earlier_session_ends_at_once(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        first = await hands(coordinator, 0)
        polling = asyncio.create_task(first.link.next_task(10.0))
        await until(lambda: coordinator.visitor("d0").polling == 1)
        await hands(coordinator, 0)
        with pytest.raises(SessionLost):
            await polling

    scenario(story, tmp_path)


def test_who_never_said_hello_is_asked_to(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        with pytest.raises(SessionLost):
            await link(coordinator, 0).next_task(0.0)
        with pytest.raises(SessionLost):
            await DeviceApi(coordinator, "d0", "made-up").next_task(0.0)
        welcome = await link(coordinator, 0).hello(Hello("toy"))
        assert (welcome.poll, welcome.heartbeat) == (SETTINGS.poll, SETTINGS.heartbeat)
        assert isinstance(await DeviceApi(coordinator, "d0", welcome.session).next_task(0.0), Idle)

    scenario(story, tmp_path)


def test_a_device_of_another_version_is_told_both(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        with pytest.raises(
            WrongVersion, match="speaks protocol version 1, but the device speaks versions 2 to 3"
        ):
            await link(coordinator, 0).hello(Hello("toy", 2, 3))

    scenario(story, tmp_path)


def test_a_lease_is_given_again_until_it_is_answered(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=ALONE)
        device = await hands(coordinator, 0)
        assert await device.task() == await device.task()

    scenario(story, tmp_path)


def test_a_withdrawn_task_is_not_wanted_any_more(tmp_path: Path) -> None:
    """The round is full without the slowest device."""

    async def story(coordinator: Coordinator) -> None:
        await start(
            coordinator, policy=RoundPolicy(devices=2, minimum=2, oversample=1.5, wait_for_devices=0.0)
        )
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        tasks = []
        for device in devices:
            await device.link.next_task(0.0)
        for device in devices:
            found = await device.link.next_task(0.0)
            if isinstance(found, Task):
                tasks.append((device, found))
        if len(tasks) < DEVICES:  # it opened with the first two: all three are asked from the next round on
            for device, task in tasks:
                await device.do(task, honest(0))
            tasks = [(device, await device.task()) for device in devices]
        (slow, its_task), *others = tasks
        payload = slow.payload(honest(0)(await slow.open(its_task), its_task.seed))
        for device, task in others:
            await device.do(task, honest(1))
        assert not await slow.link.alive(its_task.run, its_task.round, its_task.attempt)
        receipt = await slow.link.report(Report(its_task.run, its_task.round, its_task.attempt, payload))
        assert receipt.outcome is Outcome.LATE

    scenario(story, tmp_path)


def test_a_device_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=RoundPolicy(devices=2, minimum=1, wait_for_devices=600.0))
        devices = [await hands(coordinator, number) for number in range(2)]
        for device in devices:
            await device.link.next_task(0.0)
        await devices[0].task()
        await devices[0].link.leave()
        await devices[1].do(await devices[1].task(), honest(1))
        status = await OperatorApi(coordinator).show("toy")
        while status.summary.round == 1:
            status = await OperatorApi(coordinator).show("toy")
        assert status.missing == {"d0": "it left"}
        with pytest.raises(SessionLost):
            await devices[0].link.next_task(0.0)

    scenario(story, tmp_path)


def test_a_silent_device_is_gone_and_may_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ahead = 0.0
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))

    async def story(coordinator: Coordinator) -> None:
        nonlocal ahead
        await start(
            coordinator,
            policy=RoundPolicy(devices=2, minimum=1, device_timeout=600.0, wait_for_devices=500.0),
        )
        devices = [await hands(coordinator, number) for number in range(2)]
        for device in devices:
            await device.link.next_task(0.0)
        silent = await devices[0].task()
        await devices[1].do(await devices[1].task(), honest(1))
        waiting = asyncio.create_task(devices[1].task())
        await until(lambda: coordinator.visitor("d1").polling == 1)
        ahead = 601.0
        await until(lambda: coordinator.runs["toy"].engine.round == 2)
        ahead = 1102.0  # round 2 waits for the silent device, too
        assert (await waiting).round == 2
        status = await OperatorApi(coordinator).show("toy")
        assert "not heard from" in status.missing["d0"]
        assert not await devices[0].link.alive(silent.run, silent.round, silent.attempt)
        assert (await devices[0].link.next_task(0.0)) is not None
        assert coordinator.runs["toy"].present("d0")

    scenario(story, tmp_path)


def test_a_device_that_waits_for_a_task_is_not_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 0.0
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))

    async def story(coordinator: Coordinator) -> None:
        nonlocal ahead
        await start(coordinator, policy=RoundPolicy(devices=2, minimum=2, device_timeout=600.0))
        engine, device = coordinator.runs["toy"].engine, await hands(coordinator, 0)
        waiting = asyncio.create_task(device.link.next_task(10.0))
        await until(lambda: coordinator.visitor("d0").polling == 1 and engine.sessions.is_here("d0"))
        before, ahead = engine._now, 601.0  # as if no decision could be made for ten minutes
        await until(lambda: engine._now > before + 601.0)
        await OperatorApi(coordinator).show("toy")  # in turn: after the tick
        assert coordinator.runs["toy"].present("d0")
        assert engine.sessions.of("d0").attempt == 1, "it did not have to join again"
        waiting.cancel()

    scenario(story, tmp_path)


def test_the_end_is_told_once_at_once_and_a_new_run_again(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        device = await hands(coordinator, 0)
        before = await device.link.next_task(0.0)
        assert isinstance(before, Idle)
        assert not before.finished
        await start(coordinator, policy=ALONE, parameters={"rounds": 1, "evaluate": False})
        await device.do(await device.task(), honest(0))
        after = await device.link.next_task(9.0)
        while isinstance(after, Idle) and not after.finished:  # a busy machine still combines the report
            after = await device.link.next_task(9.0)
        assert isinstance(after, Idle)
        waiting = asyncio.create_task(device.link.next_task(9.0))
        await until(lambda: coordinator.visitor("d0").polling == 1)
        assert not waiting.done()
        await start(coordinator, policy=ALONE, name="next")
        task = await waiting
        assert isinstance(task, Task)
        assert task.run == "next"

    scenario(story, tmp_path)


# -- the server's own end ----------------------------------------------------------------------------------


def test_a_server_that_stops_answers_who_waits(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        device = await hands(coordinator, 0)
        polling = asyncio.create_task(device.link.next_task(10.0))
        await until(lambda: coordinator.visitor("d0").polling == 1)
        coordinator.stop_serving()
        with pytest.raises(Unavailable, match="is stopping"):
            await polling
        for call in (device.link.hello(Hello("toy")), device.link.place("", None)):
            with pytest.raises(Unavailable, match="is stopping"):
                await call

    scenario(story, tmp_path)


def test_an_error_in_the_algorithm_fails_its_run_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.core.algorithms.fedavg import server as server_half

    real = server_half.reduce

    def reduce(state: server_half.State, reports: object) -> server_half.State:
        if state.parameters.rounds == 7:
            raise ZeroDivisionError("float division by zero")
        return real(state, reports)  # type: ignore[arg-type]

    monkeypatch.setattr(server_half, "reduce", reduce)

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, name="bad", parameters={"rounds": 7})
        await start(coordinator, name="good")
        await serve_all(coordinator)
        bad = (await OperatorApi(coordinator).show("bad")).summary
        assert bad.stage == "failed"
        assert "round 1 cannot be combined: ZeroDivisionError: float division by zero" in bad.waiting_for
        assert same_models(models(coordinator, "good"), expected())

    scenario(story, tmp_path)


def test_a_combined_model_that_is_not_finite_is_never_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from shoal.core.server_kit import clustered

    infinite = {**MODEL, "layer.bias": np.full(3, np.inf, np.float32)}
    monkeypatch.setattr(clustered, "next_models", lambda *given: ({clustered.GLOBAL: infinite}, Guard()))

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await serve_all(coordinator)
        status = await OperatorApi(coordinator).show("toy")
        assert status.summary.stage == "failed"
        assert "the combined model global" in status.summary.waiting_for
        assert same_models(models(coordinator), {"global": MODEL})

    scenario(story, tmp_path)
