"""A plug-in of another distribution is found by its entry point, in the simulator and over gRPC; a broken one
is named and ends nothing."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedserver.rpc.client import OperatorClient
from fedserver.store.integrity.records import RunSpec
from shoal import contract
from shoal.core.algorithm import State, discover, find, rejected
from shoal.core.engine.bootstrap import Bootstrap, Unstarted
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import ConfigError
from shoal.core.exchange.tensors import digest
from shoal.core.types import Tensors
from shoal.simulation.simulated import Simulated
from tests.e2e.visiting import context, visit
from tests.server.processes import daemon

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
DEVICES, SEED = 2, 5
PARAMETERS = {"rounds": 3, "epochs": 1, "batch_size": 32, "learning_rate": 0.1, "server_momentum": 0.5}
POLICY = RoundPolicy(devices=DEVICES, minimum=DEVICES, wait_for_devices=600.0)
BROKEN = {
    "flux": "from shoal_fedavgm import ALGORITHM\nfrom dataclasses import replace\n"
    "ALGORITHM = replace(ALGORITHM, name='flux')\n",
    "absent": "import no_such_module\n",
    "exits": "raise SystemExit(3)\n",
    "unnamed": "from shoal_fedavgm import ALGORITHM\nfrom dataclasses import replace\n"
    "ALGORITHM = replace(ALGORITHM, name='Un Named')\n",
    "halfless": "from shoal_fedavgm import ALGORITHM\nfrom dataclasses import replace\n"
    "ALGORITHM = replace(ALGORITHM, name='halfless', server_module='shoal_fedavgm.nowhere')\n",
    "thing": "ALGORITHM = 3\n",
}
"""Modules of plug-ins, each of which breaks another rule."""


def distribution(folder: Path, name: str, points: dict[str, str]) -> None:
    """What an installer leaves behind of a distribution, beside its packages."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"{point} = {value}" for point, value in points.items()]
    (info / "entry_points.txt").write_text("\n".join(["[shoal.algorithms]", *lines, ""]))


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The example, installed in a folder that this process and those that it starts look into."""
    folder = tmp_path / "site"
    distribution(folder, "shoal-fedavgm", {"fedavgm": "shoal_fedavgm:ALGORITHM"})
    (folder / "shoal_fedavgm").symlink_to(PLUGIN / "shoal_fedavgm")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    yield folder
    for module in [name for name in sys.modules if name.split(".")[0] == "shoal_fedavgm"]:
        del sys.modules[module]  # the next test has it at another place


def simulated() -> State:
    card, _ = find("fedavgm")
    parameters, memories = card.configure("default", PARAMETERS), dict[str, Tensors]()
    devices = {f"d{n}": Simulated(card.device(), context(n), f"d{n}", memories) for n in range(DEVICES)}
    outcome = simulate(Bootstrap(card.server(), parameters), Unstarted(), devices, POLICY, SEED)
    assert not outcome.failed
    return outcome.state


def test_over_grpc_it_gives_the_models_of_the_simulator(installed: Path, tmp_path: Path) -> None:
    async def play(address: str) -> None:
        await asyncio.gather(*(visit(address, tmp_path, number) for number in range(DEVICES)))

    with daemon(tmp_path / "s") as server, OperatorClient(tmp_path / "s") as operator:
        operator.start_run(RunSpec("trial", "fedavgm", parameters=PARAMETERS, policy=POLICY, seed=SEED), None)
        asyncio.run(play(server.address))
        *_, status = operator.watch("trial")
        assert status.summary.stage == "finished"
        assert {key: model.blob.sha256 for key, model in status.models.items()} == {
            key: digest(model) for key, model in simulated().models.items()
        }
        assert server.stop() == 0


def test_it_keeps_the_contract(installed: Path) -> None:
    verdict = contract.check("fedavgm")
    assert verdict.passed, str(verdict)


def test_without_the_distribution_there_is_no_such_algorithm() -> None:
    with pytest.raises(ConfigError, match="there is no algorithm 'fedavgm'"):
        find("fedavgm")


def test_broken_ones_are_named_and_end_nothing(installed: Path) -> None:
    names = set(discover())
    for name, text in BROKEN.items():
        (installed / f"broken_{name}.py").write_text(text)
    points = {name: f"broken_{name}:ALGORITHM" for name in BROKEN}
    other = installed.parent / "more"
    distribution(other, "broken-things", points)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(other)
        assert set(discover()) == names
        assert find("flux")[0].server_module == "shoal.core.algorithms.flux.server"
        reasons = {each.name: each.reason for each in rejected()}
        assert {each.source for each in rejected()} == {"broken-things"}
        with pytest.raises(ConfigError, match=r"the plug-in absent of broken-things is not used: .*no_such"):
            find("absent")
    assert "belongs to algorithm flux" in reasons["flux"]
    assert "SystemExit" in reasons["exits"]
    assert "not a legal name" in reasons["unnamed"]
    assert "there is no module shoal_fedavgm.nowhere" in reasons["halfless"]
    assert "is not an Algorithm" in reasons["thing"]
