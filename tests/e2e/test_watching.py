"""Devices that follow a release, and whose data change: a server and processes, over gRPC, killed
meanwhile."""

import asyncio
import json
import signal
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from grpc import StatusCode, aio

from fedclient.cli.status import facts, text
from fedclient.config import ClientConfig, DataConfig
from fedclient.light.remembering import Remembering
from fedclient.placing.service import newcomer, placed
from fedclient.placing.watching import Watcher
from fedclient.store.findings import FOLDER, STATE, Findings
from fedclient.store.privacy_report import ledger_of
from fedclient.store.state import DeviceFolder
from fedclient.work.data import state_of
from fedclient.work.executor import Spawned
from fedserver.rpc.client import OperatorClient
from shoal.core.errors import Unavailable
from shoal.core.exchange.choosing import Wish
from shoal.core.exchange.choosing.watching import Moved
from shoal.core.privacy.ledger.entries import paid
from shoal.core.privacy.noise.response import WATCHING, randomized
from shoal.core.privacy.payment import WATCH
from shoal.core.types import Array
from shoal.shell.console import Console
from tests.core.inference.graphs import graph
from tests.server.processes import daemon
from tests.server.servers import spec
from tests.server.wire_link import WireLink
from tests.waiting import HANG

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

MODEL = {
    "weight": np.random.default_rng(1).normal(size=(4, 3)).astype(np.float32),
    "bias": np.zeros(3, np.float32),
}
USUAL, OTHER = (
    np.random.default_rng(seed).normal(mean, 1.0, (60, 4)).astype(np.float32)
    for seed, mean in ((1, 0.0), (2, 2.0))
)


def follows(settings: ClientConfig, x: Array) -> Findings:
    """One step of a device that follows, with these data; it is time for a look and for an answer."""
    np.savez(settings.state.parent / "new.npz", x=x)
    known = Watcher(settings).findings
    if known.subject:
        kept = asdict(replace(known, looked=0.0, due=0.0))
        (settings.state / FOLDER / STATE).write_text(json.dumps(kept))

    async def step() -> None:
        work = newcomer(settings, None)
        executor = Remembering(Spawned(work), lambda: state_of(work))
        try:
            await placed(settings, Console(), executor, "", True, 1.0, follows=True)
        finally:
            await executor.stop()

    with DeviceFolder(settings.state).locked():
        asyncio.run(step())
    return Watcher(settings).findings


def crowd(address: str, release: str, devices: int, cluster: str = "global") -> None:
    """Other devices that have moved, too, and say so as randomized; each says it twice."""
    entropy = np.random.default_rng(43).bytes

    async def play() -> None:
        async with aio.insecure_channel(address) as channel:
            for number in range(devices):
                said = Moved(release, cluster, randomized(True, WATCHING, entropy))
                for _ in range(2):
                    await patiently(WireLink(channel, f"{cluster}-{number}"), said)

    asyncio.run(play())


async def patiently(link: WireLink, said: Moved) -> None:
    """Say it; a server to which many new devices come takes them one after the other."""
    while True:
        try:
            await link.place("", Wish(1, moved=said))
            return
        except aio.AioRpcError as error:
            if error.code() is not StatusCode.RESOURCE_EXHAUSTED:
                raise
            await asyncio.sleep(0.05)


def test_a_folder_that_changes_raises_the_alarm(tmp_path: Path) -> None:
    state, data = tmp_path / "server", DataConfig(npz=tmp_path / "new.npz")
    settings = ClientConfig(state=tmp_path / "device", device="d0", insecure_loopback=True, data=data)
    with (
        daemon(state, environment={"SHOAL_CRASH_AT": "server.answer-committing"}) as server,
        OperatorClient(state) as operator,
    ):
        operator.start_run(spec(parameters={"rounds": 9}), MODEL, graph())
        release = operator.create_release("toy").release
        operator.use_release(release)
        device = replace(settings, server=server.address)
        assert follows(device, USUAL).reference
        moved = follows(device, OTHER)
        assert (moved.subject, moved.cluster, moved.since > 0.0) == (release, "global", True)
        assert moved.waiting is not None
        with pytest.raises(Unavailable):
            follows(device, OTHER)
        assert server.process.wait(HANG) == -signal.SIGKILL
        assert Watcher(device).findings.waiting == moved.waiting, "it has not been said"
    with daemon(state) as server, OperatorClient(state) as operator:
        device = replace(settings, server=server.address)
        assert follows(device, OTHER).waiting is None
        assert len(paid(ledger_of(device).verify(), WATCH)) == 1
        (only,) = operator.release("").summary.watched
        assert (only.key, only.answers, only.since) == ("global", 1, None)
        found = facts(device)
        assert found["watch"]["since"] > 0.0
        assert "new samples" in text(found)
        crowd(server.address, release, 120)
        crowd(server.address, release, 2, "no-such-cluster")
        crowd(server.address, "toy@99", 2)
        shown = operator.release("").summary.watched
        assert [(each.key, each.answers) for each in shown] == [("global", 121)]
        assert shown[0].since is not None
        assert abs(shown[0].share - 1.0) < 3.0 * shown[0].error
        (alarm,) = (each for each in operator.status().notices if release in each)
        assert "cluster global" in alarm
        assert f"fedserver run start NAME --from {release}" in alarm
        spent = operator.status().released
        for name in ("d0", "global-7"):
            assert spent[name].protected == pytest.approx(WATCHING, rel=0.05)
