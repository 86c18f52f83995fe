"""How soon a device finds that its data have moved, how often it is wrong, and what a fleet makes of it.

    python -m benchmarks.drift_alarm --data-dir DATA [--seeds 47,48,49,50,51] [--only home|fleet]

At home: reference and new samples go through a network that was trained on other samples, and are compared by
`shoal.core.inference.drift` and, on the same views, by two-sample Kolmogorov-Smirnov tests of all coordinates
(scipy, Bonferroni), both at a level of 1 %. Nothing was tuned on elec2 or HAPT.

    shuffled      both groups are drawn at random from one stretch: no drift, each find is a false alarm
    as recorded   the second group is what came next, where nothing is known to have happened: whatever
    changes
                  by itself within days counts as found, too
    others        what came next is something else: rotated or darker digits; elec2 after 2 May 1997, when
    trade
                  with Victoria began; HAPT from another person, or with the sensor's axes turned by a quarter

Delay: the median of how many new samples there were when the difference was first found, of those in `LOOKS`.

In the fleet: devices answer at random times, once in 92 days, as `shoal.core.privacy.noise.response` makes
them; the days until `shoal.core.server_kit.drift_answers` raises an alarm, and false ones in cluster-years in
which nothing happens.
"""

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from scipy.ndimage import rotate
from scipy.stats import ks_2samp
from sklearn.datasets import load_digits
from torch import nn

from shoal.core.inference.drift import LEVEL, chance
from shoal.core.models import mlp
from shoal.core.privacy.noise.response import EVERY_DAYS, WATCHING, wrong
from shoal.core.server_kit.drift_answers import TOLERATED, Day, movement
from shoal.core.types import Array
from shoal_lab.datasets import natural

LOOKS, PAIRS, NULLS = (48, 96, 192, 384), 4, 3
"""After how many new samples a device looks; pairs of each kind for a seed, and how often those without
drift."""
MOST = LOOKS[-1]
Views = dict[str, Array]
Through = Callable[[Array], Views]
Pair = tuple[str, Array, Array]
"""What it is, reference and what comes next, both in the order of time."""


def trained(x: Array, y: Array, seed: int, epochs: int = 20) -> Through:
    """A network that has learned this, as views of samples: latents and probabilities."""
    torch.manual_seed(seed)
    network = mlp.build(int(np.prod(x.shape[1:])), (64, 32), int(y.max()) + 1)
    inputs, labels = torch.tensor(x, dtype=torch.float32), torch.tensor(y)
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network(inputs[rows]), labels[rows]).backward()
            optimizer.step()

    def through(x: Array) -> Views:
        with torch.no_grad():
            given = torch.tensor(x, dtype=torch.float32)
            said = network(given).softmax(1).numpy()
            return {"latents": network.latent(given).numpy(), "said": said}

    return through


