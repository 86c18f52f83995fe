"""A FedAvg round between real processes, against a bound: the least server that moves the same bytes.

One process is the server (`fedserver up`), and each device is a `fedclient run` with its certificate, its
worker and its disk. The learner adds a constant instead of training. The bound is a second server with as
many processes for its devices, see `benchmarks.least_server`. Both use mutual TLS on loopback and take turns,
and the ratios are of turns that follow each other, so that a machine that slows down slows both. A round
lasts from its opening to the next one; the first does not count. Needs /proc, whose processor time has steps
of 10 ms: take 30 rounds for a small model.

What it leaves out: a network, the training itself, and stragglers. All processes share the machine's cores,
so the processor time of one side tells more than the time of a round on a machine of two cores.

    python -m benchmarks.round_over_grpc [--models lenet,femnist,vit] [--devices 4,10] [--rounds 6]
        [--turns 3] [--rules mean,default] [--folder DIR] [--json FILE]

rules: how the server averages: `mean`, or as it does with nothing set. The bound always takes the mean.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.least_server import HOST
from benchmarks.processes import Server, clients, cpu_of, joined, started
from fedserver.authority.setup import init
from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.types import Scalar, Tensors

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
LONGEST = 600.0
"""Seconds after which a run is not waited for any more."""
LEARNER = """
import torch
from torch import nn

SHAPES = {shapes}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.all = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in SHAPES])

    def forward(self, x):
        return x[:, :2]

def build():
    return Net()

def latent(model, x):
    return x[:, :2]

def train(model, batches, settings):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.rand(()) * 1e-3)
    return 0.5
"""
DEVICE = "learner: {{file: {learner}}}\ndata: {{npz: {data}}}\nprivacy: {{allow_plain_weights: true}}\n"


@dataclass
class Marks:
    """When rounds began, and what had been used by then. clock, server, devices: seconds, one for each."""

    server_cpu: Callable[[], float]
    devices_cpu: Callable[[], float]
    clock: list[float] = field(default_factory=list)
    server: list[float] = field(default_factory=list)
    devices: list[float] = field(default_factory=list)

    def add(self) -> None:
        self.clock.append(time.perf_counter())
        self.server.append(self.server_cpu())
        self.devices.append(self.devices_cpu())

    def figures(self) -> dict[str, float]:
        """Of a round, without the first: the median of its time, and the mean of processor seconds."""
        rounds = len(self.clock) - 2
        spans = [later - earlier for earlier, later in zip(self.clock[1:], self.clock[2:], strict=False)]
        return {
            "seconds": statistics.median(spans),
            "server_cpu_seconds": (self.server[-1] - self.server[1]) / rounds,
            "devices_cpu_seconds": (self.devices[-1] - self.devices[1]) / rounds,
        }


class Log:
    """What the server writes from now on, line by line."""

    def __init__(self, path: Path) -> None:
        self._file = path.open()
        self._file.seek(0, 2)

    def wait_for(self, *words: str) -> str:
        """The first line from here on that has one of these. Raises AssertionError if none comes."""
        line, ends = "", time.monotonic() + LONGEST
        while time.monotonic() < ends:
            line += self._file.readline()
            if not line.endswith("\n"):
                time.sleep(0.002)
                continue
            if any(word in line for word in words):
                return line
            line = ""
        raise AssertionError(f"none of {words} in the server's log")


def our_turn(server: Server, state: Path, name: str, run: str, count: int, rounds: int, rule: str) -> Marks:
    """A run of ours, by the devices that have joined."""
    folder = state.parent
    model: Tensors = {f"all.{at}": np.zeros(shape, np.float32) for at, shape in enumerate(SHAPES[name])}
    policy = RoundPolicy(devices=count, minimum=count)
    parameters: dict[str, Scalar] = {"rounds": rounds, "evaluate": False, "inputs": "raw"}
    if rule != "default":
        parameters["aggregation"] = rule
    config, log = str(folder / "device.yaml"), Log(folder / "server.log")
    with OperatorClient(state) as operator:
        operator.start_run(RunSpec(run, "fedavg", parameters=parameters, policy=policy), model)
    client = ("-m", "fedclient", "run", "--config", config, "--until-finished", "--state")
    with clients([(*client, str(folder / f"{n}")) for n in range(count)], folder / "devices.log") as devices:
        marks = Marks(server.cpu, lambda: sum(cpu_of(each.pid) for each in devices))
        for _ in range(rounds):
            log.wait_for(f"run {run}: open: training round")
            marks.add()
        log.wait_for(f"run {run}: the run has finished")
        marks.add()
        for each in devices:
            each.wait(LONGEST)
    return marks


def bound_turn(size: int, state: Path, folder: Path, count: int, rounds: int) -> tuple[Marks, float]:
    """The bound's rounds, and the most memory of its server in MB."""
    with started("-m", "benchmarks.least_server", "serve", str(size), str(count), str(state)) as server:
        device = ("-m", "benchmarks.least_server", "device", server.address, str(size), str(rounds))
        commands = [(*device, str(folder / f"{number}")) for number in range(count)]
        with clients(commands, folder / "devices.log") as devices:
            marks = Marks(server.cpu, lambda: sum(cpu_of(each.pid) for each in devices))
            timer = threading.Timer(LONGEST, server.process.kill)
            timer.start()
            assert server.process.stdout is not None
            for _ in range(rounds + 1):
                assert server.process.stdout.readline().strip() == "round"
                marks.add()
            timer.cancel()
            return marks, server.peak()


