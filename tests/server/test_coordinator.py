"""A run over links, without a network: the same models as in simulation, whatever is done to it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedcore.algorithm import find
from fedcore.errors import ConfigError, NotFound, Refused, Unavailable
from fedcore.link import Failure, Hello, Idle, Outcome, Placement, Report
from fedcore.messages import Evaluated, Train, Trained
from fedcore.payload import BlobRef, Payload, Weights
from fedcore.rounds import RoundPolicy, Stage
from fedcore.simulate import simulate
from fedcore.tensors import digest
from fedcore.types import ModelKey, RunId, Tensors
from fedserver.coordinator import Coordinator
from fedserver.desk import OWNER, Desk
from fedserver.link import DeviceLink, SayHello, WrongVersion
from fedserver.placing import CannotPlace
from fedserver.records import RunSpec
from fedserver.settings import Settings
from tests.server.toys import MODEL, Answer, Hands, fleet, honest, pieces_of, same_models, serve

DEVICES = 3
ROUNDS = 3
SETTINGS = Settings(poll=10.0, heartbeat=0.1, tick=0.05, model=1 << 20)


@asynccontextmanager
async def server(state: Path) -> AsyncIterator[Coordinator]:
    coordinator = await Coordinator.open(state, SETTINGS)
    try:
        yield coordinator
    finally:
        await coordinator.close()


def spec(**changes: Any) -> RunSpec:
    return RunSpec(
        **{
            "name": "toy",
            "algorithm": "fedavg",
            "parameters": {"rounds": ROUNDS},
            "policy": RoundPolicy(devices=DEVICES, minimum=DEVICES),
            "seed": 5,
            **changes,
        }
    )


async def start(coordinator: Coordinator, model: Tensors | None = MODEL, **changes: Any) -> RunId:
    initial = None
    if model is not None:
        hands = Hands(Desk(coordinator))  # type: ignore[arg-type]
        initial = hands.keep(model)
        await hands.link.upload(initial.blob, 0, pieces_of(hands.blobs[initial.blob.sha256]))
    return await Desk(coordinator).start_run(spec(**changes), initial)


def link(coordinator: Coordinator, number: int) -> DeviceLink:
    return DeviceLink(coordinator, f"d{number}")


async def hands(coordinator: Coordinator, number: int) -> Hands:
    return await Hands(link(coordinator, number)).hello()


async def serve_all(coordinator: Coordinator, numbers: range = range(DEVICES)) -> None:
    await asyncio.gather(*(serve(link(coordinator, number), honest(number)) for number in numbers))


def expected(**parameters: Any) -> dict[ModelKey, Tensors]:
    """The models of the same run in simulation."""
    algorithm, _ = find("fedavg")
    central = algorithm.central()
    first = central.start(MODEL, algorithm.configure("default", {"rounds": ROUNDS, **parameters}))
    return dict(simulate(central, first, fleet(DEVICES), spec().policy, spec().seed).state.models)


def models(coordinator: Coordinator, run: RunId = "toy") -> dict[ModelKey, Tensors]:
    return dict(coordinator.runs[run].engine.state.models)


def scenario(story: Callable[[Coordinator], Coroutine[Any, Any, None]], tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "state") as coordinator:
            await story(coordinator)

    asyncio.run(play())


# -- the straight run --------------------------------------------------------------------------------------


def test_the_models_are_those_of_the_simulation_bit_by_bit(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        run = await start(coordinator)
        await serve_all(coordinator)
        status = await Desk(coordinator).show(run)
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
    from fedserver.blobs import Blobs

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
        await start(coordinator, name="second", parameters={"rounds": 1})
        first = await hands(coordinator, 0)
        for number in (1, 2):
            await (await hands(coordinator, number)).task()
        assert (await first.task()).run == "first"
        await serve_all(coordinator)
        assert {run.standing.value for run in coordinator.runs.values()} == {"finished"}
        assert same_models(models(coordinator, "first"), expected())
        assert same_models(models(coordinator, "second"), expected(rounds=1))

    scenario(story, tmp_path)


def test_a_run_that_starts_later_finds_the_devices_that_wait(tmp_path: Path) -> None:
    async def story(coordinator: Coordinator) -> None:
        waiting = [asyncio.create_task((await hands(coordinator, n)).task(9.0)) for n in range(DEVICES)]
        await asyncio.sleep(0.05)
        assert not any(each.done() for each in waiting)
        await start(coordinator)
        assert {task.run for task in await asyncio.gather(*waiting)} == {"toy"}

    scenario(story, tmp_path)


# -- a stop and another start ------------------------------------------------------------------------------


@pytest.mark.parametrize("counted", range(1, DEVICES * (ROUNDS + 1)))
def test_a_restart_after_any_report_gives_the_same_models(tmp_path: Path, counted: int) -> None:
    """The first server ends without a farewell, as a crash would end it; devices keep nothing."""

    async def until_then(coordinator: Coordinator) -> None:
        await start(coordinator)
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        for device in devices:
            await device.link.next_task(0.0)
        for report in range(counted):
            number = report % DEVICES
            receipt = await devices[number].do(await devices[number].task(), honest(number))
            assert receipt.outcome is Outcome.ACCEPTED
        await coordinator.storage.close()

    async def play() -> None:
        first = await Coordinator.open(tmp_path, SETTINGS)
        assert first._ticking is not None
        first._ticking.cancel()
        await until_then(first)
        async with server(tmp_path) as second:
            await serve_all(second)
            assert same_models(models(second), expected())
            numbers = [each.number for each in await Desk(second).log("toy", 0) if "is done" in each.text]
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
            before = await Desk(coordinator).show("toy")
        async with server(tmp_path) as coordinator:
            after = await Desk(coordinator).show("toy")
            assert after == before
            device = await hands(coordinator, 0)
            idle = await device.link.next_task(0.0)
            assert isinstance(idle, Idle)
            assert idle.finished
            answer = await device.link.place("", None)
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
            return recipe_of(run)

        from fedserver.recipe import recipe_of

        monkeypatch.setattr("fedserver.coordinator.recipe_of", only_sound)
        async with server(tmp_path) as coordinator:
            found = {run.run: run for run in Desk(coordinator).runs()}
            assert found["lost"].stage == "failed"
            assert "there is no algorithm" in found["lost"].waiting_for
            assert found["sound"].stage == "waiting"
            with pytest.raises(NotFound, match="cannot be read"):
                await Desk(coordinator).show("lost")
        monkeypatch.undo()
        async with server(tmp_path) as coordinator:
            assert coordinator.runs["lost"].active

    asyncio.run(play())


# -- bad reports -------------------------------------------------------------------------------------------


def changed(**changes: Any) -> Callable[[Trained], dict[str, Any]]:
    def change(trained: Trained) -> dict[str, Any]:
        return {**vars(trained), **changes}

    return change


def with_model(model: Callable[[dict[str, Any]], dict[str, Any]]) -> Callable[[Trained], dict[str, Any]]:
    return lambda trained: {**vars(trained), "model": model(dict(trained.model))}


BAD: dict[str, tuple[Callable[[Trained], dict[str, Any]], str]] = {
    "shape": (with_model(lambda m: {**m, "layer.bias": np.zeros(4, np.float32)}), r"float32 \[4\] where"),
    "dtype": (with_model(lambda m: {**m, "layer.bias": np.zeros(3)}), "float64"),
    "name": (with_model(lambda m: {**m, "other": np.zeros(1)}), "unknown tensor 'other'"),
    "missing": (with_model(lambda m: {"layer.weight": m["layer.weight"]}), "lacks tensor 'layer.bias'"),
    "order": (with_model(lambda m: dict(reversed(m.items()))), "another order"),
    "nan": (with_model(lambda m: {**m, "layer.bias": np.full(3, np.nan, np.float32)}), "NaN or infinite"),
    "inf": (with_model(lambda m: {**m, "layer.bias": np.full(3, np.inf, np.float32)}), "NaN or infinite"),
    "loss": (changed(loss=float("nan")), "trained.loss is nan"),
    "examples": (changed(examples=0), "at least one sample"),
    "type": (changed(examples=1.5), "field 'examples'"),
    "unknown": (changed(gradient=1.0), "no field 'gradient'"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_report_is_refused_and_the_round_goes_on(tmp_path: Path, what: str) -> None:
    change, reason = BAD[what]

    async def story(coordinator: Coordinator) -> None:
        await start(coordinator, policy=RoundPolicy(devices=DEVICES, minimum=DEVICES - 1))
        devices = [await hands(coordinator, number) for number in range(DEVICES)]
        await asyncio.gather(*(device.link.next_task(0.0) for device in devices))
        task = await devices[0].task()
        good = honest(0)(await devices[0].open(task), task.seed)
        assert isinstance(good, Trained)
        parts: dict[str, Any] = {
            name: devices[0].keep(value) if isinstance(value, dict) else value
            for name, value in change(good).items()
            if value is not None
        }
        payload = Payload("trained", parts)
        for weights in payload.weights():
            data = devices[0].blobs[weights.blob.sha256]
            try:
                await devices[0].link.upload(weights.blob, 0, pieces_of(data))
            except Exception as error:  # it is larger than any answer: then it is the report that says so
                assert "where the task's answer needs at most" in str(error)
        receipt = await devices[0].link.report(Report(task.run, task.round, task.attempt, payload))
        assert receipt.outcome is Outcome.REFUSED
        pytest.raises(AssertionError, match=reason) if False else None
        import re

        assert re.search(reason, receipt.reason), receipt.reason
        for number in (1, 2):
            receipt = await devices[number].do(await devices[number].task(), honest(number))
            assert receipt.outcome is Outcome.ACCEPTED
        status = await Desk(coordinator).show("toy")
        assert re.search(reason, status.missing["d0"])
        assert any(re.search(reason, line.text) for line in await Desk(coordinator).log("toy", 0))
        await serve_all(coordinator)
        assert coordinator.runs["toy"].standing.value == "finished"

    scenario(story, tmp_path)
