"""Two servers on one database, and real devices: the leader is killed or stopped at random moments.

    python -m tests.crash.takeover --moments 100 --seed 1     # a quarter of an hour, a line for each moment
    python -m tests.crash.takeover --outage 60                # the bucket away for a minute, then PostgreSQL

Every moment, the server that leads is killed, or stopped and woken up once the other one leads. The other one
takes over by itself; the first stands by then. The run has to end with the same bits as undisturbed, and
every round with every report once.
"""

import argparse
import os
import random
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fedserver.coordinator.status_types import RunStatus
from fedserver.rpc.client import OperatorClient
from shoal.core.algorithm import find
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import Device, simulate
from shoal.core.errors import NotLeader, ShoalError
from shoal.core.exchange.messages import Message
from shoal.core.server_kit.history.packed import unpack
from shoal.core.types import ModelKey, Tensors
from tests.buckets import buckets
from tests.buckets import lacking as no_buckets
from tests.crash.lab import counting
from tests.postgresql import Cluster, cluster, lacking
from tests.programs import Running, started
from tests.server.servers import spec
from tests.server.toys import MODEL, same_models
from tests.waiting import HANG, free_port

LOOK = 0.05
"""Seconds between two looks at who leads."""


@dataclass
class Server:
    """One of the two. process: None while it is down."""

    state: Path
    process: Running | None = None
    port: int = field(default_factory=free_port)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, **environment: str) -> None:
        with self.state.with_suffix(".log").open("a") as log:
            line = ["fedserver", "up", "--state", str(self.state)]
            self.process = started(line, os.getcwd(), {**os.environ, **environment}, log, log)

    def role(self) -> str:
        """leads, stands by, or "" while it does not answer."""
        try:
            with OperatorClient(self.state) as operator:
                operator.runs()
        except NotLeader:
            return "stands by"
        except ShoalError:
            return ""
        return "leads"

    def end(self, number: signal.Signals = signal.SIGKILL) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait()

    def log(self) -> str:
        return self.state.with_suffix(".log").read_text()


class Pair:
    """Two servers of one database, and the devices of one run of `rounds` rounds. blobs: the address of a
    bucket; a folder that both reach if there is none."""

    def __init__(self, base: Path, database: Cluster, devices: int, rounds: int, blobs: str = "") -> None:
        self._base, self._devices, self._rounds = base, devices, rounds
        self._cluster, self._url = database, database.database()
        self.servers = [Server(base / "a"), Server(base / "b")]
        addresses = [server.address for server in self.servers]
        for server in self.servers:
            server.state.mkdir(mode=0o700, parents=True)
            (server.state / "fedserver.yaml").write_text(
                f"state: .\ninsecure_loopback: true\nlisten: {server.address}\ndatabase: {self._url}\n"
                f"blobs: {blobs or base / 'shared'}\naddresses: [{', '.join(addresses)}]\n"
                "cadence: {poll: 2, heartbeat: 0.2, tick: 0.05}\n"
            )

    @contextmanager
    def running(self, **environment: str) -> Iterator[None]:
        """Both servers, the first one leading, with this environment, and the devices of a new run."""
        try:
            self.servers[0].start(**environment)
            self.until_led(self.servers[0])
            self.servers[1].start()
            policy = self.policy()
            with OperatorClient(self.servers[0].state) as operator:
                operator.start_run(spec(policy=policy, parameters={"rounds": self._rounds}), MODEL)
            with ExitStack() as stack:
                for number in range(self._devices):
                    stack.enter_context(self._device(number))
                yield
        finally:
            for server in self.servers:
                if server.process is not None and server.process.poll() is None:
                    server.end()

    @contextmanager
    def _device(self, number: int) -> Iterator[None]:
        folder, address = self._base / f"d{number}", self.servers[0].address
        line = ["tests.crash.device", address, str(folder), str(number)]
        process = started(line, os.getcwd(), os.environ, 1, 2)
        try:
            yield
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()

    def until_led(self, server: Server | None = None, role: str = "leads") -> Server:
        """The server that leads, or this one once it does, or has another role."""
        deadline = time.monotonic() + HANG
        while True:
            for each in self.servers if server is None else [server]:
                if each.role() == role:
                    return each
            assert time.monotonic() < deadline, "".join(each.log() for each in self.servers)
            time.sleep(LOOK)

    def other(self, server: Server) -> Server:
        return self.servers[1 - self.servers.index(server)]

    def kill(self, leader: Server) -> float:
        """Kill the leader. Returns the seconds until the other one leads; the first stands by then."""
        self.until_led(self.other(leader), "stands by")
        leader.end()
        began = time.monotonic()
        self.until_led(self.other(leader))
        took = time.monotonic() - began
        leader.start()
        return took

    def stop_and_wake(self, leader: Server) -> float:
        """Stop the leader's process, and wake it once the other one leads."""
        assert leader.process is not None
        self.until_led(self.other(leader), "stands by")
        leader.process.send_signal(signal.SIGSTOP)
        began = time.monotonic()
        self.until_led(self.other(leader))
        took = time.monotonic() - began
        leader.process.send_signal(signal.SIGCONT)
        return took

    def is_over(self) -> bool:
        leader = self.until_led()
        try:
            with OperatorClient(leader.state) as operator:
                return operator.show("toy").summary.over
        except ShoalError:  # it has just lost the lead, or looks at the run's files
            return False

    def check(self) -> None:
        """The run ended as it would have without a second server."""
        with OperatorClient(self.until_led().state) as operator:
            *_, status = operator.watch("toy")
            rounds = counted(self._url, self._cluster)
            logs = "\n".join(f"{each.state.name}:\n{each.log()}" for each in self.servers)
            assert rounds == [(self._devices, self._devices, "")] * (self._rounds + 1), f"{rounds}\n{logs}"
            assert (status.summary.stage, status.summary.round) == ("finished", self._rounds + 2), status
            assert same_models({"global": operator.fetch(status.models["global"])}, self.expected())

    def policy(self) -> RoundPolicy:
        """No device is a straggler: the time without a leader would count as theirs."""
        return RoundPolicy(devices=self._devices, minimum=self._devices, straggler_factor=0.0)

    def expected(self) -> dict[ModelKey, Tensors]:
        """The models of the same run in simulation."""
        memories: dict[str, Tensors] = {}

        def device(number: int) -> Device:
            def perform(message: Message, seed: int) -> Message:
                name = f"d{number}"
                answer, memories[name] = counting(number, message, seed, memories.get(name))
                return answer

            return perform

        algorithm, _ = find("fedavg")
        half, devices = algorithm.server(), range(self._devices)
        first = half.start(MODEL, algorithm.configure("default", {"inputs": "raw", "rounds": self._rounds}))
        policy = self.policy()
        fleet = {f"d{number}": device(number) for number in devices}
        return dict(simulate(half, first, fleet, policy, spec().seed).state.models)


