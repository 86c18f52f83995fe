"""The demo's run under three drivers gives the same models, bit for bit, and the same verdict: in the
simulator, with the coordinator called directly, and with real processes over gRPC. And the demo shows what it
promises."""

import asyncio
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from fedclient.agent.agent import Agent, Until
from fedclient.agent.reporter import Reporter
from fedclient.store.blobs import BlobStore
from fedclient.store.state import Mark, Outbox, Status
from fedclient.work.runtime import Runtime
from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from shoal.core.algorithm import find
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, builtin
from shoal.core.engine.bootstrap import Bootstrap, Unstarted
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.tensors import digest
from shoal.core.server_kit.learned import verdict_of
from shoal.core.types import Tensors
from shoal.core.verdict import Verdict
from shoal.demo import fleet, processes
from shoal.demo.fleet import Member
from shoal.shell.console import Console
from shoal.simulation.simulated import Simulated
from tests.client.in_process import InProcess
from tests.typed import PYTHON, commands

Models = dict[str, tuple[dict[str, str], tuple[bool | None, float, float]]]
"""By algorithm, the SHA-256 of each final model by its key in the run, and of the verdict whether anything
was learned, the accuracy and its gain."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's folder after a whole run with processes of their own over gRPC."""
    folder = tmp_path_factory.mktemp("demo")
    with commands() as programs, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", str(programs / PYTHON))
        processes.play(folder, Console())
    return folder


@pytest.fixture(scope="module")
def over_grpc(demo: Path) -> Models:
    async def read() -> Models:
        coordinator = await Coordinator.open(demo / "server", Settings())
        try:
            while coordinator.recovery.pending:  # noqa: ASYNC110 - what is waited for is a thread
                await asyncio.sleep(0.01)
            return await final_models(coordinator)
        finally:
            await coordinator.close()

    return asyncio.run(read())


def test_the_simulator_gives_the_models_of_the_processes(over_grpc: Models) -> None:
    assert simulated() == over_grpc


def test_the_coordinator_called_directly_gives_them_too(over_grpc: Models, tmp_path: Path) -> None:
    assert asyncio.run(directly(tmp_path)) == over_grpc


def test_the_verdict_is_that_the_demo_has_learned(over_grpc: Models) -> None:
    for name, (_, (learned, accuracy, gain)) in over_grpc.items():
        assert learned is True, name
        assert 0.3 < gain < accuracy <= 1.0, "above the commonest of ten classes"


def test_the_demo_finds_the_groups_and_places_both_newcomers(demo: Path) -> None:
    summary = json.loads((demo / "summary.json").read_text())
    assert summary["flux"]["ari"] == 1.0
    assert summary["flux"]["clusters"] == 4
    assert summary["flux"]["accuracy"] >= summary["fedavg"]["accuracy"] + 0.15
    assert summary["flux"]["worst"] > summary["fedavg"]["worst"]
    assert [place["correct"] for place in summary["placements"]] == [True, True]
    for place in summary["placements"]:
        odds = {each["model"]: each["probability"] for each in place["tried"]}
        assert odds[place["cluster"]] == place["confidence"] == max(odds.values()) <= 1.0
        assert place["runner_up"] != place["cluster"]
        assert list(odds) == ["c0", "c1", "c2", "c3", "global"], "the common model is tried too"
        assert place["accuracy"] > summary["fedavg"]["accuracy"]
        assert place["seconds"] > 0.0
    model = 4 * 4810  # bytes of the 4,810 numbers that go up in every round, but where two runs shared one
    assert 0.8 * model < summary["bytes_per_device_round"]["up"] < 1.2 * model
    assert summary["seconds"] > 0.0
    assert summary["privacy"][0].startswith("privacy=off here")
    assert any(each.startswith("each of 8 devices: no guarantee: ") for each in summary["privacy"])


def test_the_newcomers_labels_never_reached_them(demo: Path) -> None:
    for member in fleet.newcomers():
        with np.load(demo / member.name / "data.npz") as found:
            assert list(found) == ["x"]


def test_nothing_of_the_truth_reached_the_server(demo: Path) -> None:
    log = (demo / "logs" / "server.log").read_text()
    assert "run flux" in log
    assert "group" not in log


# -- the other two drivers --------------------------------------------------------------------------------


def learner() -> Learner:
    return builtin(fleet.LEARNER["builtin"], fleet.LEARNER["options"])  # type: ignore[arg-type]


def views(member: Member) -> Views:
    def images(data: Dataset) -> Dataset:
        return Dataset(data.x.reshape(-1, 1, 8, 8), data.y)

    return Views.of(images(member.train), images(member.test) if member.test else None)


def context(member: Member) -> DeviceContext:
    return DeviceContext(learner(), views(member), "cpu", 0, np.random.default_rng())


def simulated() -> Models:
    found: Models = {}
    for name in processes.ALGORITHMS:
        card, _ = find(name)
        device_half = card.device()
        parameters = card.configure("default", fleet.PARAMETERS[name])

        memories: dict[str, Tensors] = {}
        outcome = simulate(
            Bootstrap(card.server(), parameters),
            Unstarted(),
            {
                member.name: Simulated(device_half, context(member), member.name, memories)
                for member in fleet.trainers()
            },
            fleet.POLICY,
            fleet.SEED,
        )
        assert not outcome.failed
        models = {key: digest(model) for key, model in outcome.state.models.items()}
        found[name] = models, figures(verdict_of(outcome.state, []))
    return found


async def directly(folder: Path) -> Models:
    """Agents on the coordinator's own links, working in threads of this process."""
    coordinator = await Coordinator.open(folder / "server", Settings(tick=0.05))
    try:
        for name in processes.ALGORITHMS:
            await OperatorApi(coordinator).start_run(processes.spec(name), None)
        await asyncio.gather(*(visit(coordinator, member, folder) for member in fleet.trainers()))
        return await final_models(coordinator)
    finally:
        await coordinator.close()


async def visit(coordinator: Coordinator, member: Member, folder: Path) -> None:
    root = folder / member.name
    root.mkdir()
    store, status = BlobStore(root / "blobs"), Status(member.name, "here")
    reporter = Reporter(status, root, lambda text: None, lambda text: None)
    executor = InProcess(Runtime(context(member), store))
    link = DeviceApi(coordinator, member.name)
    outbox, mark = Outbox(root / "outbox"), Mark(root / "mark")
    await Agent(link, executor, store, outbox, mark, reporter).run(Until.FINISHED)


async def final_models(coordinator: Coordinator) -> Models:
    found: Models = {}
    for run in coordinator.runs:
        status = await OperatorApi(coordinator).show(run)
        assert status.summary.stage == "finished"
        models = {key: model.blob.sha256 for key, model in status.models.items()}
        found[status.summary.name] = models, figures(status.verdict)
    return found


def figures(found: Verdict | None) -> tuple[bool | None, float, float]:
    """What does not depend on the losses of the rounds."""
    assert found is not None
    return found.learned, found.accuracy, found.gain
