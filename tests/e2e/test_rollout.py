"""A rollout between real processes over mutual TLS: six devices answer predictions, one of them by PyTorch,
the server is killed in each step, a worse release is stopped by its counts, and a better one promoted."""

import json
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path

import numpy as np
import pytest

from fedserver.coordinator.status_types import RolloutStatus
from fedserver.rpc.client import OperatorClient
from shoal.core.errors import ShoalError, Unavailable
from shoal.core.rollout import PROMOTED, STOPPED, takes_part
from shoal.core.types import Array, Tensors
from tests.client.light.asking import ask
from tests.core.inference.graphs import graph
from tests.e2e.places import Place
from tests.programs import Running
from tests.server.servers import spec
from tests.waiting import HANG

pytest.importorskip("onnxruntime", reason="ONNX Runtime is not installed")

CHANCE = np.random.default_rng(47)
TRUTH = CHANCE.normal(size=(4, 3)).astype(np.float32)
NOISE = CHANCE.normal(size=(4, 3)).astype(np.float32)
MODELS = {"old": 0.35, "worse": 0.9, "better": 0.0}
"""Runs, and how far their models are from the truth."""
DEVICES = ("a", "b", "c", "d", "e", "shy")
"""The owner of the last has not consented that counts leave. The last but one has a learner."""
LEARNER = """
import torch
from torch import nn


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4, 3))
        self.bias = nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return x @ self.weight + self.bias


build = Linear
"""


def model(name: str) -> Tensors:
    weight = (1.0 - MODELS[name]) * TRUTH + MODELS[name] * NOISE
    return {"weight": 9 * weight, "bias": np.zeros(3, np.float32)}


def samples(count: int) -> tuple[Array, Array]:
    x = CHANCE.normal(size=(count, 4)).astype(np.float32)
    return x, (x @ TRUTH).argmax(axis=1)


class Fleet:
    """The place, its server, and the devices that answer predictions."""

    def __init__(self, root: Path) -> None:
        self.place, self.settings = Place(root), dict[str, Path]()

    def join(self) -> None:
        for name in DEVICES:
            settings = self.settings[name] = self.place.joined(name, "--role", "infer-only")
            rule = "" if name == "shy" else "privacy: {allow_unprotected: true}\n"
            np.savez(settings.parent / "data.npz", x=samples(60)[0])
            (settings.parent / "learner.py").write_text(LEARNER)
            own = "learner: {file: learner.py}\n" if name == "e" else ""
            settings.write_text(f"data: {{npz: data.npz}}\n{own}{rule}")

    @contextmanager
    def server(self, crash_at: str = "") -> Iterator[Running]:
        self.place.of_server = {"SHOAL_CRASH_AT": crash_at} if crash_at else {}
        with self.place.up() as process:
            self.place.wait_for(lambda: process.poll() is not None or self.answers())
            yield process

    def answers(self) -> bool:
        with suppress(ShoalError), OperatorClient(self.place.state) as client:
            client.runs()
            return True
        return False

    @contextmanager
    def device(self, name: str) -> Iterator[Running]:
        socket = self.place.root / name / "s"
        line = (
            "fedclient",
            "run",
            "-c",
            self.settings[name],
            "--serve",
            f"unix:{socket}",
            "--every",
            2,
        )
        with self.place.running(f"device-{name}", *line) as process:
            yield process

    def used(self, name: str) -> str:
        """The run whose model answers on a device, or ""."""
        with suppress(OSError):
            status, said = ask(str(self.place.root / name / "s"), b"", {}, "GET", "/model")
            return str(said["run"]) if status == 200 else ""
        return ""

    def tries(self, name: str) -> bool:
        return (self.place.root / name / "state/shadow/rollout.json").exists()

    def program(self) -> int:
        """What the programs of all devices do: predict, and tell the labels later. How many were counted."""
        counted, (x, y) = 0, samples(100)
        body = {"x": x.tolist(), "y": y.tolist()}
        for name in DEVICES:
            path, kind = str(self.place.root / name / "s"), {"Content-Type": "application/json"}
            with suppress(OSError, HTTPException):  # a device may be killed while it answers
                status, said = ask(path, json.dumps(body).encode(), kind)
                if status == 503:  # a device that has just started is opening its model
                    continue
                assert status == 200, said
                status, said = ask(path, json.dumps(body).encode(), kind, to="/label")
                assert status == 200, said
                counted += said["counted"]
        return counted

    def latest(self) -> RolloutStatus | None:
        with suppress(ShoalError), OperatorClient(self.place.state) as client:
            return client.releases()[2][0]
        return None

    def until(self, outcome: str) -> RolloutStatus:
        """Let programs go on until the latest rollout has ended so."""

        def ended() -> bool:
            self.program()
            found = self.latest()
            return found is not None and found.outcome == outcome

        self.place.wait_for(ended)
        found = self.latest()
        assert found is not None
        return found

    def dies(self, process: Running) -> None:
        """Let programs go on until the server is killed."""
        self.place.wait_for(lambda: self.program() < 0 or process.poll() is not None)
        assert process.returncode == -signal.SIGKILL


