"""Fleets of which a part stalls: python -m tests.fleets.stalls [--rounds N] [--share 0.3] [--seed N]

A device that stalls takes its tasks and gives signs of life, and never answers. The time of the run is
compared with that of the same fleet in which all devices answer.
"""

import argparse
import math
import sys
import time
from dataclasses import dataclass
from random import Random

from shoal.core.engine.rounds import RoundPolicy
from shoal.core.exchange.messages import Message, Trained
from shoal.core.types import DeviceId
from tests.core import counting
from tests.fleets.virtual import Device, VirtualFleet

FASTEST, SLOWEST = 15.0, 40.0
"""Seconds that a task takes; each device has a speed of its own, and each task varies by a tenth."""


@dataclass(frozen=True)
class Ran:
    """How a run went. closed: the share of its rounds that had a result. took: virtual seconds. spent:
    seconds of this machine's processor. reported: how many reports a round had, on average."""

    failed: bool
    closed: float
    took: float
    spent: float
    reported: float


def ran(devices: int, share: float, rounds: int, policy: RoundPolicy, seed: int) -> Ran:
    """A run of a fleet of which this share stalls."""
    chance = Random(f"stalls {seed}")
    names = [f"d{number}" for number in range(devices)]
    speeds = {name: chance.uniform(FASTEST, SLOWEST) for name in names}
    stalled = {*chance.sample(names, round(share * devices))}

    def of(name: DeviceId) -> Device:
        def work(number: int) -> float | None:
            varied = Random(f"{seed} {name} {number}").uniform(0.9, 1.1)
            return None if name in stalled else speeds[name] * varied

        return Device(name, work)

    state = counting.start(counting.model(), rounds)
    began = time.process_time()
    fleet = VirtualFleet(counting, state, policy, list(map(of, names)), _answer, seed).run()
    spent = time.process_time() - began
    closed = sum(not each.abandoned for each in fleet.rounds)
    reported = sum(len(each.reported) for each in fleet.rounds) / max(1, closed)
    return Ran(fleet.failed is not False, closed / len(fleet.rounds), fleet.now, spent, reported)


def _answer(device: DeviceId, message: Message, seed: int) -> Message:
    assert message.kind == "train"
    return ANSWER


ANSWER = Trained(counting.model(1.0), examples=1, loss=0.5)


def policies(devices: int) -> dict[str, RoundPolicy]:
    """Those that are tried: the default one, which asks all; and half of the fleet, with and without more."""
    half = max(1, devices // 2)
    return {
        "default": RoundPolicy(),
        "half": RoundPolicy(devices=half, minimum=max(1, half // 2)),
        "half, x 1.5": RoundPolicy(devices=half, minimum=max(1, half // 2), oversample=1.5),
    }


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fleets.stalls")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--share", type=float, default=0.3)
    parser.add_argument("--devices", type=int, nargs="*", default=[10, 100, 1000])
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    print(f"{given.rounds} rounds, {given.share:.0%} of the devices stall, seed {given.seed}")
    print("devices  policy       rounds closed  reports a round  quiet time  time    ratio  processor time")
    worst = 0.0
    for devices in given.devices:
        for name, policy in policies(devices).items():
            quiet = ran(devices, 0.0, given.rounds, policy, given.seed)
            found = ran(devices, given.share, given.rounds, policy, given.seed)
            ratio = math.inf if found.failed else found.took / quiet.took
            worst = max(worst, ratio if name == "default" else 0.0)
            print(
                f"{devices:7}  {name:11}  {found.closed:13.0%}  {found.reported:15.1f}  {quiet.took:8.0f} s  "
                f"{found.took:4.0f} s  {ratio:5.2f}  {found.spent:10.2f} s",
                flush=True,
            )
    return 0 if worst <= 1.5 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
