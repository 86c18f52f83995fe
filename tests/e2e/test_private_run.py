"""FLUX with privacy=balanced on real digits: devices with ledgers, a coordinator, and a newcomer."""

import asyncio
import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedclient.agent.agent import Agent, Until
from fedclient.agent.allowance import Allowance
from fedclient.agent.reporter import Reporter
from fedclient.config import DataConfig, LearnerConfig, WorkConfig
from fedclient.faults import NoPart
from fedclient.placing.asking import Asker
from fedclient.placing.placement import PlacementResult, Placer
from fedclient.store.blobs import BlobStore
from fedclient.store.ledger import Ledger
from fedclient.store.privacy_report import facts
from fedclient.store.state import DeviceFolder, Outbox, Status
from fedclient.work.executor import Spawned
from fedclient.work.runtime import Runtime
from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.coordinator.release_api import ReleaseApi
from fedserver.coordinator.status_types import RunStatus
from fedserver.store.records import RunSpec
from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import builtin
from shoal.core.device_kit.tracing import export, sample_of
from shoal.core.privacy import report
from shoal.core.privacy.budget import Budget
from shoal.core.privacy.ledger.entries import Debit, Failed, Open, Release, Reserved, chosen
from shoal.demo import fleet, processes
from shoal.demo.fleet import Member
from shoal.simulation import images
from shoal.simulation.images import rotate
from tests.client.in_process import InProcess
from tests.server.store.released import releases
from tests.server.toys import Hands, pieces_of

TRAINING = {"epochs": 2, "batch_size": 16, "learning_rate": 0.05}
PRIVATE = {**TRAINING, "rounds": 6, "placing": "likelihood"}  # newcomers describe their data, too
TRAINERS, IMAGES = 4, 300
LONGER = {**PRIVATE, "rounds": 8, "epochs": 1}
OPEN = {**PRIVATE, "privacy": "off"}
PLAIN = {report.OPEN[name] for name in ("weights", "figures")}
"""What leaves where weights are neither noised nor summed."""
POLICY = replace(fleet.POLICY, devices=TRAINERS, minimum=TRAINERS, max_abandoned_rounds=1)


def spec(name: str) -> RunSpec:
    return replace(processes.spec("flux"), name=name, parameters=PRIVATE, policy=POLICY)


def member(number: int) -> Member:
    """Device `number` with digits of its own: upright, or turned by 90 degrees."""
    train, _ = images.digits()
    own, group = train.subset(slice(number * IMAGES, (number + 1) * IMAGES)), number % 2
    return Member(f"device-{number}", group, Dataset(rotate(own.x, 90 * group), own.y))


def work(folder: Path, data: Dataset, labels: bool, budget: Budget) -> WorkConfig:
    """A device's settings, with its data on the disk."""
    folder.mkdir(exist_ok=True)
    arrays = {"x": data.x.reshape(-1, 1, 8, 8)}
    if labels:
        assert data.y is not None
        arrays["y"] = data.y
    np.savez(folder / "data.npz", **arrays)
    options = fleet.LEARNER["options"]
    state = DeviceFolder(folder)
    return WorkConfig(
        state.blobs,
        state.privacy,
        LearnerConfig(builtin=fleet.LEARNER["builtin"], options=options),  # type: ignore[arg-type]
        DataConfig(npz=folder / "data.npz"),
        labels=labels,
        privacy=budget,
    )


async def train(coordinator: Coordinator, folder: Path, member: Member, budget: Budget) -> None:
    root = folder / member.name
    config = work(root, member.train, True, budget)
    store, status = BlobStore(config.blobs), Status(member.name, "here")
    reporter = Reporter(status, root, lambda text: None, lambda text: None)
    executor, link = InProcess(Runtime.open(config)), DeviceApi(coordinator, member.name)
    outbox, mark = Outbox(root / "outbox"), DeviceFolder(root).mark
    note = Ledger(config.account, budget).failed
    await Agent(link, executor, store, outbox, mark, reporter, note_failure=note).run(Until.FINISHED)


