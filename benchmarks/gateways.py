"""Thousands of light devices at one server process, and at two gateways behind haproxy at layer 4.

Real processes are the server (`fedserver up`), the gateways (`fedserver gateway up`) and haproxy; two more
play the devices, each on a connection of its own with a certificate of its own, over mutual TLS 1.3. A device
says hello, waits for a task, answers it with a toy model inside of the report, and waits again, as the agent
does. All devices take part in each round. Reported are the processor time of the server for each report (its
task and its receipt included) and that of the gateways and haproxy, the reports a second, and what it costs
to let the devices wait. The models of both ways have to have the same bits.

What it leaves out: a network (loopback only), the devices' work, and machines of their own: all processes
share the processors of this machine, so reports a second are a lower bound, and processor times are what
counts. The devices are entered in the registry before the server starts: from one address, a real crowd joins
at 20 a second.

    python -m benchmarks.gateways [--devices 2000] [--rounds 3] [--idle 20] [--ways direct,gateways]
        [--json FILE]
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from fedclient.net.backoff import Backoff, patiently
from fedclient.net.rpc import RpcLink
from fedserver.authority import setup
from fedserver.authority.roots import Authority
from fedserver.rpc.client import AuthorityClient
from fedserver.rpc.gateway.folder import GatewayFolder
from fedserver.store.identities.records import Certified, DeviceStanding, Terms
from fedserver.store.integrity.records import RunSpec
from fedserver.store.store import Store
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.errors import Refused, SessionLost
from shoal.core.exchange.link import Hello, Outcome, Report, Task
from shoal.core.exchange.payload import decode, encode
from shoal.core.exchange.tensors import unpack
from shoal.core.identity.certificates import key_to_pem, new_key, pin_of, request
from shoal.shell.process import allow_descriptors
from tests.server.toys import MESSAGES, MODEL, Hands, honest
from tests.waiting import free_port

HOST = "127.0.0.1"
CHILDREN = 2
AT_ONCE = 32
"""Devices of a process that arrive at the same time."""
LONGEST = 900.0
"""Seconds for one way."""
TICKS = os.sysconf("SC_CLK_TCK")

HAPROXY = """
global
    maxconn {most}
defaults
    mode tcp
    timeout connect 10s
    timeout client 10m
    timeout server 10m
frontend devices
    bind 127.0.0.1:{port}
    default_backend gateways