def measure(name: str, count: int, rounds: int, turns: int, rules: Sequence[str], folder: Path) -> list[Any]:
    """The figures of one model and number of devices, for each rule."""
    state, size = folder / "state", 4 * sum(int(np.prod(shape)) for shape in SHAPES[name])
    init(state, (HOST,), f"{HOST}:0", f"{HOST}:0", "benchmark")
    np.savez(folder / "data.npz", x=np.zeros((40, 4), np.float32), y=np.arange(40) % 2)
    (folder / "learner.py").write_text(LEARNER.format(shapes=SHAPES[name]))
    settings = DEVICE.format(learner=folder / "learner.py", data=folder / "data.npz")
    (folder / "device.yaml").write_text(settings)
    sides: dict[str, list[dict[str, float]]] = {each: [] for each in ("bound", *rules)}
    with ExitStack() as stack:
        anywhere = f"{HOST}:0"
        up = ("-m", "fedserver", "up", "--state", str(state), "--listen", anywhere, "--join-listen", anywhere)
        server = stack.enter_context(started(*up, log=folder / "server.log"))
        idle = server.peak()
        asyncio.run(joined(state, folder, count))
        for number in range(turns):
            marks, memory = bound_turn(size, state, folder, count, rounds)
            sides["bound"].append({**marks.figures(), "server_peak_mb": memory})
            for rule in rules:
                marks = our_turn(server, state, name, f"{rule}-{number}", count, rounds, rule)
                sides[rule].append({**marks.figures(), "server_peak_mb": server.peak()})
    found = []
    for rule in rules:
        row: dict[str, Any] = {"model": name, "megabytes": size / 1e6, "devices": count, "rule": rule}
        for figure in sides[rule][0]:
            ours, bound = ([turn[figure] for turn in sides[side]] for side in (rule, "bound"))
            row[figure], row[f"bound_{figure}"] = statistics.median(ours), statistics.median(bound)
            ratios = [mine / max(least, 1e-4) for mine, least in zip(ours, bound, strict=True)]
            row[f"{figure}_ratio"] = statistics.median(ratios)
        found.append(row | {"server_idle_mb": idle})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="lenet,femnist")
    parser.add_argument("--devices", default="10", help="how many, comma-separated")
    parser.add_argument("--rounds", type=int, default=6, help="at least 3; the first does not count")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rules", default="mean,default")
    parser.add_argument("--folder", type=Path, help="where the states are to lie meanwhile")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    results = []
    for name in asked.models.split(","):
        for count in map(int, asked.devices.split(",")):
            with tempfile.TemporaryDirectory(prefix="round-", dir=asked.folder) as folder:
                rules = asked.rules.split(",")
                found = measure(name, count, asked.rounds, asked.turns, rules, Path(folder))
            for row in found:
                print(
                    f"{row['model']} ({row['megabytes']:.2f} MB) x {count}, {row['rule']}: a round "
                    f"{row['seconds']:.3f} s ({row['seconds_ratio']:.1f} times the bound), server "
                    f"{row['server_cpu_seconds']:.3f} CPU s ({row['server_cpu_seconds_ratio']:.1f}), devices "
                    f"{row['devices_cpu_seconds']:.3f} CPU s ({row['devices_cpu_seconds_ratio']:.1f}), "
                    f"server at most {row['server_peak_mb']:.0f} MB ({row['server_idle_mb']:.0f} at rest)",
                    flush=True,
                )
            results += found
    if asked.json:
        asked.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
