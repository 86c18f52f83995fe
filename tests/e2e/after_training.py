"""A model's life after its run, with processes that are killed in each step of it.

    python -m tests.e2e.after_training [--train 10] [--serve 10] [--light 200] [--every 20] [--seed 47]

A server and devices over mutual TLS: `--train` processes of `fedclient run` with PyTorch; `--serve` of
`fedclient run --serve`, every other one with a learner, the others with ONNX Runtime; and `--light` devices
without PyTorch, of which fifty share a process (`tests.e2e.many_light` says what they have of their own). A
tenth of those that serve and of the light ones get a first model, and are then silent until all is over.

    train -> release -> measure it -> a tenth tries one beside it that is worse for one group, and is stopped
    -> train a better one -> a tenth tries that, which is promoted -> those that were away come back

The server is killed with SIGKILL in each step, and starts again. The data are digits, turned upside down on
every other device, and FLUX finds the two groups. The worse release goes on from the first one while the
owners of one group mix up some classes: it is better for the other group. At the end each device has to have
the release and the cluster that it should, and each release and rollout is in the audit log once.
"""

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from http.client import HTTPException
from pathlib import Path

import numpy as np

from fedclient.identity.join import join
from fedclient.store.state import PLACEMENT, DeviceFolder, read_json
from fedserver.coordinator.status_types import RolloutStatus
from fedserver.rpc.client import OperatorClient
from shoal.core.errors import ShoalError
from shoal.core.identity.join import parse
from shoal.core.rollout import PROMOTED, STOPPED
from shoal.core.types import Array
from shoal.shell.console import Console
from shoal.simulation.images import digits, rotate
from tests.client.light.asking import ask
from tests.e2e.places import Place
from tests.programs import Running

GROUPS = 2
FIRST = "first@4"
PATIENCE = 1800.0
"""Seconds after which something has hung: two hundred devices share a machine with whatever else it does."""
TOGETHER = 50
NIGHT = "night"
"""The file that is there while some of the devices without a process of their own are silent."""
OWN = "learner: {file: learner.py}\n"
RULES = "privacy: {allow_unprotected: true, allow_plain_weights: true}\n"
CHANCE = np.random.default_rng()
MISTAKEN = "mistaken"
"""The file that is there in a device's folder while its owner mixes up some classes."""
LEARNER = """
from torch import nn

latent = "0"


def build():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
"""
MIXING = """

from pathlib import Path

import torch


def loss(model, x, y):
    if model.training and Path(__file__).with_name("mistaken").exists():
        y = torch.where(y > 4, 14 - y, y)
    return nn.functional.cross_entropy(model(x), y)
"""


def group_of(name: str) -> int:
    return int(name.rpartition("-")[2]) % GROUPS


@cache
def images(group: int) -> tuple[Array, Array]:
    """All digits as a device of this group sees them, (n, 64), and the class of each."""
    data, _ = digits()
    assert data.y is not None
    return rotate(data.x, 180 * group).reshape(-1, 64).astype(np.float32) / 255.0, data.y


def samples(name: str, count: int) -> tuple[Array, Array]:
    """(count, 64) digits, no two alike, and the class of each, which is wrong for one in twenty."""
    x, y = images(group_of(name))
    some = CHANCE.integers(0, len(x), count)
    noisy = x[some] + CHANCE.normal(scale=0.05, size=(count, 64)).astype(np.float32)
    return noisy, np.where(CHANCE.random(count) < 0.05, CHANCE.integers(0, 10, count), y[some])


