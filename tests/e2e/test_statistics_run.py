"""Statistics over real gRPC are those of the simulator, bit for bit, also of an earlier run's clusters."""

import asyncio
from pathlib import Path

import pytest

from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.net.rpc import RpcLink
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.runtime import Runtime
from fedserver.cli.runs.run import _statistics
from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.algorithm import find
from shoal.core.data.scale import DEVIATION, MEAN
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import NotFound, Refused
from shoal.core.exchange.tensors import digest
from shoal.simulation.simulated import Simulated
from tests.client.in_process import InProcess
from tests.client.visits import NoJitter
from tests.paper.fedrc_fleet import context
from tests.server.processes import daemon

DEVICES, SEED = 3, 5
POLICY = RoundPolicy(devices=DEVICES, minimum=DEVICES, wait_for_devices=600.0)
TRAINED = {"rounds": 1, "clusters": 2, "inputs": "raw", "learning_rate": 0.1}


def simulated(groups: dict[str, str]) -> dict[str, str]:
    card, _ = find("statistics")
    devices = {f"d{n}": Simulated(card.device(), context(n), f"d{n}", {}) for n in range(DEVICES)}
    half = card.server()
    state = half.start({}, card.configure())
    outcome = simulate(half, state.begun_for(groups) if groups else state, devices, POLICY, SEED)
    assert not outcome.failed
    return {key: digest(model) for key, model in outcome.state.models.items()}


async def visit(address: str, root: Path, number: int) -> None:
    link, folder = RpcLink(address, f"d{number}"), DeviceFolder(root / f"d{number}")
    store, outbox = BlobStore(folder.blobs), Outbox(folder.outbox)
    reporter = Reporter(Status(f"d{number}", "here"), folder.root, lambda text: None, lambda text: None)
    agent = Agent(
        link,
        InProcess(Runtime(context(number), store)),
        store,
        outbox,
        folder.mark,
        reporter,
        chance=NoJitter(),
    )
    try:
        await agent.run(Until.FINISHED)
    finally:
        await link.close()


def test_over_grpc(tmp_path: Path) -> None:
    async def play(address: str) -> None:
        await asyncio.gather(*(visit(address, tmp_path, number) for number in range(DEVICES)))

    with daemon(tmp_path / "s") as server, OperatorClient(tmp_path / "s") as operator:

        def run(name: str, algorithm: str, **parameters: object) -> dict[str, str]:
            spec = RunSpec(name, algorithm, parameters=parameters, policy=POLICY, seed=SEED)
            operator.start_run(spec, None)
            asyncio.run(play(server.address))
            *_, status = operator.watch(name)
            assert status.summary.stage == "finished", status.summary
            found = {key: model.blob.sha256 for key, model in status.models.items()}
            if algorithm == "statistics":
                assert found == simulated(groups if parameters else {})
                assert sum(each.devices for each in _statistics(operator, status).values()) == DEVICES
            return {each.device: each.cluster for each in status.devices}

        groups = run("first", "ifca", **TRAINED)
        run("all", "statistics")
        assert run("each", "statistics", of="first") == groups
        with pytest.raises(NotFound):
            operator.start_run(RunSpec("none", "statistics", parameters={"of": "nothing"}), None)
        run("scaled", "fedavg", inputs="all", rounds=1)
        names = {spec.name for spec in operator.show("scaled").models["global"].manifest}
        assert {MEAN, DEVIATION} <= names
        with pytest.raises(Refused):
            operator.start_run(RunSpec("none", "fedavg", parameters={"inputs": "first"}), None)
        with pytest.raises(NotFound) as missing:
            operator.start_run(RunSpec("none", "fedavg", parameters={"inputs": "scale"}), None)
        assert "scaled, raw" in missing.value.hint
        assert server.stop() == 0