async def train_all(
    coordinator: Coordinator, folder: Path, members: Sequence[Member], budget: Budget
) -> None:
    """As `train` for each of these, until they are done or have no part in the runs that go on."""

    async def one(member: Member) -> None:
        with contextlib.suppress(NoPart):
            await train(coordinator, folder, member, budget)

    await asyncio.gather(*(one(member) for member in members))


async def refuse(
    coordinator: Coordinator, folder: Path, members: Sequence[Member], budget: Budget, run: str
) -> RunStatus:
    """As `train` for each of these, all of whom refuse `run`. Returns how it failed."""
    await train_all(coordinator, folder, members, budget)
    while (status := await OperatorApi(coordinator).show(run)).summary.stage != "failed":  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    return status


async def start_with_graph(coordinator: Coordinator) -> None:
    """A run from whose models devices without PyTorch can choose, too."""
    network = builtin(fleet.LEARNER["builtin"], fleet.LEARNER["options"])  # type: ignore[arg-type]
    hands = Hands(OperatorApi(coordinator))  # type: ignore[arg-type]
    file = np.frombuffer(export(network, sample_of((1, 8, 8)), {}).data, np.uint8)
    blob = hands.keep({"graph": file}).blob
    await hands.link.upload(blob, 0, pieces_of(hands.blobs[blob.sha256]))
    asked = replace(spec("first"), graph=blob.sha256, graph_bytes=blob.size)
    await OperatorApi(coordinator).start_run(asked, None)


async def place(
    coordinator: Coordinator, folder: Path, member: Member, budget: Budget, run: str, light: bool = False
) -> PlacementResult:
    """light: without PyTorch, in a process that does not load it."""
    config = work(folder / member.name, member.train, False, budget)
    store, link = BlobStore(config.blobs), DeviceApi(coordinator, member.name)
    executor = Spawned(replace(config, learner=None)) if light else InProcess(Runtime.open(config))
    try:
        asker = Asker(link, store, lambda text: None, Allowance(1 << 30, give_up_after=5.0), light)
        return await Placer(asker, executor, lambda text: None, light).place(run)
    finally:
        await executor.stop()


def ledger(folder: Path, member: Member, budget: Budget) -> Ledger:
    return Ledger(DeviceFolder(folder / member.name).privacy, budget)


