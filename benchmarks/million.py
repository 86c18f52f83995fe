"""A fleet of a million devices in virtual time: what the engine needs, and which part gives way first.

    python -m benchmarks.million [--devices 10000 100000 1000000] [--asked 1000] [--rounds 3] [--seed 1]

The engine is the real one, with all its events: every device joins, each round asks some of them, those work
for 15 to 40 s of virtual time and report, and the clock ticks four times a second. Its processor time and its
memory are measured here. What a report (two calls) and a call that waits in vain cost the server besides is
measured by `benchmarks.many_devices` and given to this program. From that it computes how busy the server is:
calls a second times the seconds of a call, where devices that wait call as often as the server lets them. A
server that is busy for more than one second in each second (100 %) gives way.

What it leaves out: a network, several runs at a time, devices that come and go, and memory of other parts.
"""

import argparse
import heapq
import resource
import time
from contextlib import suppress
from random import Random

from fedserver.config import Settings
from fedserver.coordinator.visits.cadence import poll
from shoal.core.engine.events import Event, Heard, Joined, Offer, Reduce, Reduced, Reported, Tick
from shoal.core.engine.rounds import RoundEngine, RoundPolicy
from shoal.core.errors import StaleReport
from tests.core import counting

FASTEST, SLOWEST, TICK = 15.0, 40.0, Settings.tick
"""Seconds of virtual time."""


class Fleet:
    """The real engine in virtual time. spent: its processor seconds, by what it was fed."""

    def __init__(self, devices: int, asked: int, rounds: int, seed: int, heard: float) -> None:
        policy = RoundPolicy(devices=asked, minimum=asked // 2)
        state = counting.start(counting.model(), rounds)
        self._engine = RoundEngine(counting, policy, seed, state)  # type: ignore[arg-type]
        self._chance, self._rounds, self._heard = Random(seed), rounds, heard
        self._names = [f"d{number:07}" for number in range(devices)]
        self._working: list[tuple[float, str, int, int]] = []
        self.now, self.reports = 0.0, 0
        self.spent = {"join": 0.0, "poll": 0.0, "tick": 0.0, "report": 0.0, "opening": 0.0}
        self.ticks = self.done = self.polls = 0

    def feed(self, what: str, event: Event) -> None:
        """Feed the engine, and let the devices begin what it offers. A reduction is over at once."""
        began = time.process_time()
        effects = self._engine.feed(event)
        offers = [effect for effect in effects if isinstance(effect, Offer)]
        self.spent["opening" if offers else what] += time.process_time() - began
        for offer in offers:
            ends = self.now + self._chance.uniform(FASTEST, SLOWEST)
            heapq.heappush(self._working, (ends, offer.device, offer.round, offer.attempt))
        for effect in effects:
            if isinstance(effect, Reduce):
                self.done += 1
                self.feed("tick", Reduced(effect.round, self._engine.state))

    def play(self) -> None:
        """All devices join, and then the run goes on until enough rounds are over."""
        for name in self._names:
            self.feed("join", Joined(name))
        while self.done < self._rounds:
            self.now += TICK
            self.ticks += 1
            self.feed("tick", Tick(self.now))
            while self.polls < self.now / self._heard * len(self._names):
                self.feed("poll", Heard(self._names[self.polls % len(self._names)]))
                self.polls += 1
            while self._working and self._working[0][0] <= self.now:
                _, device, number, attempt = heapq.heappop(self._working)
                self.feed("report", Heard(device))
                with suppress(StaleReport):  # its round went on without it
                    self.feed("report", Reported(device, number, attempt))
                    self.reports += 1


def pair(text: str) -> tuple[float, float]:
    """Milliseconds of a report and its task, and of a call that waits in vain."""
    report, waiting = map(float, text.split(","))
    return report, waiting


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.million")
    parser.add_argument("--devices", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--asked", type=int, default=1_000, help="devices that a round asks")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--heard", type=float, default=20.0, help="seconds between two signs of life of a device"
    )
    cost = "milliseconds of the server's processor time for a report and for a call that waits in vain"
    parser.add_argument("--cost", type=pair, default="3.7,1.2", help=cost)
    options = parser.parse_args()
    report, waiting = options.cost
    print("devices  join      poll      opening   tick      report    memory    reports  server")
    for devices in options.devices:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        fleet = Fleet(devices, min(options.asked, devices), options.rounds, options.seed, options.heard)
        fleet.play()
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        spent, reports = fleet.spent, fleet.reports / fleet.now
        engine = (spent["poll"] + spent["tick"] + spent["report"] + spent["opening"]) / fleet.now
        calls = (devices / poll(devices, Settings()) * waiting + reports * report) / 1000
        row = (
            f"{devices:7}",
            f"{1e6 * spent['join'] / devices:5.1f} us",
            f"{1e6 * spent['poll'] / fleet.polls:5.1f} us",
            f"{spent['opening'] / options.rounds:6.2f} s",
            f"{1e6 * spent['tick'] / fleet.ticks:5.0f} us",
            f"{1e6 * spent['report'] / fleet.reports:5.0f} us",
            f"{grown:5.0f} MB",
            f"{reports:5.1f}/s",
            f"{calls + engine:6.0%}",
        )
        print("  ".join(row), flush=True)


if __name__ == "__main__":
    main()
