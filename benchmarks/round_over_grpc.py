"""A FedAvg round over real gRPC against a bound: the least server that moves and adds up the same bytes.

One process is the server (`fedserver up`), this one plays all devices, each on a connection of its own with a
certificate of its own: it asks for its task, fetches the model and checks its hash, adds a constant, hashes
the result, uploads it and reports. A small model travels inside of the task and the report. A round lasts
from the first fetch until all devices have the next task. The bound is a second server process, and the
hashed bound a third one: see `benchmarks.least_server`. All take turns, and the ratios are taken turn by
turn, so that a machine that slows down slows all. Needs /proc, for the servers' memory and processor time.

What it leaves out: a network (loopback only), the devices' disks and the training itself, which is one
addition in memory, and stragglers. All devices share one process and the machine's cores with the server. The
server's disk is that of the folder for temporary files, or `--folder`; its syncs are in the times.

    python -m benchmarks.round_over_grpc [--models lenet,femnist,vit] [--devices 4,10] [--rounds 7]
        [--insecure-loopback] [--json FILE]
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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc
import numpy as np

from benchmarks.least_server import HOST, LIMIT, MOST, LeastDevice, digest_of, pieces, train
from benchmarks.reconnect import Quiet
from fedclient.identity.join import join
from fedclient.identity.keyring import Identity
from fedclient.identity.rpc import credentials
from fedclient.net.rpc import RpcLink
from fedclient.store.state import DeviceFolder
from fedserver.authority.setup import init
from fedserver.rpc.client import AuthorityClient, OperatorClient
from fedserver.store.identities.records import Terms
from fedserver.store.integrity.records import RunSpec
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.link import Hello, Outcome, Report, Task
from shoal.core.exchange.messages import Trained
from shoal.core.exchange.payload import BlobRef, Weights, encode
from shoal.core.exchange.tensors import layout, manifest_of
from shoal.core.identity.join import JoinString, parse
from shoal.core.types import Tensors

Shapes = list[tuple[int, ...]]
LENET: Shapes = [
    *((6, 1, 5, 5), (6,), (16, 6, 5, 5), (16,)),
    *((120, 400), (120,), (84, 120), (84,), (10, 84), (10,)),
]
FEMNIST: Shapes = [(32, 1, 5, 5), (32,), (64, 32, 5, 5), (64,), (2048, 3136), (2048,), (62, 2048), (62,)]
LAYER: Shapes = [
    *((768,), (768,), (2304, 768), (2304,), (768, 768), (768,)),
    *((768,), (768,), (3072, 768), (3072,), (768, 3072), (768,)),
]
VIT: Shapes = [
    *((768, 3, 16, 16), (768,), (1, 1, 768), (1, 197, 768)),
    *(LAYER * 12),
    *((768,), (768,), (1000, 768), (1000,)),
]
SHAPES = {"lenet": LENET, "femnist": FEMNIST, "vit": VIT}
GOAL = {"lenet": 2.5, "femnist": 1.5, "vit": 1.5}


class Device(Protocol):
    """first: the first number of the model that the last round began with."""

    first: float

    async def round(self) -> None: ...
    async def close(self) -> None: ...


class OurDevice:
    """One device of ours: its link is the product's own, its blobs are in memory instead of on a disk."""

    def __init__(self, link: RpcLink, number: int, model: bytearray) -> None:
        self._link, self._number, self._model = link, number, model
        self._task: Task | None = None
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
        model, at, sha = self._model, 0, hashlib.sha256()
        if inline := task.payload.blobs_in(task.inline):
            model[:] = inline[weights.blob.sha256]
        else:
            async for piece in self._link.fetch(weights.blob, 0):
                sha.update(piece)
                model[at : at + len(piece)] = piece
                at += len(piece)
            assert sha.hexdigest() == weights.blob.sha256
        (self.first,) = np.frombuffer(model, np.float32, 1)
        train(model, weights.manifest, self._number)
        blob = BlobRef(await digest_of(model), len(model))
        result = encode(Trained({}, 100, 0.5), lambda tensors: Weights(weights.manifest, blob))
        carried = (bytes(model),) if result.small_blobs(task.inline_report) else ()
        if not carried:
            assert await self._link.uploaded(blob) == 0
            assert await self._link.upload(blob, 0, pieces(model)) == blob.size
        receipt = await self._link.report(Report(task.run, task.round, task.attempt, result, carried))
        assert receipt.outcome is Outcome.ACCEPTED, receipt
        await self.next()

    async def close(self) -> None:
        await self._link.close()


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


async def joined(state: Path, folder: Path, count: int) -> list[Identity]:
    """The identities of this many devices, which have joined the server of this state folder."""

    def token() -> JoinString:
        with AuthorityClient(state) as operator:
            return parse(operator.create_token(Terms(uses=count))[1])

    line, found = await asyncio.to_thread(token), []
    for number in range(count):
        own = DeviceFolder(folder / f"{number}")
        found.append((await join(own, line, f"device-{number:03}", Quiet()))[0])
    return found


@dataclass
class Turns:
    """What the turns of one side took, in seconds. client: the processor time of all devices."""

    wall: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    client: list[float] = field(default_factory=list)


