"""A fleet that lost its server comes back whole, and one try is one dial."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from fedclient.net.backoff import Backoff, patiently
from fedclient.net.rpc import RpcLink
from shoal.core.exchange.link import Hello

ROOT = Path(__file__).parent.parent.parent


def test_sixty_devices_are_back_within_a_minute(tmp_path: Path) -> None:
    """How fast they are beyond that is for the benchmark to say."""
    if not Path("/proc/self/net/tcp").exists():
        pytest.skip("connections cannot be counted here: there is no /proc")
    program = [sys.executable, str(ROOT / "benchmarks" / "reconnect.py"), "--devices", "60", "--away", "1"]
    done = subprocess.run(
        [*program, "--json", str(tmp_path / "found.json")],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr[-2000:]

    (found,) = json.loads((tmp_path / "found.json").read_text())
    assert found["devices"] == 60
    assert found["all_back_seconds"] <= 60.0
    assert found["hellos_a_device"] == 1.0  # nobody was turned away, or came twice


def test_between_two_tries_nobody_dials() -> None:
    """gRPC would, for as long as anything of a failed call is held on to."""

    class Half(Random):
        def uniform(self, a: float, b: float) -> float:
            return 2.0

    async def story() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        link = RpcLink(f"127.0.0.1:{port}", "d0")
        dials: list[float] = []
        clock = asyncio.get_running_loop().time

        async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            dials.append(clock())
            writer.close()

        began = clock()
        waiting = asyncio.create_task(
            patiently(lambda: link.hello(Hello("toy")), Backoff(Half()), 60.0, lambda text: None)
        )
        await asyncio.sleep(0.3)
        async with await asyncio.start_server(accepted, "127.0.0.1", port):
            await asyncio.sleep(2.7)
            waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await link.close()
        assert len(dials) == 1, [round(dial - began, 2) for dial in dials]

    asyncio.run(story())
