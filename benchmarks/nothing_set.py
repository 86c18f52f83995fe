"""What training with nothing set is worth, beside the best settings that are found by hand.

    python -m benchmarks.nothing_set --out FILE [--data-dir DIR] [--sets wine,cancer] [--samples 30,300]
        [--networks default,small] [--seeds 47,...,51] [--tuned-on 43,...,46] [--minutes M]

Each cell is a data set, a network, a number of samples on each of eight devices, and FLUX or FedAvg. By hand
there are twelve settings: SGD with three rates and two batch sizes, and x raw or standardized by the mean and
deviation of all devices' training samples. The best of them in the mean over the seeds `--tuned-on` is the
hand's choice, and is measured on `--seeds` beside the default. How inputs are scaled was chosen on tables
among these, breast cancer above all, at seeds up to 42; nothing else in Shoal was chosen on them. Each run is
one line of FILE; what is there is not run again, so the program may be stopped at any time.

    mnist      images of four rotations (needs --data-dir)
    elec2      prices of the hours of a day, a table in one scale (needs --data-dir)
    hapt       twelve activities of eight people, each person a device (needs --data-dir)
    cancer     breast cancer, 30 columns in raw units, half of the devices in other units
    wine       three wines, 13 columns in raw units
    diabetes   numbers to predict, in raw units, from 10 columns
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
from sklearn import datasets as bundled
from torch import nn

from shoal.core.errors import ShoalError
from shoal.simulation.fleet import Fleet
from shoal.simulation.images import rotate
from shoal.simulation.simulate import simulate
from shoal_lab.datasets import images, natural

DEVICES, ROUNDS = 8, 20
BY_HAND = [
    {"inputs": "raw", "scaled": scaled, "learning_rate": rate, "batch_size": size}
    for scaled, rate, size in itertools.product((False, True), (0.01, 0.05, 0.2), (8, 32))
]
NOTHING: dict[str, Any] = {}
Rows = tuple[np.ndarray, ...]
Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Source:
    """devices: from samples of each and a seed to each device's (x, y, x_test, y_test). numbers: whether y
    are numbers to predict."""

    devices: Callable[[int, int, Path | None], list[Rows]]
    numbers: bool = False


def dealt(x: np.ndarray, y: np.ndarray, samples: int, seed: int, test: int) -> Iterator[Rows]:
    """Different rows for each device, as many as there are, and one test part for all."""
    order = np.random.default_rng(seed).permutation(len(x))
    apart, rest = order[:test], order[test:]
    each = min(samples, len(rest) // DEVICES)
    for number in range(DEVICES):
        own = rest[number * each : (number + 1) * each]
        yield x[own], y[own], x[apart], y[apart]


def mnist(samples: int, seed: int, folder: Path | None) -> list[Rows]:
    train, _ = images.load("mnist", folder)
    assert train.y is not None
    chance = np.random.default_rng(seed).permutation(len(train))[: DEVICES * samples + 500]
    x, y = train.x[chance][:, None].astype(np.float32) / 255, train.y[chance]
    found = enumerate(dealt(x, y, samples, seed, 500))
    return [(rotate(a, 90 * (n % 4)), b, rotate(c, 90 * (n % 4)), d) for n, (a, b, c, d) in found]


def elec2(samples: int, seed: int, folder: Path | None) -> list[Rows]:
    return parts_of(natural.load("elec2", folder, DEVICES), samples, seed)


def hapt(samples: int, seed: int, folder: Path | None) -> list[Rows]:
    """Eight of the thirty people, other ones with each seed. A person has 230 to 320 windows."""
    people = natural.load("hapt", folder, natural.PEOPLE)
    chosen = np.random.default_rng(seed).permutation(len(people))[:DEVICES]
    return parts_of([people[number] for number in chosen], samples, seed)


def parts_of(devices: list[natural.NaturalDevice], samples: int, seed: int) -> list[Rows]:
    found = list[Rows]()
    for number, one in enumerate(devices):
        chance = np.random.default_rng((seed, number)).permutation(len(one.stages[0]))[:samples]
        own, test = one.stages[0].subset(chance), one.test.subset(slice(0, 1000))
        assert own.y is not None
        assert test.y is not None
        found.append((own.x, own.y, test.x, test.y))
    return found


def cancer(samples: int, seed: int, folder: Path | None) -> list[Rows]:
    x, y = bundled.load_breast_cancer(return_X_y=True)
    found = enumerate(dealt(x, y, samples, seed, 200))
    return [(a * (1, 25.4)[n % 2], b, c * (1, 25.4)[n % 2], d) for n, (a, b, c, d) in found]


def wine(samples: int, seed: int, folder: Path | None) -> list[Rows]:
    x, y = bundled.load_wine(return_X_y=True)
    return list(dealt(x, y, samples, seed, 50))


def diabetes(samples: int, seed: int, folder: Path | None) -> list[Rows]:
    x, y = bundled.load_diabetes(return_X_y=True)
    return list(dealt(x, y, samples, seed, 120))


SOURCES = {
    "mnist": Source(mnist),
    "elec2": Source(elec2),
    "hapt": Source(hapt),
    "cancer": Source(cancer),
    "wine": Source(wine),
    "diabetes": Source(diabetes, numbers=True),
}


def fleet_of(source: Source, samples: int, seed: int, folder: Path | None, scaled: bool) -> Fleet:
    devices = source.devices(samples, seed, folder)
    if scaled:
        rows = np.concatenate([each[0] for each in devices])
        axes = (0,) if rows.ndim == 2 else (0, *range(2, rows.ndim))
        mean, deviation = rows.mean(axes, keepdims=True), rows.std(axes, keepdims=True) + 1e-8
        devices = [((a - mean) / deviation, b, (c - mean) / deviation, d) for a, b, c, d in devices]
    typed = [(a.astype(np.float32), b, c.astype(np.float32), d) for a, b, c, d in devices]
    return Fleet({f"device-{n}": each for n, each in enumerate(typed)}, regression=source.numbers)


def small(fleet: Fleet, numbers: bool) -> Callable[[], nn.Module]:
    """A network of one hidden layer, beside the one that the library takes by itself."""
    inputs, outputs = int(np.prod(fleet.shape)), 1 if numbers else fleet.classes
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(inputs, 48), nn.ReLU(), nn.Linear(48, outputs))


def trained(cell: Settings, setting: Settings, seed: int, folder: Path | None) -> dict[str, Any]:
    """One run: the mean accuracy of the devices, in percent, and its verdict."""
    source, changes = SOURCES[cell["set"]], dict(setting)
    fleet = fleet_of(source, cell["samples"], seed, folder, changes.pop("scaled", False))
    own: dict[str, Any] = {"model": small(fleet, source.numbers), "latent": "2"}
    network = own if cell["network"] == "small" else {}
    started, accuracy, learned = time.perf_counter(), 0.0, None
    try:
        result = simulate(cell["algorithm"], fleet, seed=seed, rounds=ROUNDS, **network, **changes)
        accuracy = 100.0 * result.accuracy.mean
        learned = result.verdict.learned if result.verdict else None
    except ShoalError as error:  # a rate by hand that is far too high
        print(f"  {cell['set']}, {setting}: {error}")
    return {
        **cell,
        "setting": dict(setting),
        "seed": seed,
        "accuracy": accuracy,
        "learned": learned,
        "seconds": time.perf_counter() - started,
    }


class Runs:
    """The lines of a file, by what was run."""

    def __init__(self, path: Path) -> None:
        self._path, self._found = path, dict[str, dict[str, Any]]()
        for line in path.read_text().splitlines() if path.exists() else ():
            row = json.loads(line)
            self._found[self._key(row, row["setting"], row["seed"])] = row

    @staticmethod
    def _key(cell: Settings, setting: Settings, seed: int) -> str:
        named = [cell[name] for name in ("set", "network", "samples", "algorithm")]
        return json.dumps([*named, setting, seed], sort_keys=True)

    def of(self, cell: Settings, setting: Settings, seed: int, folder: Path | None) -> float:
        key = self._key(cell, setting, seed)
        if key not in self._found:
            row = self._found[key] = trained(cell, setting, seed, folder)
            with self._path.open("a") as file:
                file.write(json.dumps(row) + "\n")
        return float(self._found[key]["accuracy"])


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", default=",".join(SOURCES))
    parser.add_argument("--networks", default="default,small")
    parser.add_argument("--algorithms", default="flux,fedavg")
    parser.add_argument("--samples", type=numbers, default=[30, 300])
    parser.add_argument("--seeds", type=numbers, default=[47, 48, 49, 50, 51])
    parser.add_argument("--tuned-on", type=numbers, default=[43, 44, 45, 46])
    parser.add_argument("--minutes", type=float, default=1e9)
    given = parser.parse_args()
    runs, ends, differences = Runs(given.out), time.monotonic() + 60.0 * given.minutes, list[float]()
    print("set       network   samples algorithm  nothing  by hand    difference, and the settings by hand")
    names = given.sets.split(","), given.networks.split(","), given.samples, given.algorithms.split(",")
    for name, network, samples, algorithm in itertools.product(*names):
        if time.monotonic() > ends:
            print("time is up; the same command continues")
            break
        cell = {"set": name, "network": network, "samples": samples, "algorithm": algorithm}

        def accuracies(setting: Settings, seeds: list[int], cell: dict[str, Any] = cell) -> list[float]:
            return [runs.of(cell, setting, seed, given.data_dir) for seed in seeds]

        best = max(BY_HAND, key=lambda setting: fmean(accuracies(setting, given.tuned_on)))
        own, hand = accuracies(NOTHING, given.seeds), accuracies(best, given.seeds)
        apart = [one - other for one, other in zip(own, hand, strict=True)]
        differences.append(fmean(apart))
        error = stdev(apart) / len(apart) ** 0.5 if len(apart) > 1 else float("nan")
        print(
            f"{name:<10}{network:<9}{samples:>8}{algorithm:>10}{fmean(own):>9.1f}{fmean(hand):>9.1f}"
            f"{fmean(apart):>+8.1f} +- {error:.1f}   {best}",
            flush=True,
        )
    if differences:
        print(
            f"mean difference {fmean(differences):+.2f}, worst {min(differences):+.1f}, "
            f"{len(differences)} cells"
        )


if __name__ == "__main__":
    main()
