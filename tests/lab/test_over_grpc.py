"""The algorithms of the laboratory are plug-ins. Over real gRPC they give the models and figures of the
simulator, bit for bit; all runs at once, on the same devices."""

import asyncio
from dataclasses import fields
from pathlib import Path
from typing import Any

from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.algorithm import State, discover, find
from shoal.core.engine.bootstrap import Bootstrap, Unstarted
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.tensors import digest
from shoal.core.types import Tensors
from shoal.simulation.simulated import Simulated
from tests.e2e.visiting import context, visit
from tests.server.processes import daemon

ALGORITHMS = sorted(
    name for name, card in discover().items() if str(card.server_module).startswith("shoal_lab.")
)
DEVICES, SEED = 2, 5
SMALL = {"rounds": 2, "rate_rounds": 1, "epochs": 1, "clusters": 2, "batch_size": 32, "learning_rate": 0.1}
POLICY = RoundPolicy(devices=DEVICES, minimum=DEVICES, wait_for_devices=600.0)


def parameters_of(name: str) -> dict[str, Any]:
    known = {item.name for item in fields(find(name)[0].parameters)}
    return {key: value for key, value in SMALL.items() if key in known}


def simulated(name: str) -> State:
    card, _ = find(name)
    parameters, memories = card.configure("default", parameters_of(name)), dict[str, Tensors]()
    devices = {f"d{n}": Simulated(card.device(), context(n), f"d{n}", memories) for n in range(DEVICES)}
    server_half = Bootstrap(card.server(), parameters, card.initial(parameters))
    outcome = simulate(server_half, Unstarted(), devices, POLICY, SEED)
    assert not outcome.failed
    return outcome.state


def test_over_grpc_they_give_the_models_and_the_figures_of_the_simulator(tmp_path: Path) -> None:
    async def play(address: str) -> None:
        await asyncio.gather(*(visit(address, tmp_path, number) for number in range(DEVICES)))

    with daemon(tmp_path / "s") as server, OperatorClient(tmp_path / "s") as operator:
        for name in ALGORITHMS:
            spec = RunSpec(name, name, parameters=parameters_of(name), policy=POLICY, seed=SEED)
            operator.start_run(spec, None)
        asyncio.run(play(server.address))
        for name in ALGORITHMS:
            *_, status = operator.watch(name)
            expected = simulated(name)
            assert status.summary.stage == "finished"
            assert {key: model.blob.sha256 for key, model in status.models.items()} == {
                key: digest(model) for key, model in expected.models.items()
            }
            assert {figures.device: figures.accuracy for figures in status.devices} == {
                device: measured.accuracy for device, measured in expected.metrics.items()
            }
        assert server.stop() == 0
    assert not [path for path in tmp_path.glob("d*/memory/**/*") if path.is_file()], "the runs are over"
