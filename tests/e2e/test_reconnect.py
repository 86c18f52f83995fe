"""A fleet that lost its server comes back whole, and one try is one dial."""

import asyncio
import json
import socket
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from fedclient.net.backoff import Backoff, patiently
from fedclient.net.rpc import RpcLink
from shoal.core.exchange.link import Hello
from tests.waiting import HANG, until

ROOT = Path(__file__).parent.parent.parent


def test_two_dozen_devices_are_all_back_and_each_came_once(tmp_path: Path) -> None:
    """How fast they are is for the benchmark to say."""
    if not Path("/proc/self/net/tcp").exists():
        pytest.skip("connections cannot be counted here: there is no /proc")
    program = [sys.executable, "-m", "benchmarks.reconnect", "--devices", "24", "--away", "1"]
    done = subprocess.run(
        [*program, "--json", str(tmp_path / "found.json")],
        capture_output=True,
        text=True,
        timeout=HANG,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr[-2000:]

    (found,) = json.loads((tmp_path / "found.json").read_text())
    assert found["devices"] == 24
    assert found["hellos_a_device"] == 1.0  # no device was turned away, or came twice


def test_between_two_tries_nobody_dials() -> None:
    """gRPC would, for as long as anything of a failed call is held on to."""

    class Half(Random):
        def uniform(self, a: float, b: float) -> float:
            return 2.0

    async def story(port: socket.socket) -> None:
        port.bind(("127.0.0.1", 0))  # until it listens, every caller is refused
        link = RpcLink(f"127.0.0.1:{port.getsockname()[1]}", "d0")
        tries = dials = 0

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal dials
            dials += 1
            writer.close()

        async def hello() -> None:
            nonlocal tries
            tries += 1
            counted.append((tries, dials))
            await link.hello(Hello("toy"))

        counted, refused = list[tuple[int, int]](), list[str]()
        waiting = asyncio.create_task(patiently(hello, Backoff(Half()), HANG, refused.append))
        await until(lambda: bool(refused))
        async with await asyncio.start_server(accepted, sock=port):
            await until(lambda: tries == 3)
            waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await link.close()
        assert counted[1:] == [(2, 0), (3, 1)]

    with socket.socket() as port:
        asyncio.run(story(port))
