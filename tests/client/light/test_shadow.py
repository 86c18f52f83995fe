"""Another release in the shadow of the one that is used: what is counted, and that nothing of it harms."""

import asyncio
import json
import os
import signal
from pathlib import Path

import numpy as np
import pytest

from fedclient.config import DataConfig, WorkConfig
from fedclient.light.serving import Endpoint, listening
from fedclient.light.shadow import Shadow
from fedclient.placing.placement import PlacementResult
from fedclient.store.blobs import BlobStore
from fedclient.store.state import DeviceFolder
from shoal.core.errors import NoConsent
from shoal.core.exchange.choosing import Counted
from shoal.core.exchange.link import Trial
from shoal.core.exchange.parts import ClusterAssignment
from shoal.core.rollout import MAX_LABELED, Counts
from shoal.core.types import Array
from tests.client.light.asking import ask
from tests.client.light.test_serving import BODY, FIRST, JSON, NAN, SAMPLES, SECOND, folder_of, weights
from tests.core.inference.graphs import graph

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

OLD, NEW = ((SAMPLES @ weight).argmax(axis=1) for weight in (FIRST, SECOND))
TRUTH = np.where(np.arange(len(SAMPLES)) % 3 == 0, OLD, NEW)
HERE, AWAY = ClusterAssignment("c1"), ClusterAssignment("c2")


class Device:
    """A device on which FIRST is used; what the server answers is made up."""

    def __init__(self, root: Path) -> None:
        np.savez(root / "new.npz", x=SAMPLES)
        self.folder, self.socket, self.said = DeviceFolder(root / "state"), root / "s", list[str]()
        self.folder.root.mkdir()
        self.store = BlobStore(self.folder.blobs)
        self.work = WorkConfig(
            self.folder.blobs, root / "account", data=DataConfig(npz=root / "new.npz"), labels=False
        )
        self.allowed = True
        self.release: Array = SECOND

    async def fetch(self, release: str) -> PlacementResult:
        file = self.store.keep({"graph": np.frombuffer(graph(), np.uint8)}).blob
        return PlacementResult(
            "r2", HERE, self.store.keep(weights(self.release)), graph=file, release=release
        )

    def permit(self, release: str, rollout: str) -> None:
        if not self.allowed:
            raise NoConsent(f"counts of {release} may not leave")

    def shadow(self, endpoint: Endpoint) -> Shadow:
        return Shadow(self.folder, self.store, endpoint, self.fetch, self.permit, self.said.append)

    async def asked(self, body: bytes = BODY, to: str = "/predict") -> tuple[int, dict[str, object]]:
        found: tuple[int, dict[str, object]] = await asyncio.to_thread(
            ask, str(self.socket), body, JSON, to=to
        )
        return found

    async def label(self, y: object) -> tuple[int, dict[str, object]]:
        return await self.asked(json.dumps({"x": SAMPLES.tolist(), "y": y}).encode(), "/label")


def answer(trial: Trial | None, where: ClusterAssignment = HERE) -> PlacementResult:
    return PlacementResult("r1", where, None, trial=trial)


def expected(labeled: int = len(TRUTH)) -> Counts:
    old, new = (OLD == TRUTH)[:labeled], (NEW == TRUTH)[:labeled]
    right = (int(old.sum()), int(new.sum()), int((old & new).sum()))
    return Counts(len(SAMPLES), int((OLD == NEW).sum()), labeled, *right)


