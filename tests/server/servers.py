"""A coordinator for tests, devices on its links, and the run that they are to make."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.engines import Elsewhere
from fedserver.store.records import RunSpec
from shoal.core.algorithm import find
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import NotLeader
from shoal.core.types import DeviceId, ModelKey, RunId, Tensors
from tests.server.toys import MODEL, Answer, Hands, fleet, honest, pieces_of, serve

DEVICES = 3
ROUNDS = 3
SETTINGS = Settings(poll=10.0, heartbeat=0.1, tick=0.05, model=1 << 20)


@asynccontextmanager
async def server(
    state: Path, recovered: bool = True, elsewhere: Elsewhere | None = None
) -> AsyncIterator[Coordinator]:
    """A coordinator on a state folder. recovered: only once every run that it found was checked."""
    coordinator = await until_leading(state, elsewhere)
    try:
        if recovered:
            await until_recovered(coordinator)
        yield coordinator
    finally:
        await coordinator.close()


async def until_leading(state: Path, elsewhere: Elsewhere | None) -> Coordinator:
    """PostgreSQL notices only a moment later that the process that led was killed."""
    while True:
        try:
            return await Coordinator.open(state, SETTINGS, elsewhere)
        except NotLeader:
            await asyncio.sleep(0.02)


async def until_recovered(coordinator: Coordinator) -> None:
    """A start waits only a second for its runs, which a busy machine exceeds: here there is no such limit."""
    while coordinator.recovery.pending and not coordinator.broken.done():  # noqa: ASYNC110 -- no event tells it
        await asyncio.sleep(0.01)


async def crash(coordinator: Coordinator) -> None:
    """Everything ends where it is; only the lock is let go, as the end of a process does."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await coordinator.storage.close()


def spec(parameters: Mapping[str, Any] = {"rounds": ROUNDS}, **changes: Any) -> RunSpec:
    """Of devices that answer by made-up numbers, whose inputs have no scale."""
    return RunSpec(
        **{
            "name": "toy",
            "algorithm": "fedavg",
            "parameters": {"inputs": "raw", **parameters},
            "policy": RoundPolicy(devices=DEVICES, minimum=DEVICES),
            "seed": 5,
            **changes,
        }
    )


async def start(coordinator: Coordinator, model: Tensors | None = MODEL, **changes: Any) -> RunId:
    initial = None
    if model is not None:
        hands = Hands(OperatorApi(coordinator))  # type: ignore[arg-type]
        initial = hands.keep(model)
        await hands.link.upload(initial.blob, 0, pieces_of(hands.blobs[initial.blob.sha256]))
    return await OperatorApi(coordinator).start_run(spec(**changes), initial)


def link(coordinator: Coordinator, number: int) -> DeviceApi:
    return DeviceApi(coordinator, f"d{number}")


async def hands(coordinator: Coordinator, number: int) -> Hands:
    return await Hands(link(coordinator, number)).hello()


async def serve_all(coordinator: Coordinator, numbers: range = range(DEVICES)) -> None:
    await asyncio.gather(*(serve(link(coordinator, number), honest(number)) for number in numbers))


def expected(model: Tensors = MODEL, **parameters: Any) -> dict[ModelKey, Tensors]:
    """The models of the same run in simulation."""
    return simulated(fleet(DEVICES), model, **parameters)


def simulated(
    devices: Mapping[DeviceId, Answer], model: Tensors = MODEL, **parameters: Any
) -> dict[ModelKey, Tensors]:
    """The models of the run with other devices."""
    algorithm, _ = find("fedavg")
    server_half = algorithm.server()
    changes = {"rounds": ROUNDS, "inputs": "raw", **parameters}
    first = server_half.start(model, algorithm.configure("default", changes))
    return dict(simulate(server_half, first, devices, spec().policy, spec().seed).state.models)


def models(coordinator: Coordinator, run: RunId = "toy") -> dict[ModelKey, Tensors]:
    return dict(coordinator.runs[run].engine.state.models)


def scenario(story: Callable[[Coordinator], Awaitable[None]], tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path / "state") as coordinator:
            await story(coordinator)

    asyncio.run(play())
