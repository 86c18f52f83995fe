"""A fleet of two versions trains the models of one, bit for bit, and each side is upgraded in a round.

Real processes over mutual TLS; PostgreSQL for the standby pair.
"""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedserver.coordinator.status_types import RunSummary
from fedserver.rpc.client import OperatorClient
from shoal.core.exchange.tensors import digest
from shoal.shell import crash
from tests.compat import reference
from tests.crash.takeover import Pair
from tests.e2e.places import Place
from tests.e2e.test_plugin import NAMES, simulated, started
from tests.postgresql import Cluster
from tests.programs import Running
from tests.waiting import HANG

Variables = dict[str, str]
LEARNER = """
from pathlib import Path
from torch import nn
from torch.nn.functional import cross_entropy

def build():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

latent = "0"

def loss(model, x, y):
    if model.training:
        with Path(__file__).with_name("steps").open("a") as file:
            file.write(".")
    return cross_entropy(model(x), y)
"""
"""An author's own network, which counts its steps of training."""
PARAMETERS = {"rounds": 3, "privacy": "off"}
HALFWAY = "device.uploaded:6"
"""The device has trained in the last round of three, and described its data."""
COHORT = ("den", "barn", "attic", "cellar", "kitchen", "basement", "dovecotes", "greenhouse")
"""As many devices as a sum needs at least, each with data of its own."""
NOISY = {"rounds": 2, "privacy": "off", "dp_epsilon": 3.0, "evaluate": False}
SUMMED = {
    "rounds": 2,
    "secure_aggregation": True,
    "aggregation": "mean",
    "central_clip": 10.0,
    "evaluate": False,
}
PATIENT = ("--straggler-factor", "0", "--device-timeout", "3600", "--max-abandoned-rounds", "3")
"""A round waits for a device that is killed, however long it takes to come back. What fails ends the run."""


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Variables:
    """The variables of a process that is of the version before. On the forge nothing is skipped."""
    if reason := reference.lacking():
        (pytest.fail if os.environ.get("GITHUB_ACTIONS") == "true" else pytest.skip)(reason)
    return reference.install(tmp_path_factory.mktemp("reference"))


def joined(place: Place, name: str) -> Path:
    """The settings of a device of an author's own network, which has joined."""
    settings = place.joined(name)
    settings.write_text("learner: {file: learner.py}\n" + settings.read_text().partition("\n")[2])
    settings.with_name("learner.py").write_text(LEARNER)
    return settings


def begin(place: Place) -> None:
    """Two devices, and a run of FLUX for them."""
    for name in NAMES:
        joined(place, name)
    options = [part for name, value in PARAMETERS.items() for part in ("--set", f"{name}={value}")]
    started(place, "trial", "flux", *PATIENT, *options)


@contextmanager
def agent(place: Place, name: str) -> Iterator[Running]:
    settings = place.root / name / "device.yaml"
    with place.running(name, "fedclient", "run", "-c", settings, "--until-finished") as process:
        yield process


def killed_halfway(place: Place, name: str) -> None:
    """A device that has trained, and whose result no one has counted yet."""
    place.of_devices[crash.VARIABLE] = HALFWAY
    with agent(place, name) as process:
        assert process.wait(HANG) == -signal.SIGKILL, place.log(name)
    del place.of_devices[crash.VARIABLE]


def steps(place: Place, name: str) -> int:
    return len((place.root / name / "steps").read_text())


def summary(place: Place, run: str = "trial") -> RunSummary:
    with OperatorClient(place.state) as operator:
        return operator.show(run).summary


def notices(place: Place) -> tuple[str, ...]:
    with OperatorClient(place.state) as operator:
        return operator.status().notices


def ended(place: Place, *agents: Running) -> None:
    assert [each.wait(HANG) for each in agents] == [0] * len(agents), [place.log(name) for name in NAMES]
    found = summary(place)
    assert (found.stage, found.progress) == ("finished", PARAMETERS["rounds"])


def check(place: Place, *agents: Running) -> None:
    """The run ends, no step of training was made twice, and the models are those of a simulation."""
    ended(place, *agents)
    assert steps(place, "attic") == steps(place, "cellar") > 0
    due = simulated(place, "flux", "default", PARAMETERS).models
    assert models(place, "trial") == {key: digest(model) for key, model in due.items()}


def models(place: Place, run: str) -> dict[str, str]:
    with OperatorClient(place.state) as operator:
        return {key: model.blob.sha256 for key, model in operator.show(run).models.items()}


def newcomer(place: Place) -> None:
    """A device that has not trained describes its data, and gets a model."""
    done = place.call("fedclient", "place", "-c", joined(place, "newcomer"), "--run", "trial")
    assert done.returncode == 0, done.stderr