def test_both_are_counted_and_the_counts_outlive_the_processes(tmp_path: Path) -> None:
    device, trial = Device(tmp_path), Trial("4f", "second@3")

    async def before() -> None:
        with listening(f"unix:{device.socket}") as at:
            endpoint = Endpoint(device.work, at, device.said.append)
            shadow = device.shadow(endpoint)
            try:
                await endpoint.start()
                assert await endpoint.use(folder_of(tmp_path / "c1", FIRST)) == ""
                assert await device.label(TRUTH.tolist()) == (200, {"counted": 0})
                assert await shadow.counted() == Counted()
                await shadow.take(answer(trial))
                assert await shadow.counted() == Counted("4f", "c1")
                status, said = await device.asked()
                assert (status, said["classes"]) == (200, OLD.tolist()), "what is used goes on to answer"
                while (await endpoint.counts()).predictions == 0:
                    pass
                assert await device.label(TRUTH.tolist()) == (200, {"counted": len(TRUTH)})
                for wrong in ([0], [9] * len(TRUTH), [-1] * len(TRUTH), ["a"] * len(TRUTH), [[0]], None):
                    assert (await device.label(wrong))[0] == 400
                assert await shadow.counted() == Counted("4f", "c1", expected())
                await shadow.take(answer(trial))
                process = endpoint._process
                assert process is not None
                os.kill(process.process.pid, signal.SIGKILL)
                await process.process.wait()
                assert await shadow.counted() == Counted("4f", "c1", expected()), "what is on the disk"
                assert (await device.asked())[0] == 503, "the model is ordered by the agent"
            finally:
                await endpoint.stop()

    async def after() -> None:
        with listening(f"unix:{device.socket}") as at:
            endpoint = Endpoint(device.work, at, device.said.append)
            shadow = device.shadow(endpoint)
            try:
                endpoint.model = tmp_path / "c1"
                await endpoint.start()
                assert await shadow.counted() == Counted("4f", "c1", expected())
                await device.label(TRUTH.tolist())
                found = await shadow.counted()
                assert found is not None
                assert found.counts.labeled == 2 * len(TRUTH)
                await shadow.take(answer(None))
                assert (await shadow.counted(), device.folder.shadow.exists()) == (Counted(), False)
                assert await device.label(TRUTH.tolist()) == (200, {"counted": 0})
            finally:
                await endpoint.stop()

    asyncio.run(before())
    asyncio.run(after())


def test_who_may_not_or_need_not_take_part_does_not(tmp_path: Path) -> None:
    device, trial = Device(tmp_path), Trial("4f", "second@3", ("c1",))

    async def play() -> None:
        with listening(f"unix:{device.socket}") as at:
            endpoint = Endpoint(device.work, at, device.said.append)
            shadow = device.shadow(endpoint)
            try:
                await endpoint.start()
                assert await endpoint.use(folder_of(tmp_path / "c1", FIRST)) == ""
                await shadow.take(answer(trial, AWAY))
                assert await shadow.counted() == Counted()
                device.allowed = False
                for _ in range(2):
                    await shadow.take(answer(trial))
                assert await shadow.counted() == Counted()
                assert [each for each in device.said if "may not leave" in each] == device.said[:1]
                device.allowed = True
                await shadow.take(answer(trial))
                assert await shadow.counted() == Counted("4f", "c1")
                device.allowed = False
                assert await shadow.counted() is None, "consent was taken back"
                device.allowed, device.release = True, NAN
                await shadow.take(answer(Trial("50", "third@3")))
                assert "cannot be tried" in device.said[-1]
                assert (await device.asked())[1]["classes"] == OLD.tolist()
                assert await shadow.counted() == Counted()
            finally:
                await endpoint.stop()

    asyncio.run(play())


def test_a_device_counts_no_more_labels_than_it_may(tmp_path: Path) -> None:
    device = Device(tmp_path)

    async def play() -> None:
        with listening(f"unix:{device.socket}") as at:
            endpoint = Endpoint(device.work, at, device.said.append)
            try:
                await endpoint.start()
                assert await endpoint.use(folder_of(tmp_path / "c1", FIRST)) == ""
                begun = Counts(labeled=MAX_LABELED - 10)
                assert await endpoint.try_out(folder_of(tmp_path / "c2", SECOND), begun) == ""
                assert await device.label(TRUTH.tolist()) == (200, {"counted": 10})
                assert await device.label(TRUTH.tolist()) == (200, {"counted": 0})
                assert (await endpoint.counts()).labeled == MAX_LABELED
            finally:
                await endpoint.stop()

    asyncio.run(play())
