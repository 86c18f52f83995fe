"""How long a server takes from its start to the first call that it answers, after a kill -9 in an open round.

    python -m benchmarks.restart [--devices 100] [--megabytes 100] [--repeats 3]

It makes a state folder with this many known devices and a model of this many megabytes, with five versions of
it and an open round, and then times `fedserver up`: to the line that says where it listens, to the
answer to a device's hello (the goal: 2 s), and to the first task, for which the model was read and hashed.
"""

import argparse
import asyncio
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from grpc import aio

from fedserver.config import Settings
from fedserver.coordinator.coordinator import Coordinator
from fedserver.coordinator.device_api import DeviceApi
from fedserver.coordinator.operator_api import OperatorApi
from fedserver.store.content.blobs import CHUNK
from fedserver.store.integrity.records import DeviceRecord
from fedserver.store.runs import VERSIONS
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.link import Hello, Outcome, Report
from shoal.core.exchange.payload import Weights
from tests.server.servers import spec
from tests.server.toys import Hands, honest, pieces_of
from tests.server.wire_link import WireLink


async def prepare(state: Path, devices: int, size: int) -> None:
    """A state folder as a server leaves it that is killed in the last of some rounds."""
    model = {"w": np.random.default_rng(0).normal(size=size // 4).astype(np.float32)}
    coordinator = await Coordinator.open(state, Settings(low_water=0))
    records = [DeviceRecord(f"known-{number:05}", "toy", 1.0, 2.0) for number in range(devices)]
    await coordinator.storage.journal.note_devices(records)
    operator = Hands(OperatorApi(coordinator))  # type: ignore[arg-type]
    initial = operator.keep(model)
    await send(operator, initial)
    rounds = {"parameters": {"rounds": VERSIONS + 2}, "policy": RoundPolicy(devices=1, minimum=1)}
    await OperatorApi(coordinator).start_run(spec(**rounds), initial)
    device = await Hands(DeviceApi(coordinator, "d0")).hello()
    for _ in range(VERSIONS):
        task = await device.task(60.0)
        payload = device.payload(honest(0)(await device.open(task), task.seed))
        for weights in payload.weights():
            await send(device, weights)
        receipt = await device.link.report(Report(task.run, task.round, task.attempt, payload))
        assert receipt.outcome is Outcome.ACCEPTED
        device.blobs.clear()
    await device.task(60.0)
    await coordinator.close()


async def send(hands: Hands, weights: Weights) -> None:
    """Upload a model in the usual chunks."""
    await hands.link.upload(weights.blob, 0, pieces_of(hands.blobs[weights.blob.sha256], CHUNK))


async def first_calls(address: str, begun: float) -> tuple[float, float]:
    """Seconds until a hello was answered, and until there was a task."""
    async with aio.insecure_channel(address) as channel:
        device = WireLink(channel, "d0")
        await device.hello(Hello("benchmark"))
        greeted = time.perf_counter() - begun
        while not hasattr(await device.next_task(5.0), "payload"):
            pass
        return greeted, time.perf_counter() - begun


def one(state: Path) -> tuple[float, float, float]:
    """One start, ended by a kill -9."""
    up = ["-m", "fedserver", "up", "--state", str(state), "--listen", "127.0.0.1:0", "--insecure-loopback"]
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, *up], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        listening = time.perf_counter() - begun
        return listening, *asyncio.run(first_calls(line.split()[-1], begun))
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shoal-restart-"))
    try:
        asyncio.run(prepare(folder / "s", given.devices, given.megabytes << 20))
        found = [one(folder / "s") for _ in range(given.repeats)]
    finally:
        shutil.rmtree(folder)
    print(f"{given.devices} devices known, a model of {given.megabytes} MiB in {VERSIONS} versions")
    for name, times in zip(
        ("listening", "hello answered", "first task"), zip(*found, strict=True), strict=True
    ):
        print(f"{name:15} median {sorted(times)[len(times) // 2]:.2f} s, worst {max(times):.2f} s")


if __name__ == "__main__":
    main()
