"""The server's mirror: each release once, whatever way and how often it comes, and only for reports."""

import asyncio
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from fedserver.coordinator.status_types import RunStatus, RunSummary, ServerStatus
from fedserver.rpc.wire import operator_wire
from fedserver.store.journal import journal, released
from fedserver.store.store import Storage
from shoal.core.exchange.messages import (
    Build,
    Evaluate,
    PrivateTraining,
    Summarize,
    Summarized,
    Train,
    TrainingSettings,
)
from shoal.core.exchange.parts import Ballot, Descriptor, LatentBounds, Moments, NoisySums, PrivacySettings
from shoal.core.exchange.payload import BlobRef, Payload, Weights, encode
from shoal.core.privacy.cost import ORDERS, Cost
from shoal.core.privacy.noise import vote
from shoal.core.privacy.report import NO_WEIGHTS, OPEN, WEIGHTS, CentralNoise, Statement, of_weights
from shoal.core.types import Tensors
from tests.server.servers import server, start
from tests.server.store.released import releases, statements
from tests.server.toys import MODEL

CURVE = tuple(0.01 * order for order in ORDERS)
SETTINGS = PrivacySettings("explicit", 4.0, 1e-7, 2)


def descriptor(value: int) -> Descriptor:
    return Descriptor(NoisySums(np.full((1, 5), value), 2.0, 1.0), "a" * 64, SETTINGS)


def exact(mode: str) -> Descriptor:
    settings = PrivacySettings(mode, 1.0 if mode == "paper" else 0.0)
    return Descriptor(Moments(np.zeros((1, 2)), np.zeros((1, 2)), np.ones(1)), "a" * 64, settings)


async def noted(storage: Storage, device: str) -> None:
    for _ in range(3):  # sent again
        await released.record_parts(storage, "toy", device, [descriptor(1), 7, "text"])


def test_each_release_is_noted_once_by_its_hash(tmp_path: Path) -> None:
    async def play() -> None:
        async with server(tmp_path) as coordinator:
            await start(coordinator, MODEL)
            storage = coordinator.storage
            await noted(storage, "d0")
            await released.record_parts(storage, "toy", "d0", [descriptor(2)])
            await released.record_parts(storage, "toy", "d1", [exact("paper"), exact("off"), exact("off")])
            await released.record_parts(storage, "toy", "d1", [LatentBounds(np.zeros(1), np.ones(1))])
            found = statements(await storage.call(releases, storage.store.database, "toy"))
            assert found == statements(await storage.call(releases, storage.store.database))
            assert (found["d0"].cost.rho, found["d0"].delta, found["d0"].group_size) == (0.25, 1e-7, 2)
            assert np.isfinite(found["d0"].epsilon)
            assert found["d1"].unprotected == (OPEN["paper"], OPEN["off"], OPEN["bounds"])
            assert found["d1"].epsilon == np.inf
            assert statements(await storage.call(releases, storage.store.database, "another")) == {}

    asyncio.run(play())


