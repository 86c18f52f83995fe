"""What it costs that a second run groups devices by the encoder, and the descriptions, of the first.

    python -m benchmarks.second_run [--seeds 43,44,45] [--only digits,hapt] [--data-dir DIR] [--json FILE]

Three runs of FLUX's default on one fleet, with privacy=balanced: a first run; a second one with other
initial weights and more rounds that makes an encoder of its own, which no default budget pays for; and the
same second run with the basis of the first, whose devices give their descriptions again. Columns, as means
over seeds: adjusted Rand index (where the true groups are known), number of groups, and mean accuracy on the
test parts in percent.

digits has six devices of 239 images and three angles. mnist and hapt are read from --data-dir: P(X) at level
5 with ten devices of 300 images, and twelve people.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from shoal.core.algorithm import Basis, begun_with, find, measurement
from shoal.core.algorithms.flux import server as server_half
from shoal.core.algorithms.flux.state import State
from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import initial_weights
from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.privacy.accountant import R, T, Unmetered
from shoal.core.privacy.noise.chance import Entropy
from shoal.core.privacy.payment import Payment
from shoal.simulation import images
from shoal.simulation.fleet import Fleet, Holding, numbered
from shoal.simulation.images import rotate
from shoal.simulation.simulated import SimulatedDevices, spooled
from shoal_lab import models
from shoal_lab.experiment import Experiment
from shoal_lab.setting import fleet_of

RUNS = ("first", "own encoder", "kept encoder")


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


@dataclass(frozen=True)
class Play:
    """A fleet and its devices, which keep their ledgers over the runs."""

    fleet: Fleet
    devices: SimulatedDevices
    experiment: Experiment

    @classmethod
    def of(cls, data: str, folder: Path | None, seed: int) -> "Play":
        sources: dict[str, dict[str, Any]] = {
            "digits": {"dataset": "digits"},
            "mnist": {"dataset": "mnist", "shift": "px", "level": 5, "clients": 10, "samples": 300},
            "hapt": {"dataset": "hapt", "clients": 12},
        }
        asked = sources[data]
        experiment = Experiment(data_dir=folder, seed=seed, threads=1, **asked)
        fleet = _digits(seed) if data == "digits" else fleet_of(experiment)[0]
        learner = models.learner("", {}, fleet)
        devices = SimulatedDevices(find("flux")[0], fleet, learner, "cpu", seed, spooled)
        for number, name in enumerate(fleet):
            devices._contexts[name].account = Ledger(np.random.default_rng([seed, number]))
        return cls(fleet, devices, experiment)

    def run(self, rounds: int, seed: int, *bases: Basis) -> State:
        changes = {"rounds": rounds, "classes": self.fleet.classes}
        parameters = find("flux")[0].configure("default", changes)
        model = initial_weights(self.devices.learner, seed)
        state = begun_with(server_half.start(model, parameters), *bases)
        policy = RoundPolicy(minimum=len(self.fleet))
        found = simulate(server_half, state, self.devices.calls(), policy, seed, keep=spooled)  # type: ignore[arg-type]
        assert not found.failed, found.reason
        return cast(State, found.state)

    def figures(self, state: State) -> dict[str, float]:
        names = list(self.fleet)
        found = [state.assignments[name] for name in names]
        accuracy = [
            self.devices.accuracy(name, measurement(server_half, state, state.assignments[name]))  # type: ignore[arg-type]
            for name in names
        ]
        concepts = self.fleet.concepts
        known = concepts is not None and len(set(concepts)) < len(names)
        return {
            "ari": float(adjusted_rand_score(concepts, found)) if known else float("nan"),
            "groups": float(len(set(found))),
            "accuracy": 100.0 * float(np.mean(accuracy)),
        }


def _digits(seed: int) -> Fleet:
    """Six devices of 239 images to describe and 60 to test on, and three angles."""
    parts = images.digits()
    x, y = np.concatenate([part.x for part in parts]), np.concatenate([part.y for part in parts])
    order = np.random.default_rng(seed).permutation(len(x))
    holdings = []
    for number in range(6):
        own = order[number::6]
        data = Dataset(rotate(x[own], 90 * (number % 3)), y[own])
        holdings.append(Holding.steady(data.subset(slice(60, None)), data.subset(slice(60)), number % 3))
    return numbered(holdings, 10)


def measure(data: str, folder: Path | None, seed: int) -> dict[str, dict[str, float]]:
    play = Play.of(data, folder, seed)
    first = play.run(10, seed)
    assert first.basis is not None
    return {
        "first": play.figures(first),
        "own encoder": play.figures(play.run(15, seed + 1000)),
        "kept encoder": play.figures(play.run(15, seed + 1000, first.basis)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", default="43,44,45")
    parser.add_argument("--only", default="digits")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for data in asked.only.split(","):
        for seed in map(int, asked.seeds.split(",")):
            rows.append({"data": data, "seed": seed, "runs": measure(data, asked.data_dir, seed)})
            print(json.dumps(rows[-1]), flush=True)
        for run in RUNS:
            found = [row["runs"][run] for row in rows if row["data"] == data]
            shown = "  ".join(f"{name} {np.mean([one[name] for one in found]):.2f}" for name in found[0])
            print(f"{data:8} {run:13} {shown}", flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