def test_groups_are_found_all_that_left_is_in_the_ledgers_and_no_more_leaves(tmp_path: Path) -> None:
    budget = Budget(allow_unprotected=False)
    members = [member(number) for number in range(TRAINERS)]

    async def play() -> None:
        coordinator = await Coordinator.open(tmp_path / "server", Settings(tick=0.05))
        try:
            await start_with_graph(coordinator)
            await asyncio.gather(*(train(coordinator, tmp_path, each, budget) for each in members))
            status = await OperatorApi(coordinator).show("first")
            assert status.summary.stage == "finished"
            found = {each.device: each.cluster for each in status.devices}
            # Noise of the operating system parts two devices that are alike once in ten thousand runs.
            groups = {(found[each.name], each.group) for each in members}
            assert len(set(found.values())) == len(groups) < TRAINERS
            for each in members:
                entries = ledger(tmp_path, each, budget).verify()
                assert [len(chosen(entries, kind)) for kind in (Debit, Release, Open)] == [1, 1, 2]
                total = facts(entries, budget)["total"]
                assert (total["of_releases"], total["delta"]) == (pytest.approx(5.0), 1e-6)
                assert total["epsilon"] is None  # for it has trained and measured too
                assert set(total["unprotected"]) == PLAIN
                mirrored = status.released[each.name]  # what the server has seen is what the ledger says
                assert (mirrored.protected, mirrored.epsilon) == (pytest.approx(5.0), math.inf)
                assert set(mirrored.unprotected) == PLAIN
            noted = await coordinator.storage.call(releases, coordinator.storage.store.database, "first")
            assert {each.release for each in noted} - PLAIN == {
                chosen(ledger(tmp_path, each, budget).entries(), Release)[0].release for each in members
            }

            newcomer = member(TRAINERS)
            first = await place(coordinator, tmp_path, newcomer, budget, "first")
            right = {found[each.name] for each in members if each.group == newcomer.group}
            assert first.assignment.cluster in right or first.assignment.abstained
            again = await place(coordinator, tmp_path, newcomer, budget, "first")
            assert again.assignment == first.assignment  # the same bytes, the same answer
            assert len(chosen(ledger(tmp_path, newcomer, budget).verify(), Debit)) == 1

            assert (await OperatorApi(coordinator).status()).released[newcomer.name].epsilon == pytest.approx(
                5.0
            )

            light = replace(newcomer, name="light")
            found_without = await place(coordinator, tmp_path, light, budget, "first", light=True)
            assert found_without.assignment.cluster in right or found_without.assignment.abstained
            entries = ledger(tmp_path, light, budget).verify()
            assert [len(chosen(entries, kind)) for kind in (Debit, Release, Open)] == [1, 1, 0]
            assert (await OperatorApi(coordinator).status()).released["light"].epsilon == pytest.approx(5.0)
            noted = await coordinator.storage.call(releases, coordinator.storage.store.database, "first")
            assert chosen(entries, Release)[0].release in {each.release for each in noted}

            placed = await place(coordinator, tmp_path, members[1], budget, "first")
            assert placed.assignment.cluster == found[members[1].name]
            entries = ledger(tmp_path, members[1], budget).verify()
            assert len(chosen(entries, Debit)) == 1  # what it sent as it trained places it too
            mirrored = (await OperatorApi(coordinator).status()).released[members[1].name]
            assert mirrored.protected == pytest.approx(5.0)

            paid = {each.name: ledger(tmp_path, each, budget).entries() for each in members}
            models = (await OperatorApi(coordinator).show("first")).models
            for name, change in (("again", {}), ("second", {"seed": 7, "parameters": LONGER})):
                await OperatorApi(coordinator).start_run(replace(spec(name), **change), None)  # type: ignore[arg-type]
                if name == "second":  # what the first run's encoder is needed for does not depend on that run
                    await ReleaseApi(coordinator).remove("stable")
                    await OperatorApi(coordinator).remove_run("first")
                await asyncio.gather(*(train(coordinator, tmp_path, each, budget) for each in members))
                status = await OperatorApi(coordinator).show(name)
                assert status.summary.stage == "finished"
                if name == "again":
                    assert status.models == models, "the same descriptions, and so the same bits"
                assert {each.device: each.cluster for each in status.devices} == found
                for each in members:
                    assert ledger(tmp_path, each, budget).verify() == paid[each.name], "nothing new is paid"

            for name, change, reason in (
                (
                    "other-terms",
                    {"parameters": {**PRIVATE, "privacy": "strict"}},
                    "the owner's privacy budget has too little left, or nothing: the owner raises it",
                ),
                ("open", {"parameters": OPEN}, "it failed: the device's owner lets nothing leave without"),
            ):
                await OperatorApi(coordinator).start_run(replace(spec(name), **change), None)  # type: ignore[arg-type]
                await refuse(coordinator, tmp_path, members, budget, name)
                lines = [line.text for line in await OperatorApi(coordinator).log(name, 0)]
                assert sum(reason in line for line in lines) >= TRAINERS
                # The server learns a fixed text, and nothing of limits and spending.
                assert not any("5 is spent" in line or "would fit" in line for line in lines)
            for each in members:
                entries = ledger(tmp_path, each, budget).verify()
                failed = chosen(entries, Failed)
                assert len(entries) - len(failed) == 5
                assert [each.run for each in chosen(entries, Reserved)] == ["first"], "no other fits"
                assert {(line.run, line.code) for line in failed} == {
                    ("other-terms", "over-budget"),
                    ("open", "unprotected"),
                }
        finally:
            await coordinator.close()

    asyncio.run(play())
