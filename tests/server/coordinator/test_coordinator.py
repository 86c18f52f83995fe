"""A run over links, without a network: the same models as in simulation, whatever is done to it."""

import asyncio
import inspect
import threading
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedserver.coordinator import recipe, runs
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.content.blobs import Blobs
from fedserver.store.records import RunSpec
from fedserver.store.store import Store
from shoal.core.algorithms.fedavg import server as server_half
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import ConfigError, NotFound
from shoal.core.exchange.link import Idle, Outcome, Placement, Report
from shoal.core.exchange.payload import Weights
from shoal.core.exchange.tensors import digest
from shoal.core.types import Tensors
from tests.server.servers import (
    DEVICES,
    ROUNDS,
    SETTINGS,
    crash,
    expected,
    hands,
    models,
    scenario,
    serve_all,
    server,
    start,
)
from tests.server.toys import MODEL, honest, same_models
from tests.waiting import HANG, until

# -- the straight run --------------------------------------------------------------------------------------


def test_the_models_are_those_of_the_simulation_bit_by_bit(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        run = await start(coordinator)
        await serve_all(coordinator)
        status = await OperatorApi(coordinator).show(run)
        assert status.summary.stage == "finished"
        assert same_models(models(coordinator), expected())
        assert status.models["global"].blob.sha256 == digest(expected()["global"])
        assert status.clusters == {"global": ("d0", "d1", "d2")}
        first = status.devices[0]
        assert first.accuracy is not None
        size = status.models["global"].blob.size
        assert (first.bytes_up, first.bytes_down) == (ROUNDS * size, (ROUNDS + 1) * size)

    scenario(story, tmp_path)


def test_without_initial_weights_one_device_is_asked(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, None)
        await serve_all(coordinator)
        assert coordinator.runs["toy"].standing.value == "finished"
        assert list(models(coordinator)["global"]) == list(MODEL)

    scenario(story, tmp_path)


def test_a_model_is_packed_once_however_many_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed, keep = [], Blobs.keep

    def counting(self: Blobs, tensors: Tensors) -> Weights:
        packed.append(tensors)
        return keep(self, tensors)

    monkeypatch.setattr(Blobs, "keep", counting)

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator)
        await serve_all(coordinator)
        assert len(packed) == ROUNDS  # one for each round's new model, none for the tasks
        assert coordinator.runs["toy"].standing.value == "finished"

    scenario(story, tmp_path)


def test_several_runs_share_their_devices_and_the_oldest_goes_first(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, name="first")
        other = {name: array + 1 for name, array in MODEL.items()}
        await start(coordinator, other, name="second", parameters={"rounds": 1})
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.join()
        assert {(await device.task()).run for device in devices} == {"first"}
        await serve_all(coordinator)
        assert {run.standing.value for run in coordinator.runs.values()} == {"finished"}
        assert same_models(models(coordinator, "first"), expected())
        assert same_models(models(coordinator, "second"), expected(other, rounds=1))
        # Each knows its own traffic. The first model of the first came in two sessions of each device.
        for run, up, down in (("first", ROUNDS, ROUNDS + 2), ("second", 1, 2)):
            status = await OperatorApi(coordinator).show(run)
            size = status.models["global"].blob.size
            assert {(each.bytes_up, each.bytes_down) for each in status.devices} == {(up * size, down * size)}

    scenario(story, tmp_path)


