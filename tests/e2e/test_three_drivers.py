"""The demo's run under three drivers gives the same models, bit for bit: in the simulator, with the
coordinator called directly, and with real processes over gRPC. And the demo shows what it promises."""

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedclient.agent import Agent, Until
from fedclient.blobs import BlobStore
from fedclient.performer import InProcess
from fedclient.state import Mark, Outbox, Status
from fedclient.watcher import Watcher
from fedclient.workshop import Workshop
from fedcore.algorithm import find
from fedcore.bootstrap import Bootstrap, Unstarted
from fedcore.data.dataset import Dataset
from fedcore.data.views import Views
from fedcore.local.bench import Bench
from fedcore.local.learner import Learner, builtin
from fedcore.local.simulated import Simulated
from fedcore.shell.console import Console
from fedcore.simulate import simulate
from fedcore.tensors import digest
from fedcore.types import Tensors
from fedserver import scenario, stage
from fedserver.coordinator import Coordinator
from fedserver.desk import Desk
from fedserver.link import DeviceLink
from fedserver.scenario import Member
from fedserver.settings import Settings

Models = dict[str, dict[str, str]]
"""The SHA-256 of each final model, by algorithm and by its key in the run."""


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's folder after a whole run with processes of their own over gRPC."""
    folder = tmp_path_factory.mktemp("demo")
    stage.play(folder, Console())
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


def test_the_demo_finds_the_groups_and_places_both_newcomers(demo: Path) -> None:
    summary = json.loads((demo / "summary.json").read_text())
    assert summary["flux"]["ari"] == 1.0
    assert summary["flux"]["clusters"] == 4
    assert summary["flux"]["accuracy"] >= summary["fedavg"]["accuracy"] + 0.15
    assert summary["flux"]["worst"] > summary["fedavg"]["worst"]
    assert [place["correct"] for place in summary["placements"]] == [True, True]
    for place in summary["placements"]:
        assert place["distance"] < place["runner_up_distance"]
        assert place["runner_up"] != place["cluster"]
        assert 0.0 < place["confidence"] < 1.0
        assert place["accuracy"] > summary["fedavg"]["accuracy"]
        assert place["seconds"] > 0.0
    model = 4 * 4810  # bytes of the 4,810 numbers that go up in every round, but where two runs shared one
    assert 0.8 * model < summary["bytes_per_device_round"]["up"] < 1.2 * model
    assert summary["seconds"] > 0.0
    assert summary["privacy"][0].startswith("privacy=off here")
    assert any(each.startswith("each of 8 devices: no guarantee: ") for each in summary["privacy"])


def test_the_newcomers_labels_never_reached_them(demo: Path) -> None:
    for member in scenario.newcomers():
        with np.load(demo / member.name / "data.npz") as found:
            assert list(found) == ["x"]


def test_nothing_of_the_truth_reached_the_server(demo: Path) -> None:
    log = (demo / "logs" / "server.log").read_text()
    assert "run flux" in log
    assert "group" not in log


# -- the other two drivers --------------------------------------------------------------------------------


def learner() -> Learner:
    return builtin(scenario.LEARNER["builtin"], scenario.LEARNER["options"])  # type: ignore[arg-type]


def views(member: Member) -> Views:
    def images(data: Dataset) -> Dataset:
        return Dataset(data.x.reshape(-1, 1, 8, 8), data.y)

    return Views.of(images(member.train), images(member.test) if member.test else None)


def bench(member: Member) -> Bench:
    return Bench(learner(), views(member), "cpu", 0, np.random.default_rng())


def simulated() -> Models:
    found: Models = {}
    for name in stage.ALGORITHMS:
        card, _ = find(name)
        local = card.local()
        parameters = card.configure("default", scenario.PARAMETERS[name])

        memories: dict[str, Tensors] = {}
        outcome = simulate(
            Bootstrap(card.central(), parameters),
            Unstarted(),
            {
                member.name: Simulated(local, bench(member), member.name, memories)
                for member in scenario.trainers()
            },
            scenario.POLICY,
            scenario.SEED,
        )
        assert not outcome.failed
        found[name] = {key: digest(model) for key, model in outcome.state.models.items()}
    return found


async def directly(folder: Path) -> Models:
    """Agents on the coordinator's own links, working in threads of this process."""
    coordinator = await Coordinator.open(folder / "server", Settings(tick=0.05))
    try:
        for name in stage.ALGORITHMS:
            await Desk(coordinator).start_run(stage.spec(name), None)
        await asyncio.gather(*(visit(coordinator, member, folder) for member in scenario.trainers()))
        return await final_models(coordinator)
    finally:
        await coordinator.close()


async def visit(coordinator: Coordinator, member: Member, folder: Path) -> None:
    root = folder / member.name
    root.mkdir()
    store, status = BlobStore(root / "blobs"), Status(member.name, "here")
    watcher = Watcher(status, root, lambda text: None, lambda text: None)
    performer = InProcess(Workshop(bench(member), store))
    link = DeviceLink(coordinator, member.name)
    outbox, mark = Outbox(root / "outbox"), Mark(root / "mark")
    await Agent(link, performer, store, outbox, mark, watcher).run(Until.FINISHED)


async def final_models(coordinator: Coordinator) -> Models:
    found: Models = {}
    for run in coordinator.runs:
        status = await Desk(coordinator).show(run)
        assert status.summary.stage == "finished"
        found[status.summary.name] = {key: model.blob.sha256 for key, model in status.models.items()}
    return found
