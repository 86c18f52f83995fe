"""What a fleet costs in a month: computed from what was measured here, and from prices that you give.

    python -m benchmarks.costs [--devices 10000 100000 1000000 10000000] [--rounds 730] [--asked 1000]
        [--megabytes 5] [--cpu 25] [--gigabyte 0.08] [--puts 5] [--stored 0.025]

Nothing is run. The default prices are round figures and not those of a provider: a virtual processor with
4 GB of memory for a month, a gigabyte that leaves the data center, a million objects put into a bucket, and a
gigabyte in it for a month. Machines are for the busiest time, a round that is under way; `rounds` is for a
month.

    cost = cpu x processors + gigabyte x (models + waiting) + puts x objects / 1e6 + stored x reports

A fleet that one deciding server cannot hold is divided into several federations, each with servers and a
database of its own.
"""

import argparse
import math
from dataclasses import dataclass

from fedserver.config import Settings
from fedserver.coordinator.visits.cadence import poll

MONTH = 730 * 3600.0
BUSY = 0.7
"""The part of a processor's time that a process may be busy."""
MEMORY = 4.0
"""Gigabytes with each processor."""
LONGEST = 86_400.0
"""The most that `cadence.age` is set to here, in seconds; a call waits for an eighth of it."""

REPORT, CALL = 0.0037, 0.0012
"""Seconds of processor time of a report with its task, and of a call that waits in vain:
benchmarks.many_devices."""
MOST = 1_000_000
"""Devices of one server: it opens 1,048,576 files and connections at most."""
ENGINE = 4e-8
"""Processor time a second for each device, of ticks: benchmarks.million."""
CONNECTION = 110e3
"""Bytes of memory of a device that waits: benchmarks.many_devices."""
REPORTS = 25.0
"""Reports a second while a round is under way: benchmarks.million."""
ROWS = 6.0
"""Rows of a report that are inserted, updated or deleted: four by benchmarks.database_rows, its device's and
that of its traffic. A call that waits in vain writes one, of its device."""
PING, EVERY = 91, 60.0
"""Bytes of an answer to a ping of HTTP/2 inside of TLS and TCP, by their formats, and seconds between two."""
ANSWER = 300
"""Bytes of an answer to a call that has waited in vain: assumed."""


@dataclass(frozen=True)
class Federation:
    """One deciding server, its standby and database, for a part of the fleet. age: in seconds."""

    devices: float
    age: float

    @property
    def calls(self) -> float:
        """Calls a second that wait in vain."""
        return self.devices / poll(int(self.devices), Settings(age=self.age))

    @property
    def busy(self) -> float:
        """The part of a processor that the deciding server needs."""
        return REPORTS * REPORT + self.calls * CALL + self.devices * ENGINE

    @property
    def server(self) -> int:
        """Processors of a server: two, and as many as come with the memory of its connections."""
        return max(2, math.ceil(self.devices * CONNECTION / 1e9 / MEMORY))

    @property
    def processors(self) -> int:
        """Those of two servers, of which one stands by, and two for the database and for its replica."""
        return 2 * self.server + 2 * 2

    @property
    def rows(self) -> float:
        """Rows of the database that change in a second."""
        return REPORTS * ROWS + self.calls


def plan(devices: int) -> tuple[int, Federation]:
    """How many federations a fleet needs, and one of them."""
    for parts in range(math.ceil(devices / MOST), 1000):
        age = Settings.age
        while age <= LONGEST:
            if (found := Federation(devices / parts, age)).busy <= BUSY:
                return parts, found
            age *= 2
        if (found := Federation(devices / parts, LONGEST)).busy <= BUSY:
            return parts, found
    raise ValueError(f"{devices} devices are too many for this arithmetic")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.costs")
    parser.add_argument("--devices", type=int, nargs="+", default=[10**4, 10**5, 10**6, 10**7])
    parser.add_argument("--rounds", type=float, default=730.0, help="rounds a month")
    parser.add_argument("--asked", type=int, default=1_000, help="devices that a round asks")
    parser.add_argument("--megabytes", type=float, default=5.0, help="of a model")
    parser.add_argument("--cpu", type=float, default=25.0, help="a processor with 4 GB for a month")
    parser.add_argument("--gigabyte", type=float, default=0.08, help="a gigabyte that leaves")
    parser.add_argument("--puts", type=float, default=5.0, help="a million objects put into a bucket")
    parser.add_argument("--stored", type=float, default=0.025, help="a gigabyte in a bucket for a month")
    options = parser.parse_args()
    print("computed; the prices are assumptions")
    for devices in options.devices:
        parts, each = plan(devices)
        models = parts * options.rounds * options.asked * options.megabytes / 1000
        waiting = parts * MONTH * (each.devices / EVERY * PING + each.calls * ANSWER) / 1e9
        puts = parts * options.rounds * (options.asked + 1)
        stored = parts * options.asked * options.megabytes / 1000
        machines = options.cpu * parts * each.processors
        line = options.gigabyte * (models + waiting)
        bucket = options.puts * puts / 1e6 + options.stored * stored
        print(
            f"{devices:9,} devices: {parts} x (age {each.age:,.0f} s, {each.calls:.0f} calls a second, "
            f"server {each.busy:.0%} of one of {each.server} processors, {each.rows:.0f} rows a second); "
            f"{parts * each.processors} processors {machines:,.0f}; {models:,.0f} + {waiting:,.0f} GB out "
            f"{line:,.0f}; {puts / 1e6:.2f} million puts, {stored:.0f} GB {bucket:,.0f}; "
            f"in all {machines + line + bucket:,.0f} a month"
        )


if __name__ == "__main__":
    main()