def test_a_run_that_starts_later_finds_the_devices_that_wait(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        waiting = [asyncio.create_task((await hands(coordinator, n)).task(9.0)) for n in range(DEVICES)]
        await until(lambda: all(coordinator.visitor(f"d{n}").polling for n in range(DEVICES)))
        assert not any(each.done() for each in waiting)
        await start(coordinator)
        assert {task.run for task in await asyncio.gather(*waiting)} == {"toy"}

    scenario(story, tmp_path)


# -- a stop and another start ------------------------------------------------------------------------------


@pytest.mark.parametrize("counted", range(1, DEVICES * (ROUNDS + 1)))
def test_a_restart_after_any_report_gives_the_same_models(tmp_path: Path, counted: int) -> None:
    """The first server ends wherever it is, without a farewell; devices keep nothing."""

    async def until_then(coordinator: Coordinator) -> None:
        await start(coordinator)
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        for report in range(counted):
            number = report % DEVICES
            receipt = await devices[number].do(await devices[number].task(), honest(number))
            assert receipt.outcome is Outcome.ACCEPTED

    async def play() -> None:
        first = await Coordinator.open(tmp_path, SETTINGS)
        await until_then(first)
        await crash(first)
        async with server(tmp_path) as second:
            await serve_all(second)
            assert same_models(models(second), expected())
            numbers = [
                each.number for each in await OperatorApi(second).log("toy", 0) if "done: " in each.text
            ]
            assert len(numbers) == ROUNDS + 1

    asyncio.run(play())


def test_a_result_in_hand_counts_after_a_restart(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            await start(coordinator)
            devices = [await hands(coordinator, number) for number in range(DEVICES)]
            await asyncio.gather(*(device.link.next_task(0.0) for device in devices))
            task = await devices[0].task()
            payload = devices[0].payload(honest(0)(await devices[0].open(task), task.seed))
            await devices[0].upload(payload)
        async with server(tmp_path) as coordinator:
            again = await hands(coordinator, 0)
            assert await again.link.uploaded(payload.weights()[0].blob) == payload.weights()[0].blob.size
            leased = await again.task()
            assert (leased.run, leased.round, leased.seed) == (task.run, task.round, task.seed)
            report = Report(leased.run, leased.round, leased.attempt, payload)
            assert (await again.link.report(report)).outcome is Outcome.ACCEPTED
            assert (await again.link.report(report)).outcome is Outcome.DUPLICATE

    asyncio.run(play())


def test_a_run_that_is_over_is_still_there_after_a_restart(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            await start(coordinator)
            await serve_all(coordinator)
            before = await OperatorApi(coordinator).show("toy")
        async with server(tmp_path) as coordinator:
            after = await OperatorApi(coordinator).show("toy")
            assert after == before
            device = await hands(coordinator, 0)
            idle = await device.link.next_task(0.0)
            assert isinstance(idle, Idle)
            assert idle.finished
            answer = await device.link.place("toy", None)
            assert isinstance(answer, Placement)
            assert answer.model == before.models["global"]

    asyncio.run(play())


def test_a_run_that_cannot_be_read_does_not_keep_the_server_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            await start(coordinator, name="lost")
            await start(coordinator, name="sound")

        def only_sound(run: RunSpec) -> Any:
            if run.name == "lost":
                raise ConfigError("there is no algorithm 'fedavg'")
            return recipe.recipe_of(run)

        monkeypatch.setattr("fedserver.coordinator.repair.recovery.recipe_of", only_sound)
        async with server(tmp_path) as coordinator:
            found = {run.run: run for run in OperatorApi(coordinator).runs()}
            assert found["lost"].stage == "failed"
            assert "there is no algorithm" in found["lost"].waiting_for
            assert found["sound"].stage == "waiting"
            with pytest.raises(NotFound, match="cannot be read"):
                await OperatorApi(coordinator).show("lost")
        monkeypatch.undo()
        async with server(tmp_path) as coordinator:
            assert coordinator.runs["lost"].active

    asyncio.run(play())


# -- time, and the end of the server -----------------------------------------------------------------------


def test_a_round_goes_on_at_its_deadline_and_a_late_report_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = 0.0
    monkeypatch.setattr(runs, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + ahead))

    async def story(coordinator: Coordinator) -> None:
        nonlocal ahead
        policy = RoundPolicy(devices=2, minimum=1, deadline=600.0, device_timeout=6000.0)
        await start(coordinator, policy=policy)
        fast, slow = [await hands(coordinator, number) for number in range(2)]
        for device in (fast, slow):
            await device.link.next_task(0.0)
        task = await slow.task()
        payload = slow.payload(honest(1)(await slow.open(task), task.seed))
        await slow.upload(payload)
        await fast.do(await fast.task(), honest(0))
        assert coordinator.runs["toy"].engine.round == 1
        ahead = 601.0
        assert (await fast.task(9.0)).round == 2
        receipt = await slow.link.report(Report(task.run, task.round, task.attempt, payload))
        assert (receipt.outcome, receipt.reason[:19]) == (Outcome.LATE, "round 1 is not open")
        assert await slow.link.uploaded(payload.weights()[0].blob) == 0
        assert (await OperatorApi(coordinator).show("toy")).missing == {
            "d1": "it did not report before the deadline"
        }

    scenario(story, tmp_path)


@pytest.mark.parametrize("grace", [0.0, 30.0])
def test_a_stop_while_reports_are_combined_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    """With time enough the round is saved; without, the next start combines the same reports again."""
    began, go_on, real = threading.Event(), threading.Event(), server_half.reduce

    def slow(state: server_half.State, reports: Any) -> server_half.State:
        began.set()
        go_on.wait(HANG)
        return real(state, reports)

    monkeypatch.setattr(server_half, "reduce", slow)

    async def play() -> None:
        first = await Coordinator.open(tmp_path, replace(SETTINGS, grace=grace))
        await start(first)
        devices = [await hands(first, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        for number, device in enumerate(devices):
            await device.do(await device.task(), honest(number))
        await asyncio.to_thread(began.wait, HANG)
        ended = asyncio.create_task(first.close())
        if grace == 0.0:
            await ended
            go_on.set()
        else:
            await until(lambda: first.stopping)
            assert not ended.done()
            go_on.set()
            await ended
        monkeypatch.setattr(server_half, "reduce", real)
        with closing(Store(tmp_path)) as left:
            (record,) = left.runs.all()
        assert record.round == (1 if grace == 0.0 else 2)
        async with server(tmp_path) as second:
            await serve_all(second)
            assert same_models(models(second), expected())

    asyncio.run(play())


def test_a_blob_that_is_lost_makes_its_run_unreadable_and_no_other(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            await start(coordinator, name="lost")
            await start(coordinator, {"w": np.ones(3, np.float32)}, name="sound")
            coordinator.storage.blobs.remove([digest(MODEL)])
        async with server(tmp_path) as coordinator:
            found = {run.run: run for run in OperatorApi(coordinator).runs()}
            assert (found["lost"].stage, found["sound"].stage) == ("failed", "waiting")
            assert "is missing (restore a backup" in found["lost"].waiting_for

    asyncio.run(play())


def test_a_tick_that_fails_ends_the_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            monkeypatch.setattr(coordinator.runs, "active", lambda: 1 / 0)
            assert isinstance(await coordinator.broken, ZeroDivisionError)
            monkeypatch.undo()

    asyncio.run(play())


def test_idle_devices_are_told_which_runs_go_on(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        assert coordinator.idle().going_on is None
        await start(coordinator, name="first")
        await start(coordinator, name="second")
        assert coordinator.idle().going_on == ("first", "second")
        await OperatorApi(coordinator).stop_run("first", "")
        assert coordinator.idle().going_on == ("second",)
        await OperatorApi(coordinator).stop_run("second", "")
        assert coordinator.idle().going_on == ()

    scenario(story, tmp_path)


def test_work_that_waits_for_its_turn_when_the_process_ends_is_closed(tmp_path: Path) -> None:
    """Else Python warns that it was never awaited, which reads like a fault."""

    async def story() -> None:
        coordinator = await Coordinator.open(tmp_path / "state", SETTINGS)
        works = [asyncio.sleep(HANG), asyncio.sleep(0)]
        turns = [asyncio.create_task(coordinator.in_turn(work)) for work in works]
        await asyncio.sleep(0)
        await crash(coordinator)
        await asyncio.gather(*turns, return_exceptions=True)
        assert [inspect.getcoroutinestate(work) for work in works] == [inspect.CORO_CLOSED] * 2

    asyncio.run(story())
