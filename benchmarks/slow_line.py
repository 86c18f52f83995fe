"""A device far away: how much of its line a transfer uses, beside a plain TCP connection over the same line.

One process is the server (`fedserver up`), one the line, one a plain sender and receiver of bytes, and this
one the device, which fetches a model and uploads one of the same size over mutual TLS. The line passes bytes
on after half of `--delay` in each direction, at most `--rate` of them, and holds what is on its way and a
little more. It is a relay, so what TCP itself makes of a long line (slow start, losses) is in neither figure:
only what is exchanged from end to end waits for the delay, such as the windows of HTTP/2.

    python -m benchmarks.slow_line [--megabytes 400] [--delay 0.1] [--rate 1000] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import json
import socket
import tempfile
import threading
import time
from collections import deque
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.least_server import HOST
from benchmarks.processes import joined, started
from fedclient.identity.rpc import credentials
from fedclient.net.rpc import RpcLink
from fedserver.authority.setup import init
from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.link import Hello, Task
from shoal.core.exchange.payload import BlobRef
from shoal.core.exchange.tensors import digest

PIECE, BUFFER, CHUNK = 1 << 16, 1 << 20, 1 << 20
GOAL = 0.85
LIMIT = 900.0


# -- the line -----------------------------------------------------------------------------------------------


class Direction:
    """Passes bytes on, `delay` seconds after they came, at most `rate` a second."""

    def __init__(self, source: socket.socket, sink: socket.socket, delay: float, rate: float) -> None:
        self._source, self._sink, self._delay, self._rate = source, sink, delay, rate
        self._most = int(rate * delay) + BUFFER
        self._held = 0
        self._way: deque[tuple[float, bytes]] = deque()
        self._changed = threading.Condition()

    def start(self) -> None:
        threading.Thread(target=self._enter, daemon=True).start()
        threading.Thread(target=self._leave, daemon=True).start()

    def _enter(self) -> None:
        free = time.monotonic()
        data = b"?"
        while data:
            with contextlib.suppress(OSError):
                data = b""
                data = self._source.recv(PIECE)
            free = max(free, time.monotonic()) + len(data) / self._rate
            with self._changed:
                self._way.append((free + self._delay, data))
                self._held += len(data)
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._held < self._most)

    def _leave(self) -> None:
        data = b"?"
        while data:
            with self._changed:
                self._changed.wait_for(lambda: self._way)
                arrives, data = self._way.popleft()
            if (early := arrives - time.monotonic()) > 0.0:
                time.sleep(early)
            with contextlib.suppress(OSError):
                self._sink.sendall(data) if data else self._sink.shutdown(socket.SHUT_WR)
            with self._changed:
                self._held -= len(data)
                self._changed.notify_all()


def be_the_line(target: str, delay: float, rate: float) -> None:
    host, _, port = target.rpartition(":")
    listening = socket.create_server((HOST, 0))
    print(f"listening on {HOST}:{listening.getsockname()[1]}", flush=True)
    while True:
        near, _ = listening.accept()
        far = socket.create_connection((host, int(port)))
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        Direction(near, far, delay, rate).start()
        Direction(far, near, delay, rate).start()


# -- plain TCP ----------------------------------------------------------------------------------------------


def be_plain() -> None:
    """Sends SIZE bytes to a caller that says "get SIZE"; takes them from one that says "put SIZE"."""
    listening = socket.create_server((HOST, 0))
    print(f"listening on {HOST}:{listening.getsockname()[1]}", flush=True)
    while True:
        caller, _ = listening.accept()
        word, size = caller.recv(64).decode().split()
        if word == "get":
            _send(caller, int(size))
        else:
            _receive(caller, int(size))
            caller.sendall(b"ok")
        caller.close()


def plain(address: str, word: str, size: int) -> float:
    """Seconds for this many bytes."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as line:
        began = time.monotonic()
        line.sendall(f"{word} {size}".encode().ljust(64))
        if word == "get":
            _receive(line, size)
        else:
            _send(line, size)
            assert line.recv(2) == b"ok"
        return time.monotonic() - began


