"""Thousands of devices wait for a task over mutual TLS, and a few of them are asked in each round.

One process is the server (`fedserver up`). Others play the devices: each has a connection and a certificate
of its own, and the product's own link. A device waits for a task, adds a constant to the model and reports;
the model is one layer, 31 KB, and travels inside of the messages. Measured of the server, after a round that
does not count: the time of a round, from its opening to its saved result; the processor time of all that it
does meanwhile; and the memory that it has more than before the devices came. While all devices wait, the
server is watched for `--idle` seconds: as many as a call waits, for each of them to call again once (a 25th
of the number of devices).

The devices are written into the server's state before it starts, as those of a fleet that has run for a day:
to join is not what is measured. All processes share this machine, so times are upper bounds for the server.
Needs /proc, and a descriptor for each device in the server: `ulimit -n` has to be a third above the devices.

    python -m benchmarks.many_devices [--devices 100,10000] [--asked 100,1000] [--rounds 6]
        [--arrivals 100] [--processes 2] [--idle 10] [--json FILE]
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import yaml

from benchmarks.least_server import HOST
from benchmarks.processes import Server, started
from fedclient.net.backoff import Backoff, patiently
from fedclient.net.rpc import RpcLink
from fedserver.authority.authority import Authority
from fedserver.authority.setup import init
from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import DeviceStanding, Successor, Terms
from fedserver.store.records import DeviceRecord, RunSpec
from fedserver.store.store import Store
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import ShoalError
from shoal.core.exchange.link import Hello, Idle, Outcome, Report, Task
from shoal.core.exchange.messages import Trained
from shoal.core.exchange.payload import BlobRef, Weights, encode
from shoal.core.exchange.tensors import digest, pack, unpack
from shoal.core.identity.certificates import key_to_pem, new_key, pin_of
from shoal.core.identity.joining import Role
from shoal.core.server_kit.history.records import RoundHistory
from shoal.core.types import Bytes, Scalar, Tensors

MODEL: Tensors = {"weight": np.zeros((10, 784), np.float32), "bias": np.zeros(10, np.float32)}
LONGEST = 300.0
"""Seconds after which the arrival of all devices, or a run, is not waited for any more."""
LOOK = 0.2
"""Seconds between two looks at how far a run is."""
QUIET = 10.0
"""Seconds after which the server has settled once all devices are here."""


# -- one of the processes that play devices ------------------------------------------------------------------


async def play(address: str, found: Any, first: int, count: int, pace: float) -> None:
    """Be these devices, until this process is ended. found: what `enter` returned. pace: how many dial in a
    second."""
    authority = found["authority"].encode()
    here, models = itertools.count(1), dict[str, Bytes]()  # as a device keeps them on its disk

    async def one(number: int) -> None:
        key, certificate = (text.encode() for text in found["devices"][number])
        credentials = grpc.ssl_channel_credentials(authority, key, certificate)
        link, backoff = RpcLink(address, name_of(number), credentials), Backoff()

        async def hello() -> Any:
            return await link.hello(Hello("benchmark"))

        async def next_task() -> Any:
            return await link.next_task(welcome.poll)

        await asyncio.sleep((number - first) / pace)
        welcome = await patiently(hello, backoff, float("inf"), lambda text: None)
        if next(here) == count:
            print("here", flush=True)
        while True:
            answer = await patiently(next_task, backoff, float("inf"), lambda text: None)
            if isinstance(answer, Idle):
                await asyncio.sleep(backoff.between(answer.earliest, answer.latest))
                continue
            models.update(answer.payload.blobs_in(answer.inline))
            with contextlib.suppress(ShoalError):  # another device was faster
                receipt = await link.report(trained(answer, models, number))
                assert receipt.outcome in (Outcome.ACCEPTED, Outcome.LATE), receipt

    await asyncio.gather(*map(one, range(first, first + count)))


def trained(task: Task, models: Mapping[str, Bytes], number: int) -> Report:
    """The report of a device that adds its number to the model."""
    (weights,) = task.payload.weights()
    given = unpack(weights.manifest, memoryview(models[weights.blob.sha256]))
    model = {name: array + number for name, array in given.items()}
    blob = BlobRef(digest(model), weights.blob.size)
    result = encode(Trained({}, 100, 0.5), lambda tensors: Weights(weights.manifest, blob))
    assert result.small_blobs(task.inline_report)
    return Report(task.run, task.round, task.attempt, result, (b"".join(pack(model)),))


def name_of(number: int) -> str:
    return f"device-{number:05}"


# -- the measurement ---------------------------------------------------------------------------------------


def enter(state: Path, count: int) -> dict[str, Any]:
    """Devices with certificates in the state folder of a server that does not run."""
    authority, store, devices = Authority.open(state), Store(state), []
    database, now = store.database, time.time()
    token = store.identities.tokens.add(Terms())[0].token
    with database.transaction():
        for number in range(count):
            key, name = new_key(), name_of(number)
            pin, role = pin_of(key.public_key()).hex(), Role.TRAIN
            asked = Successor(pin, role, {}, token, now)
            store.identities.registry.enter(name, DeviceStanding.APPROVED, asked)
            made = authority.issue(role.value, name, key.public_key())
            devices.append((key_to_pem(key).decode(), made.decode()))
    store.journal.note_devices(DeviceRecord(name_of(number), "", now, now) for number in range(count))
    store.close()
    return {"authority": authority.pem.decode(), "devices": devices}


@contextlib.contextmanager
def playing(address: str, members: Path, count: int, processes: int, pace: float) -> Iterator[None]:
    """Processes that play the devices: all have said hello, and wait for tasks until the end of the block."""
    shares = [count // processes + (number < count % processes) for number in range(processes)]
    firsts = itertools.accumulate([0, *shares[:-1]])
    command = [sys.executable, "-m", __spec__.name, "--play", address, str(members)]
    running = [
        subprocess.Popen(
            [*command, str(first), str(share), str(pace / processes)], stdout=subprocess.PIPE, text=True
        )
        for first, share in zip(firsts, shares, strict=True)
        if share
    ]
    try:
        for process in running:
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def rounds_of(server: Server, state: Path, asked: int, rounds: int) -> dict[str, float]:
    """A run that asks this many of the devices in each round."""
    policy = RoundPolicy(devices=asked, minimum=asked, deadline=LONGEST)
    parameters: dict[str, Scalar] = {
        "rounds": rounds,
        "evaluate": False,
        "aggregation": "mean",
        "inputs": "raw",
    }
    spec = RunSpec(f"asked-{asked}", "fedavg", parameters=parameters, policy=policy)
    began, done, marks = time.monotonic(), list[RoundHistory](), list[tuple[float, float, int]]()
    with OperatorClient(state) as operator:
        run = operator.start_run(spec, MODEL).run
        while len(done) < rounds:  # asked seldom and for little: this costs the server, too
            time.sleep(LOOK)
            done += operator.history(run, len(done), devices=False)
            if done:
                marks.append((time.monotonic(), server.cpu(), len(done)))
            assert time.monotonic() - began < LONGEST, f"{len(done)} rounds of {asked} devices are over"
    assert all(each.reported == asked for each in done), done
    (first, before, counted), (last, after, _) = marks[0], marks[-1]
    return {
        "asked": asked,
        "first_round_seconds": first - began,
        "round_seconds": statistics.median(each.seconds for each in done[1:]),
        "from_round_to_round_seconds": (last - first) / (rounds - counted),
        "server_cpu_ms_a_report": 1000 * (after - before) / (rounds - counted) / asked,
    }


@contextlib.contextmanager
def serving(folder: Path, count: int, arrivals: float) -> Iterator[tuple[Server, Path, Path]]:
    """A server that knows this many devices, its state folder, and the file that `playing` needs."""
    state, members = folder / "state", folder / "members.json"
    init(state, (HOST,), f"{HOST}:0", f"{HOST}:0", "benchmark")
    settings = state / "fedserver.yaml"
    settings.write_text(settings.read_text() + yaml.safe_dump({"cadence": {"arrivals": 2 * arrivals}}))
    members.write_text(json.dumps(enter(state, count)))
    up = ["-m", "fedserver", "up", "--state", str(state), "--listen", f"{HOST}:0"]
    with started(*up, "--join-listen", f"{HOST}:0") as server:
        yield server, state, members


def measure(folder: Path, count: int, asked: list[int], options: argparse.Namespace) -> Any:
    with serving(folder, count, options.arrivals) as (server, state, members):
        idle, began = server.memory(), time.monotonic()
        with playing(server.address, members, count, options.processes, options.arrivals):
            arrived = time.monotonic() - began
            time.sleep(QUIET)
            waiting, cpu = server.memory(), server.cpu()
            time.sleep(options.idle)
            found = {
                "devices": count,
                "arrived_seconds": arrived,
                "server_idle_mb": idle,
                "server_kb_a_waiting_device": 1024 * (waiting - idle) / count,
                "server_busy_while_all_wait": (server.cpu() - cpu) / options.idle,
                "runs": [rounds_of(server, state, each, options.rounds) for each in asked if each <= count],
            }
            found["server_peak_mb"] = server.peak()
            return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", default="100,10000", help="how many wait, one case for each")
    parser.add_argument("--asked", default="100,1000", help="how many are asked in a round, a run for each")
    parser.add_argument("--rounds", type=int, default=6, help="2 or more; the first does not count")
    parser.add_argument("--arrivals", type=float, default=100.0, help="devices that may arrive in a second")
    parser.add_argument("--processes", type=int, default=2, help="that play the devices")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds for which all devices only wait")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    parser.add_argument("--play", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.play:
        address, members, first, count, pace = options.play
        found = json.loads(Path(members).read_text())
        asyncio.run(play(address, found, int(first), int(count), float(pace)))
        return
    cases, asked = ([int(each) for each in text.split(",")] for text in (options.devices, options.asked))
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if not all(1 <= count <= 0.7 * most for count in cases) or options.rounds < 2:
        parser.error(f"1 to {int(0.7 * most)} devices, as `ulimit -Hn` is {most}, and 2 rounds or more")
    results = []
    for count in cases:
        with tempfile.TemporaryDirectory(prefix="many-") as folder:
            results.append(measure(Path(folder), count, asked, options))
        print(json.dumps(results[-1], indent=2), flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
