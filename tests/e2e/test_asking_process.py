"""A device without a learner asks by a process of its own: over gRPC and TLS, one process at a time."""

import asyncio
from asyncio.subprocess import Process
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedclient.config import ClientConfig, DataConfig, LimitsConfig
from fedclient.faults import WorkerDied
from fedclient.identity.keyring import Keyring
from fedclient.placing.asking_process import AskerProcess
from fedclient.placing.service import place
from fedclient.store.state import GRAPH, MODEL, DeviceFolder
from fedclient.work import spawning
from fedclient.work.executor import Spawned
from fedserver.rpc.client import OperatorClient
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import ConfigError, Refused, ShoalError, Unavailable
from shoal.core.identity.joining import Role
from shoal.shell.console import Console
from tests.client.memory_server import quiet
from tests.core.inference.graphs import graph
from tests.e2e.identities import identity_of
from tests.server.authority.peers import World, play
from tests.server.processes import daemon
from tests.server.servers import spec

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

MODEL_OF_RUN = {
    "weight": np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32),
    "bias": np.zeros(3, np.float32),
}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a server with a run that gives a graph."""
    folder = tmp_path_factory.mktemp("server")
    with daemon(folder) as running, OperatorClient(folder) as operator:
        asked = spec(parameters={"rounds": 9}, policy=RoundPolicy(devices=1, minimum=1))
        operator.start_run(asked, MODEL_OF_RUN, graph())
        yield running.address


def settings(folder: Path, server: str | None, plain: bool = True, most: int = 1 << 20) -> ClientConfig:
    np.savez(folder / "new.npz", x=np.ones((20, 4), np.float32))
    return ClientConfig(
        state=folder / "device",
        server=server,
        device="new" if plain else None,
        insecure_loopback=plain,
        data=DataConfig(npz=folder / "new.npz"),
        limits=LimitsConfig(download_bytes=most),
    )


class Started:
    """Every process that is started, in order. at_once: called with each, before it does anything."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, at_once: Callable[[Process], None] | None = None
    ) -> None:
        self.modules: list[str] = []
        self._last: Process | None = None
        self._at_once, self._spawn = at_once, spawning.spawn
        monkeypatch.setattr(spawning, "spawn", self.spawn)

    async def spawn(self, module: str, *given: Any, **named: Any) -> Process:
        assert self._last is None or self._last.returncode is not None, "the process before is still there"
        self.modules.append(module)
        self._last = await self._spawn(module, *given, **named)
        if self._at_once:
            self._at_once(self._last)
        return self._last


def test_one_process_asks_and_another_one_has_the_data_and_they_never_meet(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, device = Started(monkeypatch), settings(tmp_path, address)
    found, path = asyncio.run(place(device, Console(), None, "toy", False, 60.0))
    folder = DeviceFolder(device.state)
    assert (found.assignment.cluster, path) == ("global", folder.model / MODEL)
    assert (folder.model / GRAPH).read_bytes() == graph()
    assert found.received == sum(each.stat().st_size for each in folder.blobs.iterdir())
    asks, works = "fedclient.placing.asking_process", "fedclient.work.worker"
    assert started.modules == [works, asks, works]


def asked(device: ClientConfig, give_up_after: float = 0.05) -> ShoalError:
    """The error of one question."""
    asker = AskerProcess(device, Spawned(None), quiet, quiet, give_up_after)  # type: ignore[arg-type]
    with pytest.raises(ShoalError) as found:
        asyncio.run(asker.ask("toy", None, False))
    return found.value


def test_errors_arrive_as_what_they_are(
    tmp_path: Path, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = asked(settings(tmp_path, "127.0.0.1:1"))
    assert isinstance(away, Unavailable)
    assert "127.0.0.1:1 does not answer" in away.message
    large = asked(settings(tmp_path, address, most=9))
    assert isinstance(large, Refused)
    assert large.hint == "raise limits.download_bytes in this device's settings"
    Started(monkeypatch, at_once=lambda process: process.kill())
    assert isinstance(died := asked(settings(tmp_path, address)), WorkerDied)
    assert "ended by SIGKILL" in died.message


def test_a_device_that_has_not_joined_starts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch)
    with pytest.raises(ConfigError, match="has not joined"):
        asyncio.run(place(settings(tmp_path, None, plain=False), Console(), None, "", False, 0.0))
    assert not started.modules


def test_it_asks_under_the_identity_of_the_device(tmp_path: Path) -> None:
    """Over mutual TLS: the server knows the device, and has no run yet."""
    device = settings(tmp_path, None, plain=False)

    async def story(found: World) -> None:
        Keyring(DeviceFolder(device.state).identity).keep(
            identity_of(await found.device("phone", role=Role.INFER_ONLY))
        )
        asker = AskerProcess(device, Spawned(None), quiet, quiet, 60.0)  # type: ignore[arg-type]
        with pytest.raises(Refused, match="channel stable has no release yet"):
            await asker.ask("", None, False)

    play(story, tmp_path / "server")