def _divided(x: Array, rng: np.random.Generator) -> tuple[Array, Array]:
    rows = rng.permutation(len(x))[: 2 * MOST]
    return x[rows[: len(rows) // 2]], x[rows[len(rows) // 2 :]]


def smirnov(reference: Views, present: Views) -> float:
    """The smallest p-value of all coordinates, times their number."""
    found = [
        ks_2samp(reference[name][:, each], present[name][:, each], method="asymp").pvalue
        for name in reference
        for each in range(reference[name].shape[1])
    ]
    return float(min(found) * len(found))


def digits(seed: int) -> tuple[Through, Iterator[Pair]]:
    data, rng = load_digits(), np.random.default_rng(seed)
    x, order = data.data.astype(np.float32) / 16.0, rng.permutation(1797)
    through = trained(x[order[:700]], data.target[order[:700]], seed)

    def pairs() -> Iterator[Pair]:
        for _ in range(PAIRS):
            rows = rng.permutation(order[700:])
            one, other = x[rows[:240]], x[rows[240:480]]
            turned = np.array([rotate(each.reshape(8, 8), 15, reshape=False, order=1) for each in other])
            yield from (("shuffled", *_divided(x[rows], rng)) for _ in range(NULLS))
            yield "others: turned by 15 degrees", one, turned.reshape(other.shape)
            yield "others: darker by a fifth", one, 0.8 * other
            kept = x[rows[data.target[rows] != 3]]
            yield "others: one class is missing", one, kept[-240:]

    return through, pairs()


def elec2(seed: int, data_dir: Path) -> tuple[Through, Iterator[Pair]]:
    (device,) = natural.load("elec2", data_dir, 1, 1)
    data, rng = device.stages[0], np.random.default_rng(seed)
    assert data.y is not None
    x, early = data.x, 6720
    began = int(np.flatnonzero(np.abs(np.diff(x[:, 3])) > 0.0)[0]) + 1  # Victoria's price was constant before
    through = trained(x[:early], data.y[:early], seed)

    def pairs() -> Iterator[Pair]:
        for _ in range(PAIRS):
            yield from (("shuffled", *_divided(x[early:began], rng)) for _ in range(NULLS))
            start = int(rng.integers(early, began - 2 * MOST))
            yield "as recorded", x[start : start + MOST], x[start + MOST : start + 2 * MOST]
            start = began - int(rng.integers(0, 48)) - MOST
            yield "others: trade with Victoria", x[start : start + MOST], x[began : began + MOST]

    return through, pairs()


def hapt(seed: int, data_dir: Path) -> tuple[Through, Iterator[Pair]]:
    folder = next(data_dir.rglob("hapt-windows-128x6.npz")).parent
    people, rng = natural.load("hapt", folder, 30), np.random.default_rng(seed)
    order = rng.permutation(30)
    learned = [people[each].stages[0] for each in order[:15]]
    scale = np.concatenate([each.x for each in learned]).std(axis=(0, 2), keepdims=True)
    x = np.concatenate([each.x for each in learned]) / scale
    through = trained(x, np.concatenate([each.y for each in learned if each.y is not None]), seed, 8)

    def pairs() -> Iterator[Pair]:
        rest = [people[each].stages[0].x / scale for each in order[15:]]
        for number, own in enumerate(rest[:PAIRS]):
            half, other, shuffled = len(own) // 2, rest[number - 1], rng.permutation(own)
            yield from (("shuffled", *_divided(own, rng)) for _ in range(NULLS))
            yield "as recorded", own[:half], own[half:]
            yield "others: another person", shuffled[:half], rng.permutation(other)[:half]
            yield "others: sensor turned", shuffled[:half], shuffled[half:][:, [1, 0, 2, 4, 3, 5]]

    return through, pairs()


def home(name: str, made: Callable[[int], tuple[Through, Iterator[Pair]]], seeds: list[int]) -> None:
    """A row for each kind of pair: how often it was found among all looks and pairs, and after how many
    samples."""
    found: dict[str, list[tuple[list[bool], list[bool]]]] = defaultdict(list)
    for seed in seeds:
        through, pairs = made(seed)
        for kind, reference, present in pairs:
            one, other = through(reference), through(present)
            looks = [min(each, len(present)) for each in LOOKS if each < 2 * len(present)]
            both = [[], []]  # type: list[list[bool]]
            for count in looks:
                part = {key: each[:count] for key, each in other.items()}
                both[0].append(chance(one, part) <= LEVEL)
                both[1].append(smirnov(one, part) <= LEVEL)
            found[kind].append((both[0], both[1]))
    for kind, all_of_it in found.items():
        cells = []
        for method in (0, 1):
            looks = [look for each in all_of_it for look in each[method]]
            first = [LOOKS[each[method].index(True)] if any(each[method]) else np.inf for each in all_of_it]
            delay = float(np.median(first))
            cells.append(f"{100 * np.mean(looks):.1f} %, {'none' if np.isinf(delay) else f'{delay:.0f}'}")
        print(f"| {name} | {kind} | {len(all_of_it)} | {' | '.join(cells)} |", flush=True)


def fleet(seeds: list[int]) -> None:
    flipped = wrong(WATCHING)

    def days_until(rng: np.random.Generator, devices: int, share: float, most: int) -> float:
        days: list[Day] = []
        said = flipped + (1.0 - 2.0 * flipped) * share
        for day in range(most):
            if answers := int(rng.binomial(devices, 1.0 / EVERY_DAYS)):
                days.append(Day(day, answers, int(rng.binomial(answers, said))))
                if movement(days).since is not None:
                    return day + 1.0
        return np.inf

    print("\n| devices | all have moved | a third has | false alarms: 1 in 100 and 1 in 10 say so |")
    print("|---|---|---|---|")
    for devices in (20, 50, 100, 400):
        cells = []
        for share in (0.99, 0.33):
            delays = [days_until(np.random.default_rng((seed, each)), devices, share, 730)
                      for seed in seeds for each in range(4)]  # fmt: skip
            middle = float(np.median(delays))
            cells.append("over two years" if np.isinf(middle) else f"{middle:.0f} days")
        alarms = [
            sum(days_until(np.random.default_rng((seed, 9, each)), devices, share, 365) < np.inf
                for seed in seeds for each in range(8))
            for share in (LEVEL, TOLERATED)
        ]  # fmt: skip
        print(f"| {devices} | {' | '.join(cells)} | {alarms[0]} and {alarms[1]} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--seeds", default="47,48,49,50,51")
    parser.add_argument("--only", choices=("home", "fleet"))
    asked = parser.parse_args()
    seeds = [int(each) for each in asked.seeds.split(",")]
    torch.set_num_threads(1)
    if asked.only != "fleet":
        print("| data | what comes next | pairs | energy: looks that find it, delay | KS: the same |")
        print("|---|---|---|---|---|")
        home("digits", digits, seeds)
        home("elec2", lambda seed: elec2(seed, asked.data_dir), seeds)
        home("HAPT", lambda seed: hapt(seed, asked.data_dir), seeds)
    if asked.only != "home":
        fleet(seeds)


if __name__ == "__main__":
    main()
