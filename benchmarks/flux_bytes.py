"""What FLUX costs in bytes beside FedAvg (E.2 of its paper: p + L numbers a device, once).

    python -m benchmarks.flux_bytes [--devices 4] [--rounds 10]

A `fedserver up` and several `fedclient run`, over mutual TLS through a relay that counts what passes. The
model is LeNet-5, and each device has 100 images of noise: all are alike, so that FLUX has one cluster and
gives out as many models as FedAvg. A row is an algorithm: bytes that a device sent and got in its whole run,
calls and TLS included, and how much more that is than with FedAvg.
"""

import argparse
import asyncio
import contextlib
import socket
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import yaml

from benchmarks.least_server import HOST
from benchmarks.processes import clients, joined, started
from fedserver.authority.setup import init
from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.types import Scalar

PIECE, LONGEST = 1 << 16, 600.0
TRAINING: dict[str, Scalar] = {
    "epochs": 1, "batch_size": 64, "learning_rate": 0.005, "optimizer": "sgd", "schedule": "constant",
    "inputs": "raw",
}  # fmt: skip
RUNS: dict[str, tuple[str, dict[str, Scalar]]] = {
    "fedavg": ("fedavg", {}),
    "flux, as the paper": ("flux", {"privacy": "off"}),
    "flux, balanced": ("flux", {"privacy": "balanced"}),
}
"""The algorithm and its parameters, by what a row is named."""


class Relay:
    """Passes on what comes, and counts it. passed: bytes toward the server, and from it."""

    def __init__(self, target: str) -> None:
        self._target, self.passed = target, [0, 0]
        self._listening = socket.create_server((HOST, 0))
        self.address = f"{HOST}:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        host, _, port = self._target.rpartition(":")
        while True:
            near, _ = self._listening.accept()
            far = socket.create_connection((host, int(port)))
            for way, ends in enumerate(((near, far), (far, near))):
                threading.Thread(target=self._pass_on, args=(way, *ends), daemon=True).start()

    def _pass_on(self, way: int, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(PIECE):
                self.passed[way] += len(data)
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


def measure(devices: int, rounds: int, folder: Path) -> dict[str, list[int]]:
    """Bytes of all devices toward the server and from it, by row."""
    state, found = folder / "state", dict[str, list[int]]()
    anywhere = f"{HOST}:0"
    init(state, (HOST,), anywhere, anywhere, "benchmark")
    up = ("-m", "fedserver", "up", "--state", str(state), "--listen", anywhere, "--join-listen", anywhere)
    with started(*up, log=folder / "server.log") as server:
        asyncio.run(joined(state, folder, devices))
        for name, (algorithm, parameters) in RUNS.items():
            relay, run = Relay(server.address), name.partition(",")[0] + f"-{len(found)}"
            for number in range(devices):
                chance = np.random.default_rng(number)
                x, y = chance.random((100, 1, 28, 28), np.float32), np.arange(100) % 10
                np.savez(folder / f"{number}.npz", x=x, y=y)
                settings = {
                    "server": relay.address,
                    "learner": {"builtin": "lenet5"},
                    "data": {"npz": f"{number}.npz"},
                    "privacy": {"allow_plain_weights": True, "allow_unprotected": True},
                }
                (folder / f"{number}.yaml").write_text(yaml.safe_dump(settings))
            asked = {**TRAINING, "rounds": rounds, **parameters}
            policy = RoundPolicy(devices=devices, minimum=devices)
            with OperatorClient(state) as operator:
                spec = RunSpec(run, algorithm, parameters=asked, policy=policy)
                operator.start_run(spec, initial_weights(builtin("lenet5"), 0))
                commands = [
                    ("-m", "fedclient", "run", "--until-finished", "--config", str(folder / f"{number}.yaml"),
                     "--state", str(folder / f"{number}"))
                    for number in range(devices)
                ]  # fmt: skip
                with clients(commands, folder / "devices.log") as processes:
                    for each in processes:
                        each.wait(LONGEST)
                status = operator.show(run)
                assert status.summary.over, (status.summary, (folder / "devices.log").read_text()[-2000:])
                assert len(status.clusters) <= 1, "devices are alike, and their groups are not"
            time.sleep(0.1)  # what is on its way through the relay
            found[name] = relay.passed
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--devices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="bytes-") as folder:
        found = measure(asked.devices, asked.rounds, Path(folder))
    least = found["fedavg"]
    print(f"{'':20}{'sent':>12}{'more':>9}{'got':>12}{'more':>9}")
    for name, both in found.items():
        figures = [
            f"{each / asked.devices:>12,.0f}{100 * (each / usual - 1):>+8.3f}%"
            for each, usual in zip(both, least, strict=True)
        ]
        print(f"{name:20}{''.join(figures)}")


if __name__ == "__main__":
    main()