def test_a_worse_release_is_stopped_and_a_better_one_promoted_over_kills(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path)
    place = fleet.place
    with fleet.server():
        fleet.join()
        with OperatorClient(place.state) as client:
            for name in MODELS:
                client.start_run(spec(name=name, seed=len(name)), model(name), graph())
                client.create_release(name, "v1")
        place.server("release", "use", "old@v1")
    with fleet.server("server.rollout-begun") as dying, OperatorClient(place.state) as client:
        with suppress(Unavailable):
            client.use_release("worse@v1", share=60.0)
        assert dying.wait(HANG) == -signal.SIGKILL
    with ExitStack() as devices:
        with fleet.server():
            begun = fleet.latest()
            assert begun is not None
            share = 0.6
            while len(chosen := [each for each in DEVICES if takes_part(begun.rollout, each, share, {})]) < 3:
                share += 0.1
            shown = place.server("release", "use", "worse@v1", "--share", round(100 * share))
            assert shown["rollout"]["rollout"] == begun.rollout, "it is the same one, with a larger share"
            running = {name: devices.enter_context(fleet.device(name)) for name in DEVICES}
            place.wait_for(lambda: all(fleet.used(each) == "old" for each in DEVICES))
            trying = [each for each in chosen if each != "shy"]
            place.wait_for(lambda: all(map(fleet.tries, trying)))
            assert not any(fleet.tries(each) for each in DEVICES if each not in trying)
        with fleet.server("server.counts-committing") as dying:
            fleet.dies(dying)
        with fleet.server():
            stopped = fleet.until(STOPPED)
            (cluster,) = stopped.clusters.values()
            assert (stopped.rollout, cluster.devices <= len(trying)) == (begun.rollout, True)
            assert (cluster.high or 0.0) < -0.01 < 0.0 < cluster.labeled
            place.wait_for(lambda: not any(map(fleet.tries, DEVICES)))
            assert {fleet.used(each) for each in DEVICES} == {"old"}
            (notice,) = (each for each in place.server("status")["notices"] if "worse@v1" in each)
            assert "was stopped" in notice
            place.server("release", "use", "better@v1", "--share", 100, "--stop-if-worse", 2)
            place.wait_for(lambda: all(fleet.tries(each) for each in DEVICES if each != "shy"))
            first = running["a"]
            first.kill()
            assert first.wait(HANG) == -signal.SIGKILL
        place.of_devices = {"SHOAL_CRASH_AT": "device.counts-kept"}
        with fleet.device("a") as alone:  # it counts without a server, too
            place.wait_for(lambda: fleet.program() < 0 or alone.poll() is not None)
            assert alone.returncode == -signal.SIGKILL
        place.of_devices = {}
        with fleet.server("server.counts-stored") as dying:
            devices.enter_context(fleet.device("a"))
            fleet.dies(dying)
        with fleet.server():
            promoted = fleet.until(PROMOTED)
            assert (promoted.new, next(iter(promoted.clusters.values())).low or -1.0) > ("better@v1", -0.02)
            place.wait_for(lambda: all(fleet.used(each) == "better" for each in DEVICES))
            assert "release" in place.server("release", "show")
            assert place.server("release", "show")["release"] == "better@v1"
            ended = [each["facts"]["outcome"] for each in place.events() if each["event"] == "rollout-ended"]
            assert ended == [STOPPED, PROMOTED]
            ledger = place.call("fedclient", "ledger", "-c", fleet.settings["b"])
            assert "how often two releases agreed" in ledger.stdout
            asked = place.call("fedclient", "consent", "-c", fleet.settings["shy"])
            assert "how often two releases agreed" in asked.stdout
