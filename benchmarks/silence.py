"""Callers that open calls and never send a message: what do honest devices notice?

One process is the server (`fedserver up`, with certificates). Another is the attacker: it opens as many calls
as each of its connections may have, of every method in turn, sends no message, and makes a new connection for
each one that is closed. This process is two honest devices: one calls over and over on its connection, the
other joins over and over under a new name. Both are measured without an attacker, and with each kind:

    stranger     on the joining port, without a certificate
    infer-only, observer, train, revoked     on the devices' port, with a certificate

The attacker runs at the lowest priority of the processor, since its machine would not be the server's. What
it leaves out: a network (loopback only). Times depend on the machine; what counts is the ratio of medians.

    python -m benchmarks.silence [--seconds 10] [--connections 80] [--rate 20] [--json FILE]
"""

import argparse
import asyncio
import json
import os
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks.reconnect import HOST, Quiet, started
from fedclient.identity.join import join
from fedclient.identity.keyring import Keyring
from fedclient.identity.link import SecureLink
from fedclient.store.state import DeviceFolder
from fedserver.authority.permissions import ALLOWED
from fedserver.authority.setup import init
from fedserver.rpc.client import OperatorClient
from fedserver.store.identities.records import Terms
from shoal.core.errors import ShoalError
from shoal.core.exchange.link import Hello
from shoal.core.identity.join import parse
from shoal.core.identity.joining import Role
from tests.server.http2 import Caller

JOINING = [f"/fed.v1.EnrollmentService/{name}" for name in ("Challenge", "Join", "Return")]
STREAMS = 32
ATTACKERS = ("stranger", "infer-only", "observer", "train", "revoked")
PAUSE = 0.02
"""Seconds between two calls of the honest device."""


# -- the attacker, in a process of its own ------------------------------------------------------------------


async def attack(address: str, chain: str, connections: int, rate: float) -> None:
    """Hold `connections` connections full of silent calls; make at most `rate` new ones a second."""
    os.nice(19)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    if chain:
        context.load_cert_chain(chain)
    paths = sorted(ALLOWED) if chain else JOINING
    held: list[Caller] = []
    while True:
        held = [caller for caller in held if not caller.closed]
        if len(held) < connections:
            with suppress(OSError, TimeoutError):
                caller = await Caller.connect(address, context)
                await caller.open(paths[at % len(paths)] for at in range(STREAMS))
                held.append(caller)
        if len(held) == connections:
            print("full", flush=True)
        await asyncio.sleep(1.0 / rate)


@contextmanager
def attacked(address: str, chain: Path | None, connections: int, rate: float) -> Iterator[None]:
    own = ["-m", "benchmarks.silence", "--attack", address, "--chain", str(chain or "")]
    more = ["--connections", str(connections), "--rate", str(rate)]
    process = subprocess.Popen([sys.executable, *own, *more], stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.wait()


# -- those who are measured ---------------------------------------------------------------------------------


async def joined(state: Path, folder: Path, name: str, role: Role = Role.TRAIN) -> Keyring:
    def token() -> str:
        with OperatorClient(state) as operator:
            return operator.create_token(Terms(role=role))[1]

    own = DeviceFolder(folder / name)
    await join(own, parse(await asyncio.to_thread(token)), name, Quiet())
    return Keyring(own.identity)


async def timed(call: Callable[[], Awaitable[object]]) -> float:
    began = time.monotonic()
    while True:
        try:
            await call()
        except ShoalError as error:  # it counts as waiting, as it does for a device
            if time.monotonic() - began > 60.0:
                raise
            await asyncio.sleep(0.1)
            print(f"    an honest call was refused: {error}", flush=True)
        else:
            return time.monotonic() - began


class Honest:
    """The two devices. Their calls are counted in the order in which they are made."""

    def __init__(self, state: Path, folder: Path, keyring: Keyring) -> None:
        self._state, self._folder, self._keyring = state, folder, keyring
        self._number = 0

    async def measure(self, seconds: float) -> dict[str, float]:
        calls, joins = await asyncio.gather(self._call(seconds), self._join(seconds))
        return {
            "calls": len(calls),
            "median": statistics.median(calls),
            "longest": max(calls),
            "joins": len(joins),
            "joins_median": statistics.median(joins),
            "joins_longest": max(joins),
        }

    async def _call(self, seconds: float) -> list[float]:
        identity = self._keyring.identity()
        assert identity is not None
        link = SecureLink(self._keyring, identity, lambda text: None)
        found, ends = [], time.monotonic() + seconds
        try:
            await timed(lambda: link.hello(Hello("benchmark")))
            while time.monotonic() < ends:
                found.append(await timed(lambda: link.next_task(0.0)))
                await asyncio.sleep(PAUSE)
        finally:
            await link.close()
        return found

    async def _join(self, seconds: float) -> list[float]:
        found, ends = [], time.monotonic() + seconds
        while time.monotonic() < ends:
            self._number += 1
            name = f"new-{self._number:04}"
            found.append(await timed(lambda name=name: joined(self._state, self._folder, name)))  # type: ignore[misc]
            await asyncio.sleep(0.3)
        return found


def chain_of(keyring: Keyring, path: Path) -> Path:
    identity = keyring.identity()
    assert identity is not None
    path.write_bytes(identity.key + identity.certificate)
    return path


async def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    state = folder / "server"
    init(state, (HOST,), f"{HOST}:0", f"{HOST}:0", "benchmark")
    with started(state, True) as server:
        assert server.process.stdout is not None
        join_address = server.process.stdout.readline().split()[-1]
        honest = Honest(state, folder, await joined(state, folder, "honest"))
        chains: dict[str, Path | None] = {"stranger": None}
        for who in ATTACKERS[1:]:
            role = Role.TRAIN if who == "revoked" else Role(who)
            chains[who] = chain_of(await joined(state, folder, who, role), folder / f"{who}.pem")
        with OperatorClient(state) as operator:
            operator.revoke("revoked", "for the benchmark")
        await honest.measure(1.0)
        found: dict[str, Any] = {"quiet": await honest.measure(arguments.seconds)}
        show("quiet", found["quiet"], found["quiet"])
        for who, chain in chains.items():
            address = server.address if chain else join_address
            with attacked(address, chain, arguments.connections, arguments.rate):
                await asyncio.sleep(3.0)
                found[who] = await honest.measure(arguments.seconds)
                show(who, found[who], found["quiet"])
                with OperatorClient(state) as operator:
                    for notice in operator.status().notices:
                        print(f"    status: {notice}")
        return found


def show(who: str, found: dict[str, float], quiet: dict[str, float]) -> None:
    median, ratio = 1000 * found["median"], found["median"] / quiet["median"]
    calls = f"calls {found['calls']:4.0f}: median {median:6.1f} ms ({ratio:.2f} of quiet)"
    joins = f"joins {found['joins']:3.0f}: median {found['joins_median']:.2f} s"
    longest = f"longest {found['longest']:.2f} s", f"longest {found['joins_longest']:.2f} s"
    print(f"{who:12} {calls}, {longest[0]}; {joins}, {longest[1]}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.silence")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--connections", type=int, default=80)
    parser.add_argument("--rate", type=float, default=20.0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--attack", help=argparse.SUPPRESS)
    parser.add_argument("--chain", default="", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.attack:
        asyncio.run(attack(arguments.attack, arguments.chain, arguments.connections, arguments.rate))
        return
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(arguments, Path(folder)))
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