def _send(line: socket.socket, size: int) -> None:
    piece = bytes(PIECE)
    for start in range(0, size, PIECE):
        line.sendall(piece[: size - start])


def _receive(line: socket.socket, size: int) -> None:
    buffer = bytearray(PIECE)
    while size > 0:
        got = line.recv_into(buffer)
        assert got, "the line broke"
        size -= got


# -- the device ---------------------------------------------------------------------------------------------


async def pieces(model: bytes) -> AsyncIterator[memoryview]:
    for start in range(0, len(model), CHUNK):
        yield memoryview(model)[start : start + CHUNK]


async def device(link: RpcLink, model: bytes, blob: BlobRef) -> tuple[float, float]:
    """Seconds of a fetch and of an upload."""
    await link.hello(Hello("benchmark"))
    task = None
    while not isinstance(task, Task):
        task = await link.next_task(20.0)
    (weights,) = task.payload.weights()
    began, got = time.monotonic(), 0
    async for piece in link.fetch(weights.blob, 0):
        got += len(piece)
    assert got == blob.size
    fetched = time.monotonic() - began
    began = time.monotonic()
    assert await link.upload(blob, 0, pieces(model)) == blob.size
    return fetched, time.monotonic() - began


async def measure(megabytes: int, delay: float, rate: float, folder: Path) -> dict[str, Any]:
    size = megabytes * 1_000_000 // 4 * 4
    state, me = folder / "state", ("-m", "benchmarks.slow_line")
    init(state, (HOST,), f"{HOST}:0", f"{HOST}:0", "benchmark")
    up = (
        "-m",
        "fedserver",
        "up",
        "--state",
        str(state),
        "--listen",
        f"{HOST}:0",
        "--join-listen",
        f"{HOST}:0",
    )
    line = (*me, "--delay", str(delay), "--rate", str(rate * 8 / 1e6), "--line")
    with started(*up) as server, started(*me, "--plain") as other:
        (identity,) = await joined(state, folder / "devices", 1)
        policy = RoundPolicy(devices=1, minimum=1)
        spec = RunSpec("far", "fedavg", parameters={"rounds": 1, "evaluate": False}, policy=policy)
        with OperatorClient(state) as operator:
            operator.start_run(spec, {"weights": np.zeros(size // 4, np.float32)})
        model = np.ones(size // 4, np.float32)
        blob = BlobRef(digest({"weights": model}), size)
        with started(*line, server.address) as ours, started(*line, other.address) as theirs:
            least = [await asyncio.to_thread(plain, theirs.address, word, size) for word in ("get", "put")]
            link = RpcLink(ours.address, identity.device, credentials(identity))
            try:
                found = await device(link, model.tobytes(), blob)
            finally:
                await link.close()
        return {
            "megabytes": size / 1e6,
            "delay": delay,
            "megabits_a_second": rate * 8 / 1e6,
            "fetch_seconds": found[0],
            "fetch_share_of_tcp": least[0] / found[0],
            "upload_seconds": found[1],
            "upload_share_of_tcp": least[1] / found[1],
            "tcp_seconds": least,
            "goal": GOAL,
            "server_peak_mb": server.peak(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=400)
    parser.add_argument("--delay", type=float, default=0.1, help="seconds for a round trip")
    parser.add_argument("--rate", type=float, default=1000.0, help="millions of bits a second")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--line", help=argparse.SUPPRESS)
    parser.add_argument("--plain", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rate = arguments.rate * 1e6 / 8
    if arguments.line:
        be_the_line(arguments.line, arguments.delay / 2, rate)
    if arguments.plain:
        be_plain()
    with tempfile.TemporaryDirectory(prefix="line-") as folder:
        one = measure(arguments.megabytes, arguments.delay, rate, Path(folder))
        result = asyncio.run(asyncio.wait_for(one, LIMIT))
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
