"""A plug-in of another distribution is found by its entry point, in the simulator and over gRPC, where only
the server has it; a broken one is named and ends nothing."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclient.config import read
from fedclient.work.data import open_views
from fedclient.work.runtime import open_learner
from fedclient.work.settings import work_config
from fedserver.rpc.client import OperatorClient
from shoal import checks
from shoal.core.algorithm import State, discover, find, rejected
from shoal.core.device_kit.context import DeviceContext
from shoal.core.engine.bootstrap import Bootstrap, Unstarted
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import ConfigError
from shoal.core.exchange.tensors import digest
from shoal.core.privacy.report import OPEN
from shoal.core.types import Tensors
from shoal.simulation.simulated import Simulated
from tests.e2e.places import Place
from tests.waiting import HANG

PLUGIN = Path(__file__).parents[2] / "examples" / "plugin"
NAMES = ("attic", "cellar")
POLICY = RoundPolicy(devices=2, minimum=2, wait_for_devices=600.0)
PLUG_INS = ("shoal_fedavgm", "shoal_census", "varied")
BROKEN = {
    "flux": "from shoal_fedavgm import ALGORITHM\nfrom dataclasses import replace\n"
    "ALGORITHM = replace(ALGORITHM, name='flux')\n",
    "absent": "import no_such_module\n",
    "exits": "raise SystemExit(3)\n",
    "unnamed": "from shoal_fedavgm import ALGORITHM\nfrom dataclasses import replace\n"
    "ALGORITHM = replace(ALGORITHM, name='Un Named')\n",
    "halfless": "from shoal_fedavgm import ALGORITHM\nfrom dataclasses import replace\n"
    "ALGORITHM = replace(ALGORITHM, name='halfless', server_module='shoal_fedavgm.nowhere')\n",
    "idle": "from shoal_fedavgm import ALGORITHM\nfrom dataclasses import replace\n"
    "ALGORITHM = replace(ALGORITHM, name='idle', device_module='shoal_lab.algorithms.haccs.device')\n",
    "odd": "from shoal_fedavgm import ALGORITHM\nfrom dataclasses import replace\n"
    "from shoal.core.exchange.messages import Message\n"
    "class Ask(Message):\n    kind = 'ask\\x1b[2J'\n"
    "ALGORITHM = replace(ALGORITHM, name='odd', messages=(Ask,))\n",
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
    """The example, installed in a folder that this process looks into, and not those that it starts."""
    folder = tmp_path / "site"
    distribution(folder, "shoal-fedavgm", {"fedavgm": "shoal_fedavgm:ALGORITHM"})
    (folder / "shoal_fedavgm").symlink_to(PLUGIN / "shoal_fedavgm")
    monkeypatch.syspath_prepend(folder)
    yield folder
    for module in [name for name in sys.modules if name.split(".")[0] in PLUG_INS]:
        del sys.modules[module]  # the next test has it at another place


VARIED = """
from dataclasses import replace
from shoal_fedavgm import ALGORITHM
ALGORITHM = replace(
    ALGORITHM,
    name="varied",
    variants={"varied-light": {"server_momentum": 0.1}},
    presets={"short": {"rounds": 2, "batch_size": 16}},
)
"""
PLAIN = {
    "as-it-is": ("fedavgm", "default", {"rounds": 3, "server_momentum": 0.5}),
    "variant": ("varied-light", "default", {"rounds": 3}),
    "preset": ("varied", "short", {}),
}
PRIVATE = {"dp-sgd": ("varied-light", "short", {"dp_epsilon": 3.0, "evaluate": False})}
"""Runs: algorithm, preset, and what is set besides."""


@pytest.fixture
def place(installed: Path, tmp_path: Path) -> Place:
    """A server that has the plug-in, and devices that do not: only the server's processes look there."""
    (installed / "varied.py").write_text(VARIED)
    distribution(installed, "shoal-varied", {"varied": "varied:ALGORITHM"})
    return Place(tmp_path, {"PYTHONPATH": str(installed)})


def simulated(
    place: Place, algorithm: str, preset: str, changes: Mapping[str, Any], names: Sequence[str] = NAMES
) -> State:
    """The same run in the simulator, on the devices' own files."""
    card, variant = find(algorithm)
    parameters, memories = card.configure(preset, {**variant, **changes}), dict[str, Tensors]()

    def device(name: str) -> Simulated:
        work = work_config(read(place.root / name / "device.yaml", {}))
        assert work.learner is not None
        context = DeviceContext(
            open_learner(work.learner), open_views(work), "cpu", 0, np.random.default_rng(0)
        )
        return Simulated(card.device(), context, name, memories)

    devices = {name: device(name) for name in names}
    policy = replace(POLICY, devices=len(names), minimum=len(names))
    outcome = simulate(Bootstrap(card.server(), parameters), Unstarted(), devices, policy, 0)
    assert not outcome.failed
    return outcome.state


def started(place: Place, name: str, algorithm: str, *more: str) -> None:
    policy = ("--devices", "2", "--minimum", "2", "--wait-for-devices", "600")
    patient = ("--retry-after", "1", "--max-abandoned-rounds", "100")
    place.server("run", "start", name, "--algorithm", algorithm, *policy, *patient, *more)