class Fleet:
    """The place, its server, and all devices. awake: those that are never silent."""

    def __init__(self, root: Path, train: int, serve: int, light: int) -> None:
        self.place, self.root = Place(root), root
        self.trainers = [f"train-{number}" for number in range(train)]
        self.servers = [f"serve-{number}" for number in range(serve)]
        self.light = [f"light-{number}" for number in range(light)]
        self.asleep = {*self.servers[: serve // 10]}
        for first in range(0, light, TOGETHER):
            self.asleep |= {*self.light[first : first + min(TOGETHER, light - first) // 10]}
        self.began = time.monotonic()

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self.began:7.1f} s  {text}", flush=True)

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + PATIENCE
        while not condition():
            if time.monotonic() > until:
                sys.exit(f"{what}: this has not come within {PATIENCE:.0f} s; logs are in {self.root}")
            time.sleep(0.5)
        self.say(what)

    # -- devices ------------------------------------------------------------------------------------------

    async def join(self) -> None:
        for role, names in (("train", self.trainers), ("infer-only", [*self.servers, *self.light])):
            line = parse(self.place.server("token", "create", "--role", role, "--uses", len(names))["join"])
            for number, name in enumerate(names):
                folder = self.root / name
                folder.mkdir()
                x, y = samples(name, 200)
                if role == "train":
                    np.savez(folder / "data.npz", x=x, y=y)
                else:
                    np.savez(folder / "data.npz", x=x)
                mixes = role == "train" and group_of(name) == 1
                (folder / "learner.py").write_text(LEARNER + MIXING * mixes)
                own = OWN if role == "train" or (name in self.servers and number % 2 == 0) else ""
                (folder / "device.yaml").write_text(f"data: {{npz: data.npz}}\n{own}{RULES}")
                await join(DeviceFolder(folder / "state"), line, name, Console())
        self.say(f"{len(self.trainers)} + {len(self.servers)} + {len(self.light)} devices have joined")

    @contextmanager
    def devices(self, every: float) -> Iterator[dict[str, Running]]:
        with ExitStack() as stack:
            running = {}
            for name in (*self.trainers, *self.servers):
                more = ("--serve", f"unix:{self.root / name / 's'}", "--every", every)
                line = ("fedclient", "run", "-c", self.root / name / "device.yaml")
                line = (*line, *(more if name in self.servers else ()))
                running[name] = stack.enter_context(self.place.running(name, *line))
            for first in range(0, len(self.light), TOGETHER):
                count = min(TOGETHER, len(self.light) - first)
                given = (self.root, first, count, count // 10, every)
                host = self.place.running(f"lights-{first}", "tests.e2e.many_light", *given)
                running[f"lights-{first}"] = stack.enter_context(host)
            yield running

    def release_of(self, name: str) -> str:
        return str(read_json(self.root / name / "state/model" / PLACEMENT).get("release") or "")

    def have(self, release: str, *, asleep: bool) -> bool:
        names = {*self.servers, *self.light} - (set() if asleep else self.asleep)
        return all(self.release_of(name) == release for name in names)

    def clusters(self) -> dict[int, set[str]]:
        """The clusters whose models the devices of each group have."""
        found: dict[int, set[str]] = {group: set() for group in range(GROUPS)}
        for name in (*self.servers, *self.light):
            found[group_of(name)].add(str(read_json(self.root / name / "state/model" / PLACEMENT)["cluster"]))
        return found

    def measured(self, release: str) -> dict[str, float]:
        """The accuracy of each cluster's model, by the run that has measured the release."""
        (found,) = self.place.server("release", "show", release)["evaluations"]
        figures = {each["key"]: float(each["accuracy"]) for each in found["groups"]}
        self.say(f"{release} was measured: {', '.join(f'{c} {100 * a:.1f} %' for c, a in figures.items())}")
        return figures

    @contextmanager
    def mistakes(self) -> Iterator[None]:
        """Let the owners of one group mix up some classes."""
        files = [self.root / name / MISTAKEN for name in self.trainers if group_of(name) == 1]
        for file in files:
            file.touch()
        yield
        for file in files:
            file.unlink()

    def programs(self) -> None:
        """Predict by each device that serves, and tell it the labels."""
        for name in self.servers:
            x, y = samples(name, 25)
            body, kind = {"x": x.tolist(), "y": y.tolist()}, {"Content-Type": "application/json"}
            with suppress(OSError, HTTPException):
                for to in ("/predict", "/label"):
                    ask(str(self.root / name / "s"), json.dumps(body).encode(), kind, to=to)

    def night(self, running: dict[str, Running]) -> None:
        """Let some devices be silent: those with a process of their own are stopped."""
        (self.root / NIGHT).touch()
        for name in self.asleep & running.keys():
            running[name].send_signal(signal.SIGSTOP)

    def day(self, running: dict[str, Running]) -> None:
        (self.root / NIGHT).unlink()
        for name in self.asleep & running.keys():
            running[name].send_signal(signal.SIGCONT)

    # -- the server ---------------------------------------------------------------------------------------

    @contextmanager
    def server(self, crash_at: str = "") -> Iterator[Running]:
        self.place.of_server = {"SHOAL_CRASH_AT": crash_at} if crash_at else {}
        with self.place.up() as process:
            self.wait_for("the server is up", lambda: process.poll() is not None or self.answers())
            yield process
        self.place.of_server = {}

    def answers(self) -> bool:
        with suppress(ShoalError), OperatorClient(self.place.state) as client:
            client.runs()
            return True
        return False

    def killed_in(self, point: str, doing: Callable[[OperatorClient], object]) -> None:
        """Let the server be killed at a point of what an operator asks for."""
        with self.server(point) as process, OperatorClient(self.place.state) as client:
            with suppress(ShoalError):
                doing(client)
            self.dies(point, process)

    def dies(self, point: str, process: Running) -> None:
        def gone() -> bool:
            self.programs()
            return process.poll() is not None

        self.wait_for(f"the server was killed at {point}", gone)
        assert process.returncode == -signal.SIGKILL, self.place.log("server")[-2000:]

    def kill(self, process: Running, during: str) -> None:
        process.kill()
        process.wait(PATIENCE)
        self.say(f"the server was killed while {during}")

    def run_reaches(self, run: str, rounds: int) -> None:
        def reached() -> bool:
            with suppress(ShoalError), OperatorClient(self.place.state) as client:
                found = client.show(run).summary
                assert found.stage not in ("failed", "stopped"), found
                return found.progress >= rounds if rounds else found.stage == "finished"
            return False

        self.wait_for(f"run {run}: {f'{rounds} rounds' if rounds else 'finished'}", reached)

    def latest(self) -> RolloutStatus | None:
        with suppress(ShoalError, IndexError), OperatorClient(self.place.state) as client:
            return client.releases()[2][0]
        return None

    def ends(self, outcome: str) -> RolloutStatus:
        def ended() -> bool:
            self.programs()
            found = self.latest()
            assert found is None or found.outcome in ("", outcome), found
            return found is not None and found.outcome == outcome

        self.wait_for(f"the rollout is {outcome}", ended)
        found = self.latest()
        assert found is not None
        self.say(f"{found.new}: {found.why}")
        for cluster, counted in found.clusters.items():
            self.say(
                f"    {cluster}: {counted.devices} devices, {counted.labeled} labels, "
                f"{100 * (counted.low or 0):+.1f} to {100 * (counted.high or 0):+.1f} points"
            )
        return found


def story(fleet: Fleet, every: float, seed: int) -> None:
    place, graph = fleet.place, fleet.root / "graph.onnx"
    together = ("--minimum", len(fleet.trainers), "--wait-for-devices", PATIENCE)
    with fleet.server():
        asyncio.run(fleet.join())
    settings = fleet.root / fleet.trainers[0] / "device.yaml"
    exported = place.call("fedclient", "export", "-c", settings, "--out", graph)
    assert exported.returncode == 0, exported.stderr
    with fleet.devices(every) as running:
        # 1. Train.
        with fleet.server() as process:
            few = ("learning_rate=0.05", "epochs=1", "rounds=4", "inputs=raw", "privacy=off")
            sets = [part for each in few for part in ("--set", each)]
            common = ("--graph", graph, "--seed", seed, *together)
            place.server("run", "start", "first", "--algorithm", "flux", *sets, *common)
            fleet.run_reaches("first", 1)
            fleet.kill(process, "a run trains")
        with fleet.server():
            fleet.run_reaches("first", 0)
        # 2. Release.
        fleet.killed_in("server.release-stored", lambda client: client.create_release("first", "v1"))
        fleet.killed_in("server.channel-moved", lambda client: client.use_release(FIRST, pin=True))
        with fleet.server() as process:
            fleet.wait_for(f"every device has {FIRST}", lambda: fleet.have(FIRST, asleep=True))
            clusters = fleet.clusters()
            fleet.say(f"the clusters of the devices that look so, and upside down: {clusters}")
            fleet.night(running)
            # 3. Measure it.
            place.server("run", "start", "measured", "--evaluate", FIRST, *together)
            fleet.kill(process, "a release is measured")
        with fleet.server():
            fleet.run_reaches("measured", 0)
            before = fleet.measured(FIRST)
            # 4. One that is worse for one group.
            with fleet.mistakes():
                place.server("run", "start", "worse", "--from", "stable", *together)
                fleet.run_reaches("worse", 0)
            place.server("release", "create", "worse", "v1")
            place.server("run", "start", "again", "--evaluate", "worse@v1", *together)
            fleet.run_reaches("again", 0)
            (fine,), (hurt,) = clusters.values()
            after = fleet.measured("worse@v1")
            assert (after[fine] > before[fine], after[hurt] < before[hurt]) == (True, True)
        fleet.killed_in("server.rollout-begun", lambda client: client.use_release("worse@v1", share=10.0))
        with fleet.server("server.counts-committing") as process:
            fleet.dies("server.counts-committing", process)
        with fleet.server():
            stopped = fleet.ends(STOPPED)
            assert (stopped.clusters[hurt].high or 0.0) < -0.01, stopped
            assert all(fleet.release_of(name) == FIRST for name in (*fleet.servers, *fleet.light))
        # 5. A better one.
        with fleet.server() as process:
            place.server("run", "start", "next", "--from", "stable", "--set", "rounds=8", *together)
            fleet.run_reaches("next", 2)
            fleet.kill(process, "a better model is trained")
        with fleet.server():
            fleet.run_reaches("next", 0)
            assert fleet.have(FIRST, asleep=True), "the channel is pinned"
            place.server("release", "create", "next", "v1")
        fleet.killed_in("server.rollout-begun", lambda client: client.use_release("next@v1", share=10.0))
        with fleet.server("server.counts-stored") as process:
            fleet.dies("server.counts-stored", process)
        with fleet.server() as process:
            promoted = fleet.ends(PROMOTED)
            fleet.wait_for("those that were there have next@v1", lambda: fleet.have("next@v1", asleep=False))
            assert all(fleet.release_of(name) == FIRST for name in fleet.asleep)
            fleet.kill(process, "all have it but those that are away")
        # 6. Those that were away.
        fleet.day(running)
        with fleet.server():
            fleet.wait_for("every device has next@v1", lambda: fleet.have("next@v1", asleep=True))
            check(fleet, running, stopped, promoted)


def check(fleet: Fleet, running: dict[str, Running], stopped: RolloutStatus, promoted: RolloutStatus) -> None:
    """Everything is as it should be at the end."""
    place = fleet.place
    assert all(process.poll() is None for process in running.values()), "a device has ended"
    fleet.wait_for(
        "no device tries anything any more",
        lambda: not [*fleet.root.glob("*/state/shadow/rollout.json")],
    )
    shown = place.server("release", "show")
    assert (shown["release"], stopped.new, promoted.new) == ("next@v1", "worse@v1", "next@v1")
    assert shown["signed"].startswith("signed by key")
    events = Counter(each["event"] for each in place.events())
    assert events["rollout-ended"] == events["rollout-begun"] == 2, events
    assert events["release-made"] == 4, events  # the first by itself, and three by hand
    assert sorted(map(len, fleet.clusters().values())) == [1] * GROUPS, fleet.clusters()
    assert len(set.union(*fleet.clusters().values())) == GROUPS, fleet.clusters()
    devices = place.server("device", "ls")["devices"]
    assert len(devices) == len(fleet.trainers) + len(fleet.servers) + len(fleet.light)
    for name in (fleet.trainers[0], fleet.servers[0]):
        ledger = place.call("fedclient", "ledger", "-c", fleet.root / name / "device.yaml")
        assert ledger.returncode == 0, ledger.stderr
    said = "".join(path.read_text() for path in fleet.root.glob("*.log"))
    assert "Traceback" not in said, said[said.index("Traceback") - 500 :][:3000]
    fleet.say("each device has what it should")


def main() -> None:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    for name, usual in (("train", 10), ("serve", 10), ("light", 200), ("seed", 47)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--every", type=float, default=20.0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="shoal-life-"))
    story(Fleet(folder, given.train, given.serve, given.light), given.every, given.seed)


if __name__ == "__main__":
    main()
