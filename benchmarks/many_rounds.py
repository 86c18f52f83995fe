"""A run of many rounds over mutual TLS: what the server holds in memory and on its disk after each of them.

The devices are those of `benchmarks.many_devices`: processes of their own, a connection and a certificate for
each, a model of 31 KB. Memory is flat if the last tenth of the rounds needs as much as the second tenth; the
first tenth fills caches and pools. Prints both and their ratio, and the same for the disk.

    python -m benchmarks.many_rounds [--devices 100] [--rounds 1000] [--processes 2] [--json FILE]
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.many_devices import LOOK, MODEL, memory, playing, serving
from benchmarks.processes import Server
from fedserver.rpc.client import OperatorClient
from fedserver.store.records import RunSpec
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.types import Scalar

ARRIVALS = 100.0
"""Devices that arrive in a second."""
LONGEST = 60.0
"""Seconds that one round may take."""


def measure(folder: Path, devices: int, rounds: int, processes: int) -> dict[str, Any]:
    """The figures of one run. Raises AssertionError if a round lacks a report."""
    with (
        serving(folder, devices, ARRIVALS) as (server, state, members),
        playing(server.address, members, devices, processes, ARRIVALS),
    ):
        return followed(server, state, devices, rounds)


def followed(server: Server, state: Path, devices: int, rounds: int) -> dict[str, Any]:
    policy = RoundPolicy(devices=devices, minimum=devices, deadline=LONGEST)
    parameters: dict[str, Scalar] = {"rounds": rounds, "evaluate": False, "aggregation": "mean"}
    spec = RunSpec("long", "fedavg", parameters=parameters, policy=policy)
    done, held, began = 0, list[tuple[int, float, float]](), time.monotonic()
    with OperatorClient(state) as operator:
        run, last = operator.start_run(spec, MODEL).run, began
        while done < rounds:
            time.sleep(LOOK)
            new = list(operator.history(run, done, devices=False))
            assert all(each.reported == devices for each in new), new
            done += len(new)
            last = time.monotonic() if new else last
            assert time.monotonic() - last < LONGEST, f"{done} rounds are over"
            held.append((done, memory(server) / 1024, disk(state)))
    tenth = rounds // 10
    second = [each for each in held if tenth < each[0] <= 2 * tenth]
    end = [each for each in held if each[0] > rounds - tenth]
    found: dict[str, Any] = {"devices": devices, "rounds": rounds, "seconds": time.monotonic() - began}
    for place, name in ((1, "memory_mb"), (2, "disk_mb")):
        early, late = (statistics.median(each[place] for each in part) for part in (second, end))
        found[name] = {"second_tenth": early, "last_tenth": late, "ratio": late / early}
    return {**found, "server_peak_mb": server.peak(), "server_cpu_seconds": server.cpu()}


def disk(state: Path) -> float:
    """What the server's folder holds, in MB; files that go meanwhile do not count."""
    total = 0
    for path in state.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except FileNotFoundError:
            continue
    return total / (1 << 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1000, help="20 or more")
    parser.add_argument("--processes", type=int, default=2, help="that play the devices")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args()
    if options.devices < 1 or options.rounds < 20:
        parser.error("at least one device and 20 rounds")
    with tempfile.TemporaryDirectory(prefix="many-") as folder:
        found = measure(Path(folder), options.devices, options.rounds, options.processes)
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
