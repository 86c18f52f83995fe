"""A fleet loses its server at one moment and comes back: how fast, and how evenly.

One process is the server (`fedserver up`), which is killed, stays away and is started again on the same port
and the same state. This one is the fleet: devices without data, each on a connection of its own, that say
hello, wait for a task and come back as the real agent does (its link, its backoff, its timeouts). Each has
joined and has a certificate of its own, unless it is all in plain text. They were all here before, as a fleet
that has run for a day was, so that the server knows how many they are.

Two cases: the server is gone for a moment, so that all find out at once, and it is gone for so long that all
wait as long as they ever do. Connections are counted in the kernel's table of them, ten times a second.

What it leaves out: a network (loopback only), and that a fleet has more processors than this machine.

    python -m benchmarks.reconnect [--devices 500] [--away 1,60] [--insecure-loopback] [--json FILE]
"""

import argparse
import asyncio
import itertools
import json
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.least_server import HOST
from benchmarks.processes import Server, joined, started
from fedclient.identity.keyring import Identity, Keyring
from fedclient.identity.link import SecureLink
from fedclient.net.backoff import FIRST_WAIT, Backoff, patiently
from fedclient.net.rpc import RpcLink
from fedclient.store.state import DeviceFolder
from fedserver.authority.setup import init
from shoal.core.errors import Refused, SessionLost
from shoal.core.exchange.link import Hello

ESTABLISHED = "01"
LOOK = 0.1
"""Seconds from one look at the connections to the next."""
LONGEST = 900.0
"""Seconds after which a fleet is not waited for any more."""


@dataclass
class Device:
    """dial: its link, with a connection of its own. tries: hellos, answered or not.

    back: when it was first welcomed since the server returned, by the loop's clock; 0 before.
    """

    dial: Callable[[], RpcLink]
    back: float = 0.0
    tries: int = 0

    async def run(self) -> None:
        """What an agent does while there is nothing to do, until it is canceled."""
        link, backoff, clock = self.dial(), Backoff(), asyncio.get_running_loop().time
        welcome: Any = None

        def quietly(text: str) -> None: ...

        async def hello() -> Any:
            self.tries += 1
            return await link.hello(Hello("benchmark"))

        async def next_task() -> Any:
            assert welcome is not None
            return await link.next_task(welcome.poll)

        try:
            while True:
                try:
                    if welcome is None:
                        welcome = await patiently(hello, backoff, float("inf"), quietly)
                        backoff.first = max(FIRST_WAIT, welcome.spread)
                        self.back = self.back or clock()
                    idle = await patiently(next_task, backoff, float("inf"), quietly)
                    await asyncio.sleep(backoff.between(idle.earliest, idle.latest))
                except (SessionLost, Refused) as error:
                    if error.code != SessionLost.code:
                        raise
                    welcome = None
        finally:
            await link.close()


def connections(server: Server) -> int:
    """Those that are made, at the server's end."""
    port = f":{int(server.address.rpartition(':')[2]):04X}"
    tables = [Path(f"/proc/{server.process.pid}/net/{name}") for name in ("tcp", "tcp6")]
    fields = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return sum(local.endswith(port) and state == ESTABLISHED for _, local, _, state, *_ in fields)


async def secured(state: Path, folder: Path, count: int) -> list[Device]:
    """Devices with certificates of a server that runs, each with a folder of its own."""

    def device(number: int, identity: Identity) -> Device:
        keyring = Keyring(DeviceFolder(folder / f"{number}").identity)
        return Device(lambda: SecureLink(keyring, identity, lambda text: None))

    return list(itertools.starmap(device, enumerate(await joined(state, folder, count))))


def plain(address: str, count: int) -> list[Device]:
    """Devices that only say who they are."""
    return [Device(lambda name=f"device-{number:05}": RpcLink(address, name)) for number in range(count)]  # type: ignore[misc]