def test_what_a_report_gives_away_follows_from_its_task(tmp_path: Path) -> None:
    """Sent again, and after a start that knows nothing of before, it is still noted once."""
    weights = Weights((), BlobRef(sha256(b"").hexdigest(), 0))
    plain = Payload("trained", {"model": weights, "examples": 5, "loss": 0.1})
    private = Payload("trained", {**plain.parts, "curve": CURVE})
    asked = PrivateTraining(epsilon=2.0, delta=1e-7)

    def keep(tensors: Tensors) -> Weights:
        raise AssertionError("these messages have none")

    reports = (
        ("d0", Train(MODEL, TrainingSettings()), plain),
        ("d1", Train(MODEL, TrainingSettings(), private=asked), private),
        ("d2", Evaluate(MODEL), Payload("evaluated", {})),
        ("d3", Build(), Payload("built", {"model": weights})),
        ("d4", Summarize(), encode(Summarized((), ()), keep)),
        ("d5", Summarize(), encode(Summarized((1.0,), (0.5,)), keep)),
    )

    async def play() -> None:
        async with server(tmp_path) as coordinator:
            await start(coordinator, MODEL)
            for _ in range(2):
                known: set[tuple[str, str]] = set()
                for device, task, report in (*reports, *reports):
                    await released.record_report(coordinator.storage, "toy", device, task, report, known)
                assert known == {
                    ("d0", OPEN["weights"]),
                    ("d0", OPEN["figures"]),
                    ("d2", OPEN["figures"]),
                    ("d5", OPEN["summary"]),
                }
            found = statements(
                await coordinator.storage.call(releases, coordinator.storage.store.database, "toy")
            )
            assert found == {
                "d0": Statement(unprotected=(OPEN["weights"], OPEN["figures"])),
                "d1": Statement(Cost(curve=CURVE), 1e-7),
                "d2": Statement(unprotected=(OPEN["figures"],)),
                "d5": Statement(unprotected=(OPEN["summary"],)),
            }
            assert of_weights(found.values()) == WEIGHTS  # d0's have none, so the model has none
            assert of_weights([found["d1"], found["d2"]]).endswith(f"at most {found['d1'].promise}")

    asyncio.run(play())


def test_a_vote_is_noted_once_with_the_cost_that_the_device_pays(tmp_path: Path) -> None:
    once = vote.cost(1.0)

    async def play() -> None:
        async with server(tmp_path) as coordinator:
            await start(coordinator, MODEL)
            storage = coordinator.storage

            async def voted(device: str, cluster: str, question: str) -> Statement:
                await released.record_evidence(storage, "toy", device, Ballot(cluster, 1.0), question)
                return statements(await storage.call(releases, storage.store.database, "toy"))[device]

            first = await voted("d0", "c1", "q1")
            assert first == await voted("d0", "c1", "q1") == Statement(once, trained=False)
            assert first.protected == pytest.approx(1.01, abs=0.005)
            assert of_weights([first]) == NO_WEIGHTS, "it has not trained"
            assert (await voted("d0", "c1", "q2")).cost == once + once, "another question is paid for"
            assert (await voted("d0", "c2", "q2")).cost == once + once + once, "the data have changed"
            assert await voted("d1", "c1", "q1") == first
            private = Payload("trained", {"model": Weights((), BlobRef("a" * 64, 0)), "curve": CURVE})
            task = Train(MODEL, TrainingSettings(), private=PrivateTraining(epsilon=2.0, delta=1e-7))
            await released.record_report(storage, "toy", "d1", task, private, set())
            found = statements(await storage.call(releases, storage.store.database, "toy"))
            assert found["d1"] == Statement(once + Cost(curve=CURVE)), "this one has trained, too"
            assert found == await storage.call(storage.runs.statements.of, "toy")

    asyncio.run(play())


def test_a_device_cannot_fill_the_disk_with_releases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "RELEASES", 3)

    async def play() -> None:
        async with server(tmp_path) as coordinator:
            await start(coordinator, MODEL)
            for value in range(9):
                await released.record_parts(coordinator.storage, "toy", "d0", [descriptor(value)])
            assert (
                len(await coordinator.storage.call(releases, coordinator.storage.store.database, "toy")) == 4
            )  # the last says that there are more

    asyncio.run(play())


def test_operators_are_told_what_the_server_knows() -> None:
    released = {
        "d0": Statement(Cost(0.25, CURVE), 1e-7, 2),
        "d1": Statement(unprotected=(OPEN["paper"],)),
        "d2": Statement(vote.cost(1.0), trained=False),
    }
    summary = RunSummary("r1", "r1", "flux", "default", "finished", 3)
    for central in (None, CentralNoise(0.5, 1e-7), CentralNoise(0.5, 1e-7, by_devices=True)):
        status = RunStatus(summary, released=released, central=central)
        assert operator_wire.status_from_pb(operator_wire.status_to_pb(status)) == status
    daemon = ServerStatus("1", (), (), released=released)
    assert operator_wire.SERVER.from_pb(operator_wire.SERVER.to_pb(daemon)).released == released
