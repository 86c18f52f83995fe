"""FEROMA on devices whose data drift: the same models, bit for bit, in the simulator, with the coordinator
called directly, and over gRPC. Time is each device's own, so devices need not agree on it."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from grpc import aio

from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.store.blobs import BlobStore
from fedclient.store.state import Mark, Outbox, Status
from fedclient.work.executor import WorkerInfo
from fedclient.work.runtime import Runtime
from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.channel import SOCKET
from fedserver.rpc.server import listen
from fedserver.store.records import RunSpec
from shoal.core.algorithm import find
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.bootstrap import Bootstrap, Unstarted
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.link import Failure, Link, Task
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.tensors import digest
from shoal.simulation import images
from shoal.simulation.fleet import numbered, stage_at
from shoal.simulation.simulated import SimulatedDevices
from shoal_lab.setting import drifting_holding
from shoal_lab.shifts import DriftingDevice, drifting
from shoal_lab.shifts.drift import changes
from tests.client.in_process import InProcess
from tests.fleet import learner
from tests.server.wire_link import WireLink

DEVICES, ROUNDS, DRIFTS, SEED = 4, 5, 2, 7
PARAMETERS = {"rounds": ROUNDS, "epochs": 1, "batch_size": 16, "learning_rate": 0.05}
POLICY = RoundPolicy(devices=DEVICES, minimum=DEVICES, wait_for_devices=600.0)
Models = dict[str, str]
Links = Callable[[str], Link]


@pytest.fixture(scope="module")
def made() -> list[DriftingDevice]:
    train, test = images.digits()
    return drifting("pyx", "low", DRIFTS, DEVICES, 42, train, test)


def name(number: int) -> str:
    return f"device-{number:03}"


class Moving:
    """A device's work, on the data that it has by now."""

    def __init__(self, executors: Sequence[InProcess]) -> None:
        self._executors, self._trained = executors, 0

    async def start(self) -> WorkerInfo:
        return await self._executors[0].start()

    async def perform(self, task: Task) -> Payload | Failure:
        stage = stage_at(changes(ROUNDS, DRIFTS), self._trained)
        answer = await self._executors[stage].perform(task)
        self._trained += isinstance(answer, Payload) and answer.kind == "trained"
        return answer

    async def stop(self) -> None:
        pass


async def visit(device: DriftingDevice, number: int, link: Link, folder: Path) -> None:
    root = folder / name(number)
    root.mkdir()
    store, status = BlobStore(root / "blobs"), Status(name(number), "here")
    reporter = Reporter(status, root, lambda text: None, lambda text: None)
    stages = [Views.of(device.stage(stage), device.test) for stage in range(DRIFTS)]
    contexts = [DeviceContext(learner(), views, "cpu", 0, np.random.default_rng()) for views in stages]
    executor = Moving([InProcess(Runtime(context, store)) for context in contexts])
    await Agent(link, executor, store, Outbox(root / "outbox"), Mark(root / "mark"), reporter).run(
        Until.FINISHED
    )


async def played(
    made: Sequence[DriftingDevice], coordinator: Coordinator, links: Links, folder: Path
) -> Models:
    spec = RunSpec("drifting", "feroma", parameters=PARAMETERS, policy=POLICY, seed=SEED)
    await OperatorApi(coordinator).start_run(spec, None)
    await asyncio.gather(
        *(visit(one, number, links(name(number)), folder) for number, one in enumerate(made))
    )
    status = await OperatorApi(coordinator).show("drifting")
    assert status.summary.stage == "finished"
    return {key: model.blob.sha256 for key, model in status.models.items()}


@asynccontextmanager
async def coordinating(folder: Path) -> AsyncIterator[Coordinator]:
    coordinator = await Coordinator.open(folder / "server", Settings(tick=0.05))
    try:
        yield coordinator
    finally:
        await coordinator.close()


@pytest.fixture(scope="module")
def simulated(made: list[DriftingDevice]) -> Models:
    card, _ = find("feroma")
    fleet = numbered([drifting_holding(one, ROUNDS) for one in made], 10)
    devices = SimulatedDevices(card, fleet, learner(), "cpu", SEED)
    server_half = Bootstrap(card.server(), card.configure("default", PARAMETERS))
    outcome = simulate(server_half, Unstarted(), devices.calls(), POLICY, SEED)
    assert not outcome.failed
    assert len(outcome.state.models) > DEVICES
    return {key: digest(model) for key, model in outcome.state.models.items()}


def test_the_coordinator_called_directly(
    made: list[DriftingDevice], simulated: Models, tmp_path: Path
) -> None:
    async def play() -> Models:
        async with coordinating(tmp_path) as coordinator:
            return await played(made, coordinator, lambda device: DeviceApi(coordinator, device), tmp_path)

    assert asyncio.run(play()) == simulated


def test_over_grpc(made: list[DriftingDevice], simulated: Models, tmp_path: Path) -> None:
    async def play() -> Models:
        async with coordinating(tmp_path) as coordinator:
            listeners = await listen(coordinator, "127.0.0.1:0", tmp_path / "server" / SOCKET)
            async with aio.insecure_channel(listeners.address) as channel:
                found = await played(made, coordinator, lambda device: WireLink(channel, device), tmp_path)
            coordinator.stop_serving()
            await listeners.stop(1.0)
            return found

    assert asyncio.run(play()) == simulated
