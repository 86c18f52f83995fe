"""Groups of devices that have numbers to predict: FLUX with nothing set beside one model for all.

    python -m benchmarks.groups_of_numbers [--seeds 47,48] [--samples 40,200]

Friedman's function of ten columns, five of which count, on eight devices. Half of them have it otherwise:

    alike      no device differs
    mirrored   the same samples have mirrored numbers
    shifted    their numbers are higher by 6, a deviation and more
    low, high  one half has samples of low numbers, the other of high ones
"""

import argparse
from collections.abc import Callable, Mapping

import numpy as np
import torch
from sklearn.datasets import make_friedman1

import shoal
from shoal.simulation.simulate import simulate

DEVICES = 8
Rows = tuple[np.ndarray, np.ndarray]


def rows(samples: int, seed: int) -> list[Rows]:
    x, y = make_friedman1(samples * DEVICES, noise=1.0, random_state=seed)
    return [(x[first::DEVICES].astype(np.float32), y[first::DEVICES]) for first in range(DEVICES)]


def alike(samples: int, seed: int) -> list[Rows]:
    return rows(samples, seed)


def mirrored(samples: int, seed: int) -> list[Rows]:
    return [(x, y if number % 2 else 28.0 - y) for number, (x, y) in enumerate(rows(samples, seed))]


def shifted(samples: int, seed: int) -> list[Rows]:
    return [(x, y + 6.0 * (number % 2)) for number, (x, y) in enumerate(rows(samples, seed))]


def low_and_high(samples: int, seed: int) -> list[Rows]:
    found = []
    for number, (x, y) in enumerate(rows(2 * samples, seed)):
        order, most = np.argsort(y), int(1.3 * samples)
        half = order[:most] if number % 2 else order[-most:]
        chosen = np.random.default_rng(number).permutation(half)[:samples]
        found.append((x[chosen], y[chosen]))
    return found


FLEETS: Mapping[str, Callable[[int, int], list[Rows]]] = {
    "alike": alike,
    "mirrored": mirrored,
    "shifted": shifted,
    "low, high": low_and_high,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.groups_of_numbers", description=__doc__)
    parser.add_argument("--seeds", default="47,48")
    parser.add_argument("--samples", default="40,200")
    given = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'fleet':<12}{'samples':>8}{'seed':>6}{'flux':>8}{'one model':>11}{'groups':>8}")
    for name, fleet_of in FLEETS.items():
        for samples in map(int, given.samples.split(",")):
            for seed in map(int, given.seeds.split(",")):
                devices = {f"d{number}": each for number, each in enumerate(fleet_of(samples, seed))}
                fleet = shoal.Fleet(devices, regression=True)
                flux, one = (simulate(algorithm, fleet, seed=seed) for algorithm in ("flux", "fedavg"))
                print(
                    f"{name:<12}{samples:>8}{seed:>6}{100 * flux.accuracy.mean:>8.1f}"
                    f"{100 * one.accuracy.mean:>11.1f}{len(set(flux.clusters.values())):>8}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
