"""The live page with a long run: how fast it loads and follows, and what it costs the server.

A server has a finished run with the history of 1,000 rounds of 100 devices, written into its state folder
while it is down. Then a browser opens the page on that run; a viewer follows a run of devices without data;
and runs take turns, with and without viewers, for what the page adds. Everything is on this machine.

What it leaves out: a network, and devices that train, beside which the page's share of a round would be less.

    python -m benchmarks.page [--devices 100] [--rounds 1000] [--turns 5] [--json FILE]
"""

import argparse
import asyncio
import http.client
import json
import math
import os
import socket
import statistics
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedserver.rpc.client import OperatorClient
from fedserver.store.engines.sqlite import SqliteDatabase
from fedserver.store.journal.timeline import Timeline
from shoal.core.server_kit.history.records import (
    ClusterRound,
    DeviceRound,
    Position,
    RoundHistory,
    RunEvent,
    digest_of,
)
from tests.server.page.browser import browser
from tests.server.page.pages import Page, page, path_of
from tests.server.processes import daemon, restored
from tests.server.servers import spec
from tests.server.test_daemon import all_devices
from tests.server.toys import MODEL

LONG = "long"
GROUPS = 5


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5, help="pairs of runs, with and without viewers")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = measure(Path(folder) / "state", given.devices, given.rounds, given.turns)
    print(json.dumps(found, indent=2))
    if given.json:
        given.json.write_text(json.dumps(found, indent=2) + "\n")


def measure(state: Path, devices: int, rounds: int, turns: int) -> dict[str, Any]:
    with daemon(state) as server, OperatorClient(state) as operator:
        operator.start_run(spec(name=LONG), MODEL)
        asyncio.run(all_devices(server.address))
        assert operator.show(LONG).summary.over
        server.stop()
    database = SqliteDatabase(state / "shoal.db")
    timeline = Timeline(database)
    with database.transaction():
        for number in range(1, rounds + 1):
            timeline.add(LONG, history(number, devices))
        database.execute("UPDATE runs SET round = ? WHERE run = ?", (rounds + 1, LONG))
    database.close()
    with daemon(state) as server, OperatorClient(state) as operator, page(state) as at:
        restored(operator, LONG)
        found: dict[str, Any] = {"devices": devices, "rounds": rounds}
        found["open_s"], found["load_s"] = zip(*(loads(at, rounds) for _ in range(4)), strict=True)
        found["memory_mb"] = memory(at.process.pid)
        cookie, lags, seconds = at.cookie(), [], {True: [], False: []}  # type: ignore[var-annotated]
        used: dict[bool, list[float]] = {True: [], False: []}
        for turn in range(2 * turns):
            watched, name = turn % 2 == 0, f"live-{turn}"
            began, before = time.monotonic(), processor(server.process.pid)
            operator.start_run(spec(name=name, parameters={"rounds": 40}), MODEL)
            viewers = [Viewer(at, cookie, name), Viewer(at, cookie, LONG)] if watched else []
            asyncio.run(all_devices(server.address))
            seconds[watched].append(time.monotonic() - began)
            used[watched].append(round(processor(server.process.pid) - before, 2))
            if watched:
                lags += viewers[0].lags({each.round: each.ended for each in operator.history(name)})
            for viewer in viewers:
                viewer.close()
        found["lag_s"] = {"median": statistics.median(lags), "largest": max(lags)}
        found["run_s"] = {"watched": seconds[True], "not_watched": seconds[False]}
        found["slower"] = statistics.median(seconds[True]) / statistics.median(seconds[False]) - 1.0
        found["server_processor_s"] = {"watched": used[True], "not_watched": used[False]}
        found["memory_after_mb"] = memory(at.process.pid)
        return found


def history(number: int, devices: int) -> RoundHistory:
    """A round whose figures follow from its number, with groups that change every 100 rounds."""
    shift = number // 100
    groups, moved = [f"c{key}" for key in range(GROUPS)], number % 100 == 0
    names = [f"device-{each:03}" for each in range(devices)]
    loss, accuracy = 2.0 / number, 1.0 - 0.7 / number
    found = RoundHistory(number, f"training round {number}", 1.8e9 + number, 2.0 + math.sin(number))
    found = replace(
        found,
        asked=devices,
        reported=devices,
        progress=number,
        measured_on="held_out",
        loss=loss,
        accuracy=accuracy,
        bytes_up=devices * 20_000,
        bytes_down=devices * 20_000,
        clusters=tuple(ClusterRound(key, "0" * 64, devices // GROUPS, loss, accuracy) for key in groups),
        events=(RunEvent("moved", "devices moved"),) if moved else (),
        devices=tuple(
            DeviceRound(
                name, groups[(at + shift) % GROUPS], 100, 0.5, 0.9, 20_000, 20_000, 1.0 + at / 100, 0.1
            )
            for at, name in enumerate(names)
        ),
        positions={name: Position(at % GROUPS, at / 50, 0.1, 0.0, 0.1) for at, name in enumerate(names)}
        if moved
        else {},
    )
    earlier = [] if moved or number == 1 else [f"c{key}" for key in range(GROUPS)]
    before = {name: earlier[(at + shift) % GROUPS] for at, name in enumerate(names) if earlier}
    return replace(found, digest=digest_of(found, before))


def loads(at: Page, rounds: int) -> tuple[float, float]:
    """Seconds until a new browser that follows a link shows a view, and those until it then shows the last
    round of the long run, with the page's files in its cache. The first look is at a cold page."""
    with browser() as chromium:
        tab, link = chromium.new_page(), at.new_link()
        began = time.monotonic()
        tab.goto(f"http://{at.address}{path_of(link)}")
        tab.wait_for_selector("h1")
        opened, began = time.monotonic() - began, time.monotonic()
        tab.goto(f"http://{at.address}/?#/run/{LONG}")
        tab.locator(f"text={rounds} of").first.wait_for(state="attached")
        tab.locator(".cell").first.wait_for(state="attached")
        return round(opened, 3), round(time.monotonic() - began, 3)


class Viewer:
    """Reads the events of a run in a thread, and notes when each round came."""

    def __init__(self, at: Page, cookie: str, run: str) -> None:
        host, port = at.address.rsplit(":", 1)
        self._line = http.client.HTTPConnection(host, int(port), timeout=60)
        self._line.request("GET", f"/events?run={run}", headers={"cookie": cookie})
        assert self._line.sock is not None
        self._socket = self._line.sock
        self._answer = self._line.getresponse()
        self.came: dict[int, float] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        try:
            while line := self._answer.readline():
                if line.startswith(b'data: {"from"'):
                    now = time.time()
                    for row in json.loads(line[6:])["rows"]:
                        self.came.setdefault(row["round"], now)
        except (OSError, ValueError, AttributeError):
            return

    def lags(self, ended: dict[int, float]) -> list[float]:
        """For each round, how long after its end it came. ended: clock times."""
        until = time.monotonic() + 30.0
        while not ended.keys() <= self.came.keys() and time.monotonic() < until:
            time.sleep(0.05)
        return [self.came[number] - at for number, at in ended.items()]

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)  # it ends the reading thread, which closing would wait for


def processor(process: int) -> float:
    """The seconds of processor time that a process has used; unlike those of a clock, other work adds few."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(process: int) -> float:
    """The resident memory of a process, in megabytes."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return round(pages * 4096 / 1e6, 1)


if __name__ == "__main__":
    main()
