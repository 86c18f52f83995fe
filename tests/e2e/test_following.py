"""A device without PyTorch follows the channel that it gets models by: a server, and processes, over gRPC."""

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from grpc import aio

from fedclient.config import ClientConfig, DataConfig
from fedclient.light import commands
from fedclient.store.state import MODEL, DeviceFolder
from fedserver.rpc.client import OperatorClient
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.messages import Message, Trained
from shoal.core.types import Array, Tensors
from shoal.shell.console import Console
from tests.client.light.asking import ask
from tests.core.inference.graphs import graph
from tests.server.processes import daemon
from tests.server.servers import spec
from tests.server.toys import Hands
from tests.server.wire_link import WireLink

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

SAMPLES = np.random.default_rng(3).normal(size=(40, 4)).astype(np.float32)
BODY = json.dumps({"x": SAMPLES.tolist()}).encode()
FIRST, SECOND, LAST = (
    np.random.default_rng(seed).normal(size=(4, 3)).astype(np.float32) for seed in (1, 2, 4)
)
COLLAPSED = np.zeros((4, 3), np.float32)


def model(weight: Array) -> Tensors:
    return {"weight": 9 * weight, "bias": np.zeros(3, np.float32)}


def classes(weight: Array) -> list[int]:
    found: list[int] = (SAMPLES @ weight).argmax(axis=1).tolist()
    return found


class Recorded(Console):
    """Keeps what is said to people."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)


class Watched:
    """What a program that never stops looking sees, without repetitions. look: one look, or None."""

    def __init__(self, look: Callable[[], list[int] | None]) -> None:
        self.seen: list[list[int]] = []
        self.gaps: list[str] = []
        self._look, self._over = look, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> "Watched":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            try:
                found = self._look()
            except Exception as error:
                self.gaps.append(repr(error))
                return
            if found is None and self.seen:
                self.gaps.append(f"nothing, after {self.seen[-1]}")
            elif found is not None and found not in self.seen[-1:]:
                self.seen.append(found)


def test_a_newer_model_takes_over_without_a_gap_and_not_if_it_fails_its_check(tmp_path: Path) -> None:
    """Of `run --serve`, while each round becomes a release."""
    socket, console = tmp_path / "s", Recorded()
    np.savez(tmp_path / "new.npz", x=SAMPLES)

    def answered() -> list[int] | None:
        try:
            status, said = ask(str(socket), BODY, {"Content-Type": "application/json"})
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        return said["classes"] if status == 200 else None

    watched = Watched(answered)

    async def play(address: str, operator: OperatorClient) -> None:
        def use(rounds: int) -> None:
            while operator.show("toy").summary.progress < rounds:
                pass
            operator.use_release(operator.create_release("toy").release)

        device = ClientConfig(
            state=tmp_path / "device",
            server=address,
            device="serving",
            insecure_loopback=True,
            data=DataConfig(npz=tmp_path / "new.npz"),
        )
        serving = asyncio.create_task(commands.serve(device, console, f"unix:{socket}", "", 0.2))

        async def until(condition: Callable[[], bool]) -> None:
            while not condition():
                assert not serving.done(), serving.result()
                assert not watched.gaps
                assert classes(COLLAPSED) not in watched.seen
                await asyncio.sleep(0.01)

        async def until_used(weight: Array) -> None:
            await until(lambda: watched.seen[-1:] == [classes(weight)])

        async def train(weight: Array, rounds: int) -> None:
            task = await trainer.task()
            answer: Callable[[Message, int], Message] = lambda *_: Trained(model(weight), 10, 0.5)  # noqa: E731
            await trainer.do(task, answer)
            await asyncio.to_thread(use, rounds)

        try:
            async with aio.insecure_channel(address) as channel:
                await asyncio.to_thread(use, 0)
                trainer = await Hands(WireLink(channel, "trainer")).hello()
                with watched:
                    await until_used(FIRST)
                    await train(SECOND, 1)
                    await until_used(SECOND)
                    await train(COLLAPSED, 2)
                    await until(lambda: refused(console.lines))
                    kept = (DeviceFolder(device.state).model / MODEL).read_bytes()
                    assert model(SECOND)["weight"].tobytes() in kept
                    await train(LAST, 3)
                    await until_used(LAST)
        finally:
            serving.cancel()
            with suppress(asyncio.CancelledError):
                await serving
        assert (watched.seen, watched.gaps) == ([classes(FIRST), classes(SECOND), classes(LAST)], [])

    with daemon(tmp_path / "server") as running, OperatorClient(tmp_path / "server") as operator:
        asked = spec(parameters={"rounds": 9}, policy=RoundPolicy(devices=1, minimum=1))
        operator.start_run(asked, model(FIRST), graph())
        asyncio.run(play(running.address, operator))


def refused(lines: list[str]) -> bool:
    return any("is not used, and the earlier one stays" in line and "nats" in line for line in lines)
