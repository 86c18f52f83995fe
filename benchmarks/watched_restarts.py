"""A server is stopped and started again and again, and an operator asks for its status all the time.

A call is begun each 50 ms, or as soon as the one before it is over, on a connection of its own, as
`fedserver status` does. Each one that begins after the server has said where it listens, and ends before the
server is stopped, has to be answered, with a row for every device. The server is stopped when all devices are
back: by SIGTERM and by SIGKILL in turn.

The devices are agents (`fedclient run`), which train in a run that does not end; or, with `--light`, devices
without data, which only wait for tasks, all in this process, each with a connection and a certificate of its
own. All is over mutual TLS.

    python -m benchmarks.watched_restarts [--devices 4] [--restarts 50] [--light] [--json FILE]
"""

import argparse
import asyncio
import json
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import reconnect
from benchmarks.least_server import HOST
from fedserver.authority.setup import init
from fedserver.coordinator.status_types import DeviceStatus
from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.errors import ShoalError
from tests.e2e.places import Place

EACH = 0.05
"""Seconds from the beginning of one call to that of the next."""
LONGEST = 300.0
"""Seconds after which a fleet is not waited for any more."""
HERE = ("idle", "working")
STOPS = (signal.SIGTERM, signal.SIGKILL)


@dataclass
class Watch:
    """What an operator sees. started: how often the server was started; 0 while it is not up.

    seconds: of each call that was answered. failed: why others were not. back: the number of the last start
    after which all devices were seen to be back.
    """

    state: Path
    devices: int
    started: int = 0
    back: int = 0
    seconds: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def look(self) -> None:
        """One call. It counts if the server was up when it began, and was not stopped before it was over."""
        before, began = self.started, time.monotonic()
        try:
            with OperatorClient(self.state) as operator:
                seen = operator.status().devices
            wrong = self._wrong(seen)
        except ShoalError as error:
            wrong = str(error)
        if not before or self.started != before:
            return
        if wrong:
            self.failed.append(wrong)
            return
        self.seconds.append(time.monotonic() - began)
        if all(device.presence in HERE for device in seen):
            self.back = before

    def _wrong(self, seen: Sequence[DeviceStatus]) -> str:
        """What an answer should not say; "" if all is right."""
        if len(seen) != self.devices:
            return f"{len(seen)} of {self.devices} devices are shown"
        unheard = [each for each in seen if each.last_seen is None and each.presence in HERE]
        return f"{unheard[0].device} is here and was never heard" if unheard else ""

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Calls, one after another, until the end of the block."""
        over = threading.Event()

        def calls() -> None:
            while not over.is_set():
                began = time.monotonic()
                self.look()
                over.wait(max(0.0, began + EACH - time.monotonic()))

        thread = threading.Thread(target=calls)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    async def all_back(self, start: int) -> None:
        """Wait until every device was seen after this start of the server."""
        until = time.monotonic() + LONGEST
        while self.back != start:
            assert time.monotonic() < until, f"not all devices are back after start {start}"
            await asyncio.sleep(EACH)


@asynccontextmanager
async def agents(place: Place, count: int) -> AsyncIterator[None]:
    """Real agents that train."""
    with ExitStack() as stack:
        for number in range(count):
            name = f"device-{number}"
            settings = await asyncio.to_thread(place.joined, name)
            stack.enter_context(place.running(name, "fedclient", "run", "-c", settings))
        spec = RunSpec("endless", "fedavg", parameters={"rounds": 1_000_000})
        with OperatorClient(place.state) as operator:
            operator.start_run(spec, None)
        yield


@asynccontextmanager
async def light(place: Place, count: int) -> AsyncIterator[None]:
    """Devices that wait for tasks."""
    fleet = await reconnect.secured(place.state, place.root / "devices", count)
    running = [asyncio.create_task(device.run()) for device in fleet]
    try:
        yield
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def measure(root: Path, count: int, restarts: int, without_data: bool) -> dict[str, Any]:
    place, fleet = Place(root), light if without_data else agents
    init(place.state, (HOST,), f"{HOST}:0", f"{HOST}:0", "benchmark")
    watch, listen, returns = Watch(place.state, count), f"{HOST}:0", list[float]()
    began = time.monotonic()
    with ExitStack() as stack:
        server = stack.enter_context(reconnect.up(place.state, True))
        async with fleet(place, count):
            stack.enter_context(watch.looking())
            listen = server.address
            for start in range(1, restarts + 2):
                up, watch.started = time.monotonic(), start
                await watch.all_back(start)
                returns.append(time.monotonic() - up)
                watch.started = 0
                if start > restarts:
                    break
                server.process.send_signal(STOPS[start % 2])
                await asyncio.to_thread(server.process.wait)
                server = stack.enter_context(reconnect.up(place.state, True, listen))
    return {
        "devices": count,
        "light": without_data,
        "restarts": restarts,
        "seconds": time.monotonic() - began,
        "answered": len(watch.seconds),
        "failed": len(watch.failed),
        "median_answer_seconds": statistics.median(watch.seconds),
        "longest_answer_seconds": max(watch.seconds),
        "median_all_back_seconds": statistics.median(returns[1:]),
        "longest_all_back_seconds": max(returns[1:]),
        "why": sorted(set(watch.failed)),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=4, help="at most 1000")
    parser.add_argument("--restarts", type=int, default=50)
    parser.add_argument("--light", action="store_true", help="devices without data, which only wait")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    if not 1 <= options.devices <= 1000 or options.restarts < 1:
        parser.error("--devices is 1 to 1000, and --restarts at least 1")
    with tempfile.TemporaryDirectory() as folder:
        work = measure(Path(folder), options.devices, options.restarts, options.light)
        found = asyncio.run(work)
    text = json.dumps(found, indent=2)
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
