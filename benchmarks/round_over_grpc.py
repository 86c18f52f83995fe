"""A FedAvg round over real gRPC against a bound: the least server that moves and adds up the same bytes.

One process is the server (`fedserver up`), this one plays all devices, each on a connection of its own: it
asks for its task, fetches the model and checks its hash, adds a constant, hashes the result, uploads it and
reports. A round lasts from the first fetch until all devices have the next task. The bound is a second server
process: grpc.aio, raw frames of 1 MiB without protobuf, the model's frames made once for all devices, uploads
added to a float64 sum block by block as they come. It checks nothing, hashes nothing and has no disk. A third
one, the hashed bound, adds what no safe exchange can do without: SHA-256 of what comes, at both ends, and of
each result. All take turns, and the ratios are taken turn by turn, so that a machine that slows down slows
all. Needs /proc, for the servers' memory and processor time.

What it leaves out: TLS, a network (loopback only), the devices' disks and the training itself, which is one
addition in memory, and stragglers. All devices share one process and the machine's cores with the server. The
server's disk is that of the folder for temporary files, or `--folder`; its syncs are in the times.

    python -m benchmarks.round_over_grpc [--models lenet,femnist] [--devices 4,10] [--rounds 7] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import hashlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np
from grpc import aio

from fedclient.net.rpc import RpcLink
from fedserver.rpc.client import OperatorClient
from fedserver.store.integrity.records import RunSpec
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.link import Hello, Outcome, Report, Task
from shoal.core.exchange.messages import Trained
from shoal.core.exchange.payload import BlobRef, Weights, encode
from shoal.core.exchange.tensors import Manifest, layout, manifest_of
from shoal.core.types import Tensors

SHAPES = {
    "lenet": [
        (6, 1, 5, 5),
        (6,),
        (16, 6, 5, 5),
        (16,),
        (120, 400),
        (120,),
        (84, 120),
        (84,),
        (10, 84),
        (10,),
    ],
    "femnist": [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (2048, 3136), (2048,), (62, 2048), (62,)],
}
FRAME, BLOCK = 1 << 20, 1 << 16
GOAL = 1.5
LIMIT = 300.0
"""Seconds for one combination of a model and a number of devices."""
OPTIONS = (
    ("grpc.max_receive_message_length", 4 << 20),
    ("grpc.max_send_message_length", 4 << 20),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 1 << 20),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_http_proxy", 0),
)


# -- the bound ----------------------------------------------------------------------------------------------


class Bound(grpc.GenericRpcHandler):
    """Fetch streams the model's frames; Upload takes a model of float32, and answers when all have come."""

    def __init__(self, size: int, devices: int) -> None:
        self._devices, self._arrived = devices, 0
        self._sum, self._scratch = np.zeros(size // 4), np.empty(BLOCK)
        self._frames = self._cut(bytes(size))
        self._done = asyncio.Event()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        if details.method == "/bound/Fetch":
            return grpc.unary_stream_rpc_method_handler(self._fetch)
        return grpc.stream_unary_rpc_method_handler(self._upload)

    async def _fetch(self, request: bytes, context: Any) -> AsyncIterator[bytes]:
        for frame in self._frames:
            yield frame

    async def _upload(self, frames: AsyncIterator[bytes], context: Any) -> bytes:
        done, at, sha = self._done, 0, hashlib.sha256()
        expected = dict(context.invocation_metadata()).get("sha256", "")
        async for frame in frames:
            if expected:
                sha.update(frame)
            values = np.frombuffer(frame, np.float32)
            for start in range(0, len(values), BLOCK):
                block = values[start : start + BLOCK]
                scaled = np.multiply(block, 1.0 / self._devices, out=self._scratch[: len(block)], dtype=float)
                self._sum[at : at + len(block)] += scaled
                at += len(block)
        assert expected in ("", sha.hexdigest())
        self._arrived += 1
        if self._arrived == self._devices:
            self._frames = self._cut(self._sum.astype(np.float32).tobytes())
            self._sum[:] = 0.0
            self._arrived, self._done = 0, asyncio.Event()
            done.set()
        await done.wait()
        return b""

    @staticmethod
    def _cut(model: bytes) -> list[bytes]:
        return [model[start : start + FRAME] for start in range(0, len(model), FRAME)]


async def serve_bound(size: int, devices: int) -> None:
    server = aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((Bound(size, devices),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening on 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination(LIMIT)


# -- the devices --------------------------------------------------------------------------------------------


class Device(Protocol):
    """first: the first number of the model that the last round began with."""

    first: float

    async def round(self) -> None: ...
    async def close(self) -> None: ...


def train(model: bytearray, manifest: Manifest, constant: float) -> None:
    """The padding between tensors stays as it is."""
    for spec, start in zip(manifest, layout(manifest)[0], strict=True):
        np.frombuffer(model, np.float32, spec.nbytes // 4, start)[:] += np.float32(constant)


async def digest_of(model: bytearray) -> str:
    """On a thread: a device of ours hashes its result in a process of its own."""
    return (await asyncio.to_thread(hashlib.sha256, model)).hexdigest()


async def pieces(data: bytearray) -> AsyncIterator[bytes]:
    for start in range(0, len(data), FRAME):
        yield bytes(memoryview(data)[start : start + FRAME])


class OurDevice:
    """One device of ours: its link is the product's own, its blobs are in memory instead of on a disk."""

    def __init__(self, address: str, number: int) -> None:
        self._link, self._number = RpcLink(address, f"device-{number:02}"), number
        self._task: Task | None = None
        self._buffer = bytearray()
        self.first = 0.0

    async def hello(self) -> None:
        await self._link.hello(Hello("benchmark"))

    async def next(self) -> None:
        """Wait for a task, or for the end of the run."""
        while True:
            answer = await self._link.next_task(20.0)
            self._task = answer if isinstance(answer, Task) else None
            if self._task or answer.finished:
                return

    async def round(self) -> None:
        task = self._task
        assert task is not None
        (weights,) = task.payload.weights()
        if not self._buffer:
            self._buffer = bytearray(weights.blob.size)
        model, at, sha = self._buffer, 0, hashlib.sha256()
        async for piece in self._link.fetch(weights.blob, 0):
            sha.update(piece)
            model[at : at + len(piece)] = piece
            at += len(piece)
        assert sha.hexdigest() == weights.blob.sha256
        (self.first,) = np.frombuffer(model, np.float32, 1)
        train(model, weights.manifest, self._number)
        blob = BlobRef(await digest_of(model), len(model))
        assert await self._link.uploaded(blob) == 0
        assert await self._link.upload(blob, 0, pieces(model)) == blob.size
        result = encode(Trained({}, 100, 0.5), lambda tensors: Weights(weights.manifest, blob))
        receipt = await self._link.report(Report(task.run, task.round, task.attempt, result))
        assert receipt.outcome is Outcome.ACCEPTED, receipt
        await self.next()

    async def close(self) -> None:
        await self._link.close()


class BoundDevice:
    """The same on the bound's server. hashed: with the hash of what comes and that of what goes."""

    def __init__(self, address: str, number: int, manifest: Manifest, hashed: bool) -> None:
        self._number, self._manifest, self._hashed = number, manifest, hashed
        self._channel = aio.insecure_channel(address, OPTIONS)
        self._fetch = self._channel.unary_stream("/bound/Fetch", None, None)
        self._upload = self._channel.stream_unary("/bound/Upload", None, None)
        self._buffer = bytearray(layout(manifest)[1])
        self.first = 0.0

    async def round(self) -> None:
        model, at, sha = self._buffer, 0, hashlib.sha256()
        async for frame in self._fetch(b"", timeout=LIMIT):
            if self._hashed:
                sha.update(frame)
            model[at : at + len(frame)] = frame
            at += len(frame)
        (self.first,) = np.frombuffer(model, np.float32, 1)
        train(model, self._manifest, self._number)
        metadata = (("sha256", (await digest_of(model)) if self._hashed else ""),)
        await self._upload(pieces(model), metadata=metadata, timeout=LIMIT)

    async def close(self) -> None:
        await self._channel.close(None)


# -- the measurement ----------------------------------------------------------------------------------------


@dataclass
class Server:
    """A process of ours that listens."""

    process: "subprocess.Popen[str]"
    address: str

    def peak(self) -> float:
        """The most memory that it ever had, in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def cpu(self) -> float:
        """Processor seconds that it has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100


@contextlib.contextmanager
def started(*arguments: str) -> Iterator[Server]:
    """Python with these arguments, until the end of the block; it says on its first line where it listens."""
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line.startswith("listening on "), line
        yield Server(process, line.split()[-1])
    finally:
        process.terminate()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


@dataclass
class Turns:
    """What the turns of one side took, in seconds. client: the processor time of all devices."""

    wall: list[float]
    server: list[float]
    client: list[float]


async def turn(server: Server, devices: Sequence[Device], into: Turns) -> None:
    before, mine, started = server.cpu(), time.process_time(), time.perf_counter()
    await asyncio.gather(*(device.round() for device in devices))
    into.wall.append(time.perf_counter() - started)
    into.server.append(server.cpu() - before)
    into.client.append(time.process_time() - mine)


def ratios_of(ours: Turns, bound: Turns) -> list[float]:
    """Turn by turn, without the first."""
    return [mine / least for mine, least in zip(ours.wall[1:], bound.wall[1:], strict=True)]


async def measure(name: str, count: int, rounds: int, folder: Path) -> dict[str, Any]:
    model: Tensors = {f"tensor-{at}": np.zeros(shape, np.float32) for at, shape in enumerate(SHAPES[name])}
    manifest = manifest_of(model)
    size = layout(manifest)[1]
    up = ("-m", "fedserver", "up", "--state", str(folder), "--listen", "127.0.0.1:0", "--insecure-loopback")
    least = (__file__, "--bound", str(size), str(count))
    with started(*up) as ours, started(*least) as bound, started(*least) as hashed:
        spec = RunSpec(
            "benchmark",
            "fedavg",
            parameters={"rounds": rounds, "evaluate": False},
            policy=RoundPolicy(devices=count, minimum=count),
        )
        with OperatorClient(folder) as operator:
            operator.start_run(spec, model)
        idle = ours.peak()
        devices = [OurDevice(ours.address, number) for number in range(count)]
        others = [BoundDevice(bound.address, number, manifest, False) for number in range(count)]
        hashing = [BoundDevice(hashed.address, number, manifest, True) for number in range(count)]
        everyone: list[Device] = [*devices, *others, *hashing]
        our_turns, bound_turns, hashed_turns = Turns([], [], []), Turns([], [], []), Turns([], [], [])
        await asyncio.gather(*(device.hello() for device in devices))
        await asyncio.gather(*(device.next() for device in devices))
        for _ in range(rounds):
            await turn(bound, others, bound_turns)
            await turn(hashed, hashing, hashed_turns)
            await turn(ours, devices, our_turns)
        expected = (rounds - 1) * (count - 1) / 2  # the mean of what the devices add, in each round before
        assert all(abs(device.first - expected) < 1e-3 for device in everyone), devices[0].first
        peak = ours.peak()
        for device in everyone:
            await device.close()
        ratios = ratios_of(our_turns, bound_turns)
        return {
            "model": name,
            "megabytes": round(size / 1e6, 3),
            "devices": count,
            "rounds": rounds,
            "seconds": statistics.median(our_turns.wall[1:]),
            "bound_seconds": statistics.median(bound_turns.wall[1:]),
            "ratio": statistics.median(ratios),
            "ratio_lowest": min(ratios),
            "ratio_highest": max(ratios),
            "goal": GOAL,
            "hashed_bound_seconds": statistics.median(hashed_turns.wall[1:]),
            "hashed_ratio": statistics.median(ratios_of(our_turns, hashed_turns)),
            "server_cpu_seconds": statistics.mean(our_turns.server[1:]),
            "bound_server_cpu_seconds": statistics.mean(bound_turns.server[1:]),
            "devices_cpu_seconds": statistics.mean(our_turns.client[1:]),
            "bound_devices_cpu_seconds": statistics.mean(bound_turns.client[1:]),
            "server_peak_mb": peak,
            "server_peak_mb_per_device": (peak - idle) / count,
            "server_idle_mb": idle,
            "bound_server_peak_mb": bound.peak(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="lenet,femnist", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--devices", default="4,10", help="how many, at most 32")
    parser.add_argument("--rounds", type=int, default=7, help="2 to 100; the first does not count")
    parser.add_argument("--folder", type=Path, help="where the server's state is to lie meanwhile")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bound", type=int, nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.bound:
        asyncio.run(serve_bound(*arguments.bound))
        return
    counts, rounds = [int(count) for count in arguments.devices.split(",")], arguments.rounds
    if not all(1 <= count <= 32 for count in counts) or not 2 <= rounds <= 100:
        parser.error("1 to 32 devices and 2 to 100 rounds")
    results = []
    for name in arguments.models.split(","):
        for count in counts:
            with tempfile.TemporaryDirectory(prefix="round-", dir=arguments.folder) as folder:
                one = measure(name, count, rounds, Path(folder) / "state")
                results.append(asyncio.run(asyncio.wait_for(one, LIMIT)))
    print(json.dumps(results, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