async def turn(server: Server, devices: Sequence[Device], into: Turns) -> None:
    before, mine, started = server.cpu(), time.process_time(), time.perf_counter()
    await asyncio.gather(*(device.round() for device in devices))
    into.wall.append(time.perf_counter() - started)
    into.server.append(server.cpu() - before)
    into.client.append(time.process_time() - mine)


def ratios_of(ours: Turns, bound: Turns) -> list[float]:
    """Turn by turn, without the first."""
    return [mine / least for mine, least in zip(ours.wall[1:], bound.wall[1:], strict=True)]


async def measure(name: str, count: int, rounds: int, folder: Path, secure: bool) -> dict[str, Any]:
    model: Tensors = {f"tensor-{at}": np.zeros(shape, np.float32) for at, shape in enumerate(SHAPES[name])}
    manifest, state = manifest_of(model), folder / "state"
    size, buffers = layout(manifest)[1], [bytearray(layout(manifest)[1]) for _ in range(count)]
    up = ["-m", "fedserver", "up", "--state", str(state), "--listen", f"{HOST}:0"]
    least = ["-m", "benchmarks.least_server", str(size), str(count)]
    if secure:
        init(state, (HOST,), f"{HOST}:0", f"{HOST}:0", "benchmark")
        up, least = [*up, "--join-listen", f"{HOST}:0"], [*least, str(state)]
    else:
        up.append("--insecure-loopback")
    with started(*up) as ours, started(*least) as bound, started(*least) as hashed:
        idle = ours.peak()
        identities: list[Identity | None] = [None] * count
        if secure:
            identities = [*await joined(state, folder / "devices", count)]
        keys = [None if each is None else credentials(each) for each in identities]
        policy = RoundPolicy(devices=count, minimum=count)
        parameters = {"rounds": rounds, "evaluate": False}
        spec = RunSpec("benchmark", "fedavg", parameters=parameters, policy=policy)
        with OperatorClient(state) as operator:
            operator.start_run(spec, model)
        devices = [
            OurDevice(RpcLink(ours.address, f"device-{number:03}", keys[number]), number, buffers[number])
            for number in range(count)
        ]

        def others(server: Server, is_hashed: bool) -> list[LeastDevice]:
            made = []
            for number in range(count):
                own: tuple[bytearray, bool, grpc.ChannelCredentials | None]
                own = buffers[number], is_hashed, keys[number]
                made.append(LeastDevice(server.address, number, manifest, *own))
            return made

        sides: list[tuple[Server, Sequence[Device], Turns]] = [
            (bound, others(bound, False), Turns()),
            (hashed, others(hashed, True), Turns()),
            (ours, devices, Turns()),
        ]
        for device in devices:
            await device.hello()
        await asyncio.gather(*(device.next() for device in devices))
        for _ in range(rounds):
            for side in sides:
                await turn(*side)
        expected = (rounds - 1) * (1 + (count - 1) / 2 / MOST)  # the mean of what devices add in a round
        everyone = [device for _, group, _ in sides for device in group]
        assert all(abs(device.first - expected) < 1e-3 for device in everyone), devices[0].first
        peaks = [server.peak() for server, _, _ in sides]
        for device in everyone:
            await device.close()
        least_turns, hashed_turns, our_turns = (turns for _, _, turns in sides)
        ratios = ratios_of(our_turns, least_turns)
        cpu, least_cpu = (statistics.mean(turns.server[1:]) for turns in (our_turns, least_turns))
        return {
            "model": name,
            "megabytes": round(size / 1e6, 3),
            "devices": count,
            "rounds": rounds,
            "tls": secure,
            "seconds": statistics.median(our_turns.wall[1:]),
            "bound_seconds": statistics.median(least_turns.wall[1:]),
            "ratio": statistics.median(ratios),
            "ratio_lowest": min(ratios),
            "ratio_highest": max(ratios),
            "goal": GOAL[name],
            "hashed_bound_seconds": statistics.median(hashed_turns.wall[1:]),
            "hashed_ratio": statistics.median(ratios_of(our_turns, hashed_turns)),
            "server_cpu_seconds": cpu,
            "bound_server_cpu_seconds": least_cpu,
            "server_cpu_ratio": cpu / max(least_cpu, 0.01),
            "devices_cpu_seconds": statistics.mean(our_turns.client[1:]),
            "bound_devices_cpu_seconds": statistics.mean(least_turns.client[1:]),
            "server_idle_mb": idle,
            "server_peak_mb": peaks[2],
            "bound_server_peak_mb": peaks[0],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", default="lenet,femnist", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--devices", default="4,10", help=f"how many, at most {MOST}")
    parser.add_argument("--rounds", type=int, default=7, help="2 to 100; the first does not count")
    parser.add_argument("--insecure-loopback", action="store_true", help="in plain text, the bound too")
    parser.add_argument("--folder", type=Path, help="where the server's state is to lie meanwhile")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    counts, rounds = [int(count) for count in arguments.devices.split(",")], arguments.rounds
    if not all(1 <= count <= MOST for count in counts) or not 2 <= rounds <= 100:
        parser.error(f"1 to {MOST} devices and 2 to 100 rounds")
    results = []
    for name in arguments.models.split(","):
        for count in counts:
            with tempfile.TemporaryDirectory(prefix="round-", dir=arguments.folder) as folder:
                one = measure(name, count, rounds, Path(folder), not arguments.insecure_loopback)
                results.append(asyncio.run(asyncio.wait_for(one, LIMIT)))
    print(json.dumps(results, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