def test_devices_of_the_version_before_serve_this_server_and_are_upgraded_in_a_round(
    before: Variables, tmp_path: Path
) -> None:
    """Another device goes back, as one does whose update is left: the version before opens its folder."""
    place, halfway = Place(tmp_path, of_devices=dict(before)), {crash.VARIABLE: HALFWAY}
    with place.up():
        begin(place)
        place.of_devices = {**before, **halfway}
        with agent(place, "attic") as older:
            place.of_devices = halfway
            with agent(place, "cellar") as newer:
                assert [each.wait(HANG) for each in (older, newer)] == [-signal.SIGKILL] * 2
        place.of_devices = {}
        with agent(place, "attic") as upgraded:
            place.of_devices = dict(before)
            with agent(place, "cellar") as back:
                check(place, upgraded, back)
        newcomer(place)


def test_devices_serve_the_server_of_the_version_before_which_is_upgraded_in_a_round_and_goes_back(
    before: Variables, tmp_path: Path
) -> None:
    place, backup = Place(tmp_path, of_server=dict(before)), tmp_path / "backup"
    with place.up() as server:
        begin(place)
        with agent(place, "cellar") as cellar:
            killed_halfway(place, "attic")
            place.wait_for(lambda: summary(place).waiting_for == "1 of 2 reports are in")
            place.server("backup", backup)
            server.kill()
            server.wait()
            place.of_server.clear()
            with place.up(), agent(place, "attic") as attic:
                check(place, attic, cellar)

    place.state.rename(tmp_path / "newer")
    place.of_server |= before
    place.server("restore", backup)
    with agent(place, "cellar") as cellar:
        with place.up():
            place.wait_for(lambda: "older than what devices have seen" in " ".join(notices(place)))
        assert place.server("recover", "--accept")["accepted"]
        with place.up(), agent(place, "attic") as attic:
            ended(place, cellar, attic)  # with other seeds, since the round that was open is planned again
            newcomer(place)


def test_sums_noise_releases_and_devices_without_pytorch(before: Variables, tmp_path: Path) -> None:
    """A device of the version before is in every cohort. One of this version is killed in a sum, and goes on
    with it as the version before, while the server goes the other way."""
    pytest.importorskip("opacus")
    place = Place(tmp_path, of_server=dict(before))
    with ExitStack() as agents:

        def serve(*names: str) -> None:
            for name in names:
                settings = place.root / name / "device.yaml"
                agents.enter_context(place.running(name, "fedclient", "run", "-c", settings))

        def finished(run: str) -> None:
            place.wait_for(lambda: summary(place, run).stage == "finished")

        def given(run: str) -> str:
            """The release that the light device gets when one of this run has been made."""
            place.server("release", "create", run, "v1")
            place.server("release", "use", f"{run}@v1")
            placed = place.call("fedclient", "place", "-c", light, "--json")
            assert placed.returncode == 0, placed.stderr
            predicted = place.call("fedclient", "predict", "-c", light)
            assert predicted.returncode == 0, predicted.stderr
            return str(json.loads(placed.stdout)["data"]["release"])

        with place.up() as server:
            first, older, *others = [name for name in COHORT if place.joined(name)]
            light = place.joined("light", "--role", "infer-only")
            light.write_text(light.read_text().partition("\n")[2])  # and no learner
            graph, learner = tmp_path / "graph.onnx", tmp_path / first / "device.yaml"
            assert place.call("fedclient", "export", "-c", learner, "--out", graph).returncode == 0
            start(place, "groups", "--algorithm", "flux", "--graph", str(graph), **NOISY)
            serve(*others)
            place.of_devices = dict(before)
            serve(older)
            place.of_devices = {}
            with agent(place, first):
                finished("groups")
            assert given("groups") == "groups@v1"
            start(place, "sums", "--algorithm", "fedavg", **SUMMED)
            killed_halfway(place, first)
            server.kill()
            server.wait()
        place.of_server = {}
        with place.up():
            place.of_devices = dict(before)
            serve(first)
            place.server("status", "--wait", 60)
            finished("sums")
            due = simulated(place, "fedavg", "default", SUMMED, COHORT).models
            assert models(place, "sums") == {key: digest(model) for key, model in due.items()}
            start(place, "more", "--from", "groups@v1")
            finished("more")
            assert given("more") == "more@v1"


def start(place: Place, run: str, *options: str, **parameters: Any) -> None:
    sets = [part for name, value in parameters.items() for part in ("--set", f"{name}={value}")]
    together = ("--minimum", len(COHORT), "--wait-for-devices", 3600)
    place.server("run", "start", run, *options, *together, *PATIENT, *sets)


def test_a_standby_of_this_version_takes_over_from_the_version_before(
    before: Variables, postgresql: Cluster, tmp_path: Path
) -> None:
    """A rolling upgrade: the standby first, then the leader, which is killed as it counts a report."""
    pair = Pair(tmp_path, postgresql, devices=3, rounds=4)
    first, second = pair.servers
    with pair.running(**before, **{crash.VARIABLE: "server.report-committing:4"}):
        assert first.process is not None
        first.process.wait(HANG)
        pair.until_led(second)
        first.start()
        pair.until_led(first, "stands by")
        pair.check()
