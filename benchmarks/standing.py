"""A series of runs on data that drift, beside starting from nothing each day.

    python -m benchmarks.standing [--seeds 47,48,49] [--only digits,elec2] [--data-dir DIR] [--json FILE]

Five days of FLUX's default with privacy=balanced. On each day after the first, two of three devices have new
data; the others keep theirs.

fresh     every day a run of 10 rounds by all devices, that begins with untrained weights, and describes data
          by the encoder of the day before, as a server has it do
series    every day a run that goes on from that of the day before, 10 rounds by the devices with new data
series-3  the same in 3 rounds

Columns, of the days after the first, as means over seeds: mean accuracy of all devices on their test parts in
percent, after each day's run; kilobytes that one device sends and fetches a day; and the epsilon that one
device has paid for descriptions in all five days, at delta 1e-6.

digits: six devices, each day 239 other images and 60 to test on, upright or turned by 90 degrees, and all of
them by 9 degrees more each day. elec2 is read from --data-dir: eight devices that share the half-hours of a
day, whose days are five stretches of time, each tested on the next.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from shoal.core.algorithm import begun_with, find, measurement
from shoal.core.algorithms.flux import server as server_half
from shoal.core.algorithms.flux.state import State
from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import initial_weights
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.privacy.accountant import R, T, Unmetered
from shoal.core.privacy.cost import total
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import Payment
from shoal.core.server_kit.going_on import first_state
from shoal.core.types import DeviceId
from shoal.simulation import images
from shoal.simulation.fleet import Fleet, Holding, numbered
from shoal.simulation.images import rotate
from shoal.simulation.simulated import SimulatedDevices, spooled
from shoal_lab import models
from shoal_lab.datasets import natural

DAYS, ROUNDS = 5, 10
WAYS = {"fresh": 0, "series": ROUNDS, "series-3": 3}
"""The rounds of a run that goes on; 0: each begins with nothing learned."""


class Ledger(Unmetered):
    """Gives a release again where the same is ordered, as a device's ledger does."""

    def __init__(self, noise: np.random.Generator) -> None:
        super().__init__(noise.bytes)
        self._made: list[tuple[Payment, Any]] = []

    def pay(self, payment: Payment, exact: Callable[[], T], noised: Callable[[T, Entropy], R]) -> R:
        for made, answer in self._made:
            if made.answers(payment):
                return cast(R, answer)
        self._made.append((payment, super().pay(payment, exact, noised)))
        return cast(R, self._made[-1][1])


def has_news(number: int, day: int) -> bool:
    return day == 0 or (number + day) % 3 > 0


def digits(seed: int) -> list[Fleet]:
    parts = images.digits()
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    held, days = dict[int, Holding](), list[Fleet]()
    for day in range(DAYS):
        order = np.random.default_rng([seed, day]).permutation(len(x))
        for number in filter(lambda each: has_news(each, day), range(6)):
            own = order[number::6]
            data = Dataset(rotate(x[own], 90 * (number % 2) + 9 * day), y[own])
            held[number] = Holding.steady(data.subset(slice(60, None)), data.subset(slice(60)), number % 2)
        days.append(numbered([held[number] for number in range(6)], 10))
    return days


def elec2(folder: Path | None) -> list[Fleet]:
    devices, days = natural.load("elec2", folder, 8, DAYS), list[Fleet]()
    held = dict[int, Holding]()
    for day in range(DAYS):
        for number, device in enumerate(devices):
            if has_news(number, day):
                following = (*device.stages, device.test)[day + 1]
                held[number] = Holding.steady(device.stages[day], following, number)
        days.append(numbered([held[number] for number in range(len(devices))], 2))
    return days


def play(days: Sequence[Fleet], rounds: int, seed: int) -> dict[str, float]:
    """Five days one way, whose devices keep their ledgers."""
    card, _ = find("flux")
    accounts = {name: Ledger(np.random.default_rng([seed, n])) for n, name in enumerate(days[0])}
    learner, state = models.learner("", {}, days[0]), None
    accuracies, sent = list[float](), Counter[DeviceId]()
    for day, fleet in enumerate(days):
        devices = SimulatedDevices(card, fleet, learner, "cpu", seed, spooled)
        for name in fleet:
            devices._contexts[name].account = accounts[name]
        asked = [name for number, name in enumerate(fleet) if not rounds or has_news(number, day)]
        parameters = card.configure(
            "default", {"rounds": rounds if rounds and day else ROUNDS, "classes": fleet.classes}
        )
        if state is None or not rounds:
            bases: list[Any] = [state.basis] if state is not None and state.basis is not None else []
            model = initial_weights(learner, seed + 1000 * day)
            first = begun_with(server_half.start(model, parameters), *bases)
        else:
            first = first_state(cast(Any, server_half), state, parameters)
        calls = {name: call for name, call in devices.calls().items() if name in asked}
        policy = RoundPolicy(minimum=len(asked))
        found = simulate(server_half, first, calls, policy, seed + day, keep=spooled)  # type: ignore[arg-type]
        assert not found.failed, found.reason
        state = cast(State, found.state)
        if day:
            accuracies.append(accuracy(devices, state, fleet))
            sent.update(found.up)
            sent.update(found.down)
    paid = [total(payment.cost for payment, _ in each._made).epsilon(1e-6) for each in accounts.values()]
    return {
        "accuracy": float(np.mean(accuracies)),
        "kilobytes": sum(sent.values()) / 1000 / len(days[0]) / (DAYS - 1),
        "epsilon": float(np.mean(paid)),
    }


def accuracy(devices: SimulatedDevices, state: State, fleet: Mapping[str, Holding]) -> float:
    tasks = {key: measurement(cast(Any, server_half), state, key) for key in state.models}
    return 100.0 * float(np.mean([devices.accuracy(name, tasks[state.assignments[name]]) for name in fleet]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="47,48,49")
    parser.add_argument("--only", default="digits")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for data in asked.only.split(","):
        for seed in map(int, asked.seeds.split(",")):
            days = digits(seed) if data == "digits" else elec2(asked.data_dir)
            rows.append(
                {
                    "data": data,
                    "seed": seed,
                    **{way: play(days, rounds, seed) for way, rounds in WAYS.items()},
                }
            )
            print(json.dumps(rows[-1]), flush=True)
        for way in WAYS:
            own = [cast(Any, row[way]) for row in rows if row["data"] == data]
            shown = "  ".join(f"{name} {np.mean([one[name] for one in own]):.2f}" for name in own[0])
            print(f"{data:8} {way:10} {shown}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