def trained(place: Place, settings: Mapping[str, Path]) -> None:
    """Let the devices serve until no run is left."""
    with ExitStack() as stack:
        agents = [
            stack.enter_context(place.running(name, "fedclient", "run", "-c", path, "--until-finished"))
            for name, path in settings.items()
        ]
        for agent in agents:
            assert agent.wait(HANG) == 0, {name: place.log(name) for name in settings}


@pytest.mark.parametrize("runs", [PLAIN, PRIVATE], ids=["plain", "private"])
def test_on_the_server_only(place: Place, runs: Mapping[str, tuple[str, str, dict[str, Any]]]) -> None:
    """It gives the models of the simulator."""
    private = runs is PRIVATE
    if private:
        pytest.importorskip("opacus")
    with place.up():
        settings = {name: place.joined(name) for name in NAMES}
        missing = place.call("fedclient", "check", "-c", settings["attic"])
        assert missing.returncode == 0, missing.stderr
        for run, (algorithm, preset, changes) in runs.items():
            sets = [each for name, value in changes.items() for each in ("--set", f"{name}={value}")]
            started(place, run, algorithm, "--preset", preset, *sets)
        trained(place, settings)
        known = place.call("fedclient", "consent", "-c", settings["attic"])
        for run, (algorithm, preset, changes) in runs.items():
            with OperatorClient(place.state) as operator:
                status = operator.show(run)
            assert status.summary.stage == "finished"
            if not private:  # whose noise is the operating system's
                assert {key: model.blob.sha256 for key, model in status.models.items()} == {
                    key: digest(model)
                    for key, model in simulated(place, algorithm, preset, changes).models.items()
                }
            found = place.call("fedclient", "place", "-c", settings["attic"], "--run", run, "--json")
            assert found.returncode == 0, found.stderr
            card, variant = find(algorithm)
            rounds = card.configure(preset, {**variant, **changes}).rounds
            assert f"run {run}: {card.name}, which trains {rounds} times" in known.stdout
        ledger = place.call("fedclient", "status", "-c", settings["attic"], "--json")
        released = json.loads(ledger.stdout)["data"]["privacy"]["total"]
        assert (released["epsilon"] is not None) == private


def test_its_owner_is_asked_before_anything_leaves(place: Place) -> None:
    with place.up():
        settings = {"attic": place.joined("attic", rules=False), "cellar": place.joined("cellar")}
        started(place, "trial", "fedavgm", "--set", "rounds=1")
        agent = ("fedclient", "run", "--until-finished", "-c")
        with place.running("cellar", *agent, settings["cellar"]) as other:
            with place.running("attic", *agent, settings["attic"]) as refused:
                assert refused.wait(HANG) == 5, "no run can have it before its owner agrees"
            assert "error[no-consent]: run trial asks for" in place.log("attic")
            seen = place.call("fedclient", "consent", "-c", settings["attic"])
            assert "run trial: fedavgm, which trains once" in seen.stdout
            assert "run trial: weights trained without DP-SGD: waits for your consent" in seen.stdout
            assert f"run trial: {OPEN['figures']}: waits for your consent" in seen.stdout
            given = place.call("fedclient", "consent", "give", "trial", "-c", settings["attic"])
            assert given.returncode == 0, given.stderr
            with place.running("attic", *agent, settings["attic"]) as asked:
                assert (asked.wait(HANG), other.wait(HANG)) == (0, 0)
        assert place.server("run", "show", "trial")["stage"] == "finished"


def test_a_device_that_lacks_it(place: Place, installed: Path) -> None:
    """It says which package to install for the tasks that it cannot do; with the package, it does them."""
    distribution(installed, "shoal-census", {"census": "shoal_census:ALGORITHM"})
    (installed / "shoal_census").symlink_to(Path(__file__).parent / "plugins" / "shoal_census")
    with place.up():
        settings = {name: place.joined(name) for name in NAMES}
        shown = place.call("fedserver", "algorithm", "show", "census")
        assert "devices need the package shoal-census, too" in shown.stdout
        started(place, "trial", "census", "--set", "rounds=1")
        with ExitStack() as stack:
            for name, path in settings.items():
                stack.enter_context(place.running(name, "fedclient", "run", "-c", path))
            lacks = "error[no-algorithm]: algorithm census has tasks of its own"
            place.wait_for(lambda: any(lacks in place.log(name) for name in NAMES))
            place.wait_for(lambda: "lacks the package" in json.dumps(place.server("run", "logs", "trial")))
        found = next(place.log(name) for name in NAMES if lacks in place.log(name))
        assert "this device cannot do: census_look (install the package shoal-census" in found

        newcomer = place.joined("newcomer")
        place.of_devices["PYTHONPATH"] = str(installed)
        trained(place, settings)
        assert place.server("run", "show", "trial")["stage"] == "finished"
        here = place.call("fedclient", "place", "-c", newcomer, "--run", "trial")
        assert (here.returncode, "it was counted" in here.stdout) == (0, True), here
        del place.of_devices["PYTHONPATH"]
        lacking = place.call("fedclient", "place", "-c", newcomer, "--run", "trial")
        assert lacking.returncode == 8
        assert "error[no-algorithm]" in lacking.stderr
        assert "install the package shoal-census" in lacking.stderr


def test_it_keeps_the_contract(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(installed))  # one rule imports each half in a process of its own
    verdict = checks.check("fedavgm")
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
    assert "it has a device half, and no task that asks for it" in reasons["idle"]
    assert "is not a legal kind of messages" in reasons["odd"]
    assert "is not an Algorithm" in reasons["thing"]
