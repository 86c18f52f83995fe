"""What the round engine needs for a decision: python -m benchmarks.decisions [--devices 100 1000 10000]

A round is opened, each device gives a sign of life and reports, with a tick after each report, as the server
does it; no network, no disk, no algorithm. The time of this process's processor is measured, as the least of
three rounds. The last column is the exponent of the growth from one row to the next.
"""

import argparse
import math
import time

from shoal.core.engine.events import Heard, Joined, Reduce, Reduced, Reported, Tick
from shoal.core.engine.rounds import RoundEngine, RoundPolicy
from tests.core import counting


def seconds(devices: int, rounds: int = 3) -> tuple[float, float]:
    """Processor seconds of the reports of a round, and of its opening and end."""
    names = [f"d{number:05}" for number in range(devices)]
    engine = RoundEngine(counting, RoundPolicy(), 7, counting.start(counting.model(), rounds + 1))
    for name in names:
        engine.feed(Joined(name))
    best = (math.inf, math.inf)
    for number in range(1, rounds + 1):
        began = time.process_time()
        engine.feed(Tick(10.0 * number))
        opened = time.process_time()
        effects = []
        for place, name in enumerate(names):
            engine.feed(Heard(name))
            effects = engine.feed(Reported(name, number, 1))
            engine.feed(Tick(10.0 * number + place / devices))
        reported = time.process_time()
        assert [type(effect) for effect in effects] == [Reduce]
        engine.feed(Reduced(number, engine.state))
        ended = time.process_time()
        best = min(best[0], reported - opened), min(best[1], opened - began + ended - reported)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.decisions")
    parser.add_argument("--devices", type=int, nargs="*", default=[100, 300, 1000, 3000, 10000])
    print("devices  reports of a round  one report  opening and end  growth")
    before: tuple[int, float] | None = None
    for devices in parser.parse_args().devices:
        reports, rest = seconds(devices)
        growth = "" if before is None else f"{math.log(reports / before[1], devices / before[0]):.2f}"
        print(
            f"{devices:7}  {reports:16.3f} s  {1e6 * reports / devices:7.1f} us  {rest:13.3f} s  {growth:>6}",
            flush=True,
        )
        before = devices, reports


if __name__ == "__main__":
    main()