backend gateways
    balance roundrobin
    default-server check inter 2s
{servers}
"""


def cpu(process: "subprocess.Popen[str]") -> float:
    """Processor seconds that a process has used."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak(process: "subprocess.Popen[str]") -> float:
    """The most memory that a process ever had, in MB."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


@contextlib.contextmanager
def started(*arguments: object, says: str = "listening on ") -> Iterator["subprocess.Popen[str]"]:
    """Python with these arguments, from when it says that it listens to the end of the block."""
    command = [sys.executable, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        if says:
            assert process.stdout.readline().startswith(says)
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(40.0)
        process.kill()
        process.wait()


def register(state: Path, count: int, into: Path) -> None:
    """Enter devices in the registry of a server that does not run. Their identities go to a file."""
    authority, store, found = Authority.open(state, ()), Store(state), []
    try:
        token, _ = store.identities.tokens.add(Terms(uses=count))
        with store.database.transaction():
            for number in range(count):
                name, key = f"d{number:05}", new_key()
                made = authority.issue(name, key.public_key())
                spki = pin_of(key.public_key()).hex()
                store.identities.registry.enter(name, token, DeviceStanding.APPROVED, spki)
                roots = tuple(authority.roots)
                times = made.issued, made.expires, None
                store.identities.registry.insert(
                    name, Certified(made.serial, spki, made.pem, made.root, roots, *times)
                )
                found.append((key_to_pem(key).decode(), made.pem.decode()))
    finally:
        store.close()
    into.write_text(json.dumps({"authorities": authority.bundle.decode(), "devices": found}))


# -- the devices: processes of their own ------------------------------------------------------------------


class Light:
    """A device that does its tasks until no run is left."""

    def __init__(self, link: RpcLink, number: int) -> None:
        self._link, self._number, self._backoff = link, number, Backoff()
        self.reported = 0

    async def hello(self) -> None:
        hello = Hello("benchmark")
        await patiently(lambda: self._link.hello(hello), self._backoff, LONGEST, lambda text: None)

    async def run(self) -> None:
        while True:
            try:
                found = await patiently(
                    lambda: self._link.next_task(20.0), self._backoff, LONGEST, lambda text: None
                )
                if isinstance(found, Task):
                    await self._do(found)
                elif found.finished:
                    return
            except (SessionLost, Refused) as error:
                if error.code != SessionLost.code:
                    raise
                await self.hello()

    async def _do(self, task: Task) -> None:
        inline = task.payload.blobs_in(task.inline)
        message = decode(
            task.payload,
            MESSAGES,
            lambda weights: unpack(weights.manifest, memoryview(inline[weights.blob.sha256])),
        )
        hands = Hands(self._link)  # type: ignore[arg-type]
        result = encode(honest(self._number)(message, task.seed), hands.keep)
        small = tuple(hands.blobs[blob.sha256] for blob in result.small_blobs(task.inline_report))
        report = Report(task.run, task.round, task.attempt, result, small)
        receipt = await patiently(
            lambda: self._link.report(report), self._backoff, LONGEST, lambda text: None
        )
        assert receipt.outcome is Outcome.ACCEPTED, receipt
        self.reported += 1


async def play(found: dict[str, Any], address: str, first: int, last: int) -> None:
    """Be these devices until no run is left. Says "here" when all have been welcomed."""
    allow_descriptors()
    roots = found["authorities"].encode()
    devices = []
    for number in range(first, last):
        key, pem = (text.encode() for text in found["devices"][number])
        link = RpcLink(address, "", grpc.ssl_channel_credentials(roots, key, pem))
        devices.append(Light(link, number))
    turns = asyncio.Semaphore(AT_ONCE)

    async def arrive(device: Light) -> None:
        async with turns:
            await device.hello()

    await asyncio.gather(*map(arrive, devices))
    print("here", flush=True)
    await asyncio.gather(*(device.run() for device in devices))
    print(sum(device.reported for device in devices), flush=True)
    await asyncio.gather(*(device._link.close() for device in devices))


# -- the measurement ---------------------------------------------------------------------------------------


@dataclass
class Way:
    """Where devices call, and the processes beside the server."""

    address: str
    between: dict[str, "subprocess.Popen[str]"]


@contextlib.contextmanager
def gateways(state: Path, folder: Path, count: int) -> Iterator[Way]:
    """haproxy, and two gateways behind it."""
    ports, listen = [free_port(), free_port()], free_port()
    with contextlib.ExitStack() as stack:
        between = {}
        for name, port in zip(("east", "west"), ports, strict=True):
            own = GatewayFolder(folder / name)
            key = own.key()
            with AuthorityClient(state) as operator:
                own.fill(key, operator.add_gateway(name, (HOST,), request(key)), f"{HOST}:{port}")
            up = ("-m", "fedserver", "gateway", "up", "--folder", folder / name)
            between[name] = stack.enter_context(started(*up))
        servers = "\n".join(f"    server g{port} {HOST}:{port}" for port in ports)
        (folder / "haproxy.cfg").write_text(HAPROXY.format(port=listen, most=count + 200, servers=servers))
        command = [shutil.which("haproxy") or "/usr/sbin/haproxy", "-db", "-f", str(folder / "haproxy.cfg")]
        balancer = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True)
        stack.callback(balancer.wait)
        stack.callback(balancer.terminate)
        between["haproxy"] = balancer
        yield Way(f"{HOST}:{listen}", between)


def measure(way: str, count: int, rounds: int, idle: float, folder: Path) -> dict[str, Any]:
    state, file = folder / "server", folder / "devices.json"
    port = free_port()
    setup.init(state, (HOST,), f"{HOST}:{port}", f"{HOST}:{free_port()}", "benchmark")
    with (state / "fedserver.yaml").open("a") as settings:
        settings.write("cadence: {arrivals: 500}\n")
    register(state, count, file)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(started("-m", "fedserver", "up", "--state", state))
        found = Way(f"{HOST}:{port}", {})
        if way == "gateways":
            found = stack.enter_context(gateways(state, folder, count))
        processes = {"server": server, **found.between}
        edges = [round(count * part / CHILDREN) for part in range(CHILDREN + 1)]
        children = [
            stack.enter_context(
                started("-m", "benchmarks.gateways", "--play", file, found.address, low, high, says="")
            )
            for low, high in itertools.pairwise(edges)
        ]
        began = time.monotonic()
        for child in children:
            assert child.stdout is not None
            assert child.stdout.readline() == "here\n"
        arrived = time.monotonic() - began
        before = {name: cpu(each) for name, each in processes.items()}
        time.sleep(idle)
        waiting = {name: (cpu(each) - before[name]) / idle for name, each in processes.items()}
        policy = RoundPolicy(
            devices=count, minimum=count, straggler_factor=0.0, device_timeout=LONGEST, deadline=LONGEST
        )
        spec = RunSpec(
            "run", "fedavg", parameters={"rounds": rounds, "evaluate": False}, policy=policy, seed=42
        )
        before, began = {name: cpu(each) for name, each in processes.items()}, time.monotonic()
        with AuthorityClient(state) as operator:
            operator.start_run(spec, MODEL)
            *_, status = operator.watch("run")
        took = time.monotonic() - began
        spent = {name: cpu(each) - before[name] for name, each in processes.items()}
        reports = sum(int(child.stdout.readline()) for child in children if child.stdout)
        assert (status.summary.stage, status.abandoned) == ("finished", {}), status
        assert reports == count * rounds, reports
        return {
            "way": way,
            "devices": count,
            "rounds": rounds,
            "arrived_s": round(arrived, 1),
            "waiting_cpu_percent": {name: round(100 * share, 1) for name, share in waiting.items()},
            "reports": reports,
            "seconds": round(took, 2),
            "reports_per_second": round(reports / took, 1),
            "cpu_ms_per_report": {name: round(1000 * s / reports, 3) for name, s in spent.items()},
            "peak_mb": {name: round(peak(each), 1) for name, each in processes.items()},
            "load": [round(each, 1) for each in os.getloadavg()],
            "model": status.models["global"].blob.sha256,
        }


def main() -> None:
    if sys.argv[1:2] == ["--play"]:
        file, address, first, last = sys.argv[2:]
        asyncio.run(play(json.loads(Path(file).read_text()), address, int(first), int(last)))
        return
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gateways")
    parser.add_argument("--devices", type=int, default=2000, help="at most 5,000")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--idle", type=float, default=20.0, help="seconds for which all devices only wait")
    parser.add_argument("--ways", default="direct,gateways")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not 2 <= options.devices <= 5000 or not 1 <= options.rounds <= 20:
        parser.error("2 to 5,000 devices and 1 to 20 rounds")
    results = []
    for way in options.ways.split(","):
        with tempfile.TemporaryDirectory(prefix="gateways-") as folder:
            results.append(measure(way, options.devices, options.rounds, options.idle, Path(folder)))
        print(json.dumps(results[-1], indent=2), flush=True)
    assert len({each["model"] for each in results}) == 1, "the models differ"
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