def up(state: Path, secure: bool, listen: str = f"{HOST}:0") -> AbstractContextManager[Server]:
    """The server of a state folder, until the end of the block."""
    more = ["--join-listen", f"{HOST}:0"] if secure else ["--insecure-loopback"]
    return started("-m", "fedserver", "up", "--state", str(state), "--listen", listen, *more)


@dataclass
class Return:
    """What was seen of a fleet that comes back. made: seconds, and the connections that there were."""

    made: list[tuple[float, int]] = field(default_factory=list)

    def peak(self) -> int:
        """The most connections that were made within a second."""
        most = 0
        for moment, there in self.made:
            before = [count for at, count in self.made if moment - 1.0 <= at <= moment]
            most = max(most, there - min(before))
        return most


async def whole(fleet: list[Device], server: Server, seen: Return) -> float:
    """Wait until every device was answered; seconds from now."""
    began = time.monotonic()
    while not all(device.back for device in fleet):
        assert server.process.poll() is None, f"the server ended with {server.process.returncode}"
        there = await asyncio.to_thread(connections, server)
        seen.made.append((time.monotonic(), there))
        assert time.monotonic() - began < LONGEST, f"{sum(not d.back for d in fleet)} devices are not back"
        await asyncio.sleep(LOOK)
    return time.monotonic() - began


async def measure(count: int, away: float, folder: Path, secure: bool) -> dict[str, Any]:
    state = folder / "server"
    if secure:
        init(state, (HOST,), f"{HOST}:0", f"{HOST}:0", "benchmark")
    with up(state, secure) as server:
        address, began = server.address, time.monotonic()
        fleet = await secured(state, folder / "devices", count) if secure else plain(address, count)
        joining = time.monotonic() - began
        running = [asyncio.create_task(device.run()) for device in fleet]
        try:
            await whole(fleet, server, Return())
            await asyncio.sleep(6.0)  # until the server has written down whom it has seen
            server.process.send_signal(signal.SIGKILL)
            await asyncio.to_thread(server.process.wait)
            for again in (1, 2):  # the first time teaches the fleet how many it is
                for device in fleet:
                    device.back, device.tries = 0.0, 0
                await asyncio.sleep(away if again == 2 else 1.0)
                with up(state, secure, address) as restarted:
                    idle, seen = restarted.memory(), Return()
                    seconds = await whole(fleet, restarted, seen)
                    if again == 2:
                        return {
                            "devices": count,
                            "secure": secure,
                            "joined_seconds": joining,
                            "away_seconds": away,
                            "all_back_seconds": seconds,
                            "half_back_seconds": _half(fleet, seconds),
                            "peak_handshakes_a_second": seen.peak(),
                            "hellos_a_device": sum(device.tries for device in fleet) / count,
                            "server_idle_mb": idle,
                            "server_peak_mb": restarted.peak(),
                        }
                    await asyncio.sleep(6.0)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
    raise AssertionError


def _half(fleet: list[Device], seconds: float) -> float:
    """When half of them were back, in seconds from the server's return."""
    backs = sorted(device.back for device in fleet)
    return seconds - (backs[-1] - backs[len(backs) // 2])


async def measured(count: int, cases: list[float], secure: bool) -> list[dict[str, Any]]:
    """Every case, in one loop, for gRPC stays with the first one that it meets."""
    found = []
    for away in cases:
        with tempfile.TemporaryDirectory() as folder:
            found.append(await measure(count, away, Path(folder), secure))
        print(json.dumps(found[-1], indent=2), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=500, help="at most 10000")
    parser.add_argument("--away", default="1,60", help="seconds without a server, one case for each")
    parser.add_argument("--insecure-loopback", action="store_true", help="in plain text, without mutual TLS")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    if not 1 <= options.devices <= 10000:
        parser.error("--devices is 1 to 10000")
    cases = list(map(float, options.away.split(",")))
    found = asyncio.run(measured(options.devices, cases, not options.insecure_loopback))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
