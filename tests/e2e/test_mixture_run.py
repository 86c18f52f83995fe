"""FedRC, whose devices remember and whose reports have several models, gives the same models bit for bit in
the simulator, over real gRPC, and where each task is done by an agent that was just started."""

import asyncio
from pathlib import Path

import pytest

from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.net.rpc import RpcLink
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.runtime import Runtime
from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.algorithm import find
from shoal.core.engine.bootstrap import Bootstrap, Unstarted
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.link import Link
from shoal.core.exchange.tensors import digest
from shoal.core.types import Tensors
from shoal.simulation.simulated import Simulated
from tests.client.in_process import InProcess
from tests.client.visits import NoJitter
from tests.paper.fedrc_fleet import context
from tests.server.processes import daemon

DEVICES, ROUNDS, SEED = 3, 4, 5
PARAMETERS = {
    "inputs": "raw",
    "rounds": ROUNDS,
    "clusters": 2,
    "learning_rate": 0.1,
    "batch_size": 8,
    "adam": True,
    "as_one": 2,
}
POLICY = RoundPolicy(devices=DEVICES, minimum=DEVICES, wait_for_devices=600.0)
SPEC = RunSpec("mix", "fedrc", parameters=PARAMETERS, policy=POLICY, seed=SEED)
TASKS = 1 + ROUNDS + 1
"""Of each device: the initial models, the rounds, and the evaluation."""


@pytest.fixture(scope="module")
def simulated() -> dict[str, str]:
    card, _ = find("fedrc")
    parameters = card.configure("default", PARAMETERS)
    memories: dict[str, Tensors] = {}
    devices = {f"d{n}": Simulated(card.device(), context(n), f"d{n}", memories) for n in range(DEVICES)}
    server_half = Bootstrap(card.server(), parameters, card.initial(parameters))
    outcome = simulate(server_half, Unstarted(), devices, POLICY, SEED)
    assert not outcome.failed
    assert len({digest(model) for model in outcome.state.models.values()}) == 2
    return {key: digest(model) for key, model in outcome.state.models.items()}


def agent(link: Link, root: Path, number: int) -> Agent:
    """As a process has it that was just started."""
    folder = DeviceFolder(root / f"d{number}")
    store, outbox = BlobStore(folder.blobs), Outbox(folder.outbox)
    reporter = Reporter(Status(f"d{number}", "here"), folder.root, lambda text: None, lambda text: None)
    executor = InProcess(Runtime(context(number), store))
    return Agent(link, executor, store, outbox, folder.mark, reporter, chance=NoJitter())


def test_over_grpc(simulated: dict[str, str], tmp_path: Path) -> None:
    async def visit(address: str, number: int) -> None:
        link = RpcLink(address, f"d{number}")
        try:
            await agent(link, tmp_path, number).run(Until.FINISHED)
        finally:
            await link.close()

    async def play(address: str) -> None:
        await asyncio.gather(*(visit(address, number) for number in range(DEVICES)))

    with daemon(tmp_path / "s") as server, OperatorClient(tmp_path / "s") as operator:
        operator.start_run(SPEC, None)
        asyncio.run(play(server.address))
        *_, status = operator.watch("mix")
        assert status.summary.stage == "finished"
        assert {key: model.blob.sha256 for key, model in status.models.items()} == simulated
        assert {figures.accuracy is not None for figures in status.devices} == {True}
        assert server.stop() == 0
    assert not [path for path in tmp_path.glob("d*/memory/**/*") if path.is_file()]


def test_where_every_task_is_done_by_an_agent_that_was_just_started(
    simulated: dict[str, str], tmp_path: Path
) -> None:
    async def visits(coordinator: Coordinator, number: int) -> None:
        for _ in range(TASKS):
            await agent(DeviceApi(coordinator, f"d{number}"), tmp_path, number).run(Until.ONCE)

    async def play() -> None:
        coordinator = await Coordinator.open(tmp_path / "server", Settings(tick=0.05))
        try:
            await OperatorApi(coordinator).start_run(SPEC, None)
            await asyncio.gather(*(visits(coordinator, number) for number in range(DEVICES)))
            *_, status = [each async for each in OperatorApi(coordinator).watch("mix")]  # until it is over
            assert status.summary.stage == "finished"
            assert {key: model.blob.sha256 for key, model in status.models.items()} == simulated
        finally:
            await coordinator.close()

    asyncio.run(play())
    assert len(list(tmp_path.glob("d*/memory/tensors/*"))) >= DEVICES  # they do not know yet that it is over