def counted(url: str, server: Cluster) -> list[tuple[int, int, str]]:
    """How many reports each round asked for and counted, and why it was abandoned."""
    with server.session(url) as connection:
        rows = connection.execute("SELECT summary FROM timeline ORDER BY round")
        found = [unpack(summary) for (summary,) in rows]
    return [(each.asked, each.reported, each.abandoned) for each in found]


def campaign(moments: int, seed: int, devices: int, rounds: int, stopped: float, bucket: bool) -> None:
    chance, done, slowest = random.Random(seed), 0, 0.0
    with cluster() as server, tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        trial, places = 0, stack.enter_context(buckets()) if bucket else None
        while done < moments:
            trial += 1
            blobs = str(places.bucket()) if places else ""
            pair = Pair(Path(folder) / str(trial), server, devices, rounds, blobs)
            with pair.running():
                while done < moments and not pair.is_over():
                    time.sleep(chance.uniform(0.0, 2.0))
                    leader = pair.until_led()
                    how = pair.stop_and_wake if chance.random() < stopped else pair.kill
                    took = how(leader)
                    done, slowest = done + 1, max(slowest, took)
                    print(
                        f"moment {done}: {how.__name__} {leader.state.name}, led again after {took:.1f} s",
                        flush=True,
                    )
                pair.check()
            print(f"run {trial}: {devices} reports in each of {rounds} rounds, same models", flush=True)
    print(f"{done} moments, {trial} runs, seed {seed}: nothing lost, nothing twice; slowest {slowest:.1f} s")


def outage(seconds: float, devices: int, rounds: int) -> None:
    """A run under load while the bucket is away, and then PostgreSQL is restarted."""

    def until(pair: Pair, is_true: Callable[[RunStatus], bool]) -> None:
        while not is_true(shown(pair)):
            time.sleep(LOOK)

    def shown(pair: Pair) -> RunStatus:
        while True:
            try:
                with OperatorClient(pair.until_led().state) as operator:
                    return operator.show("toy")
            except ShoalError:  # it has just lost the lead, or looks at the run's files
                time.sleep(LOOK)

    with cluster() as server, buckets() as places, tempfile.TemporaryDirectory() as folder:
        pair = Pair(Path(folder), server, devices, rounds, str(places.bucket()))
        with pair.running():
            until(pair, lambda status: status.summary.round >= 4)
            places.stop()
            time.sleep(seconds / 2)
            with OperatorClient(pair.until_led().state) as operator:
                said = [each for each in operator.status().notices if "bucket" in each]
            before = shown(pair).summary.round
            time.sleep(seconds / 2)
            assert shown(pair).summary.round == before
            assert said, "status does not say that the bucket is away"
            print(f"{seconds:.0f} s without the bucket: round {before} waited; status: {said[0]}", flush=True)
            places.start()
            until(pair, lambda status: status.summary.round > before + 2)
            server.stop()
            server.start()
            print("PostgreSQL was restarted", flush=True)
            while not pair.is_over():
                time.sleep(LOOK)
            pair.check()
        print(f"{devices} reports in each of {rounds} rounds, same models")


def main() -> None:
    parser = argparse.ArgumentParser(description="Kill or stop the leader at random moments.")
    parser.add_argument("--moments", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--devices", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--stopped", type=float, default=0.2, help="share of moments without a kill")
    parser.add_argument("--bucket", action="store_true", help="blobs in a bucket, and not in a folder")
    parser.add_argument("--outage", type=float, default=0.0, help="seconds without the bucket, and no kills")
    options = parser.parse_args()
    if reason := lacking() or (no_buckets() if options.bucket or options.outage else ""):
        raise SystemExit(reason)
    if options.outage:
        outage(options.outage, options.devices, options.rounds)
        return
    campaign(options.moments, options.seed, options.devices, options.rounds, options.stopped, options.bucket)


if __name__ == "__main__":
    main()
