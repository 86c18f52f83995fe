"""How well groups are found in the descriptors of a fleet: false groups where all devices are alike, and the
adjusted Rand index where they are not.

    python -m benchmarks.grouping [--seeds 0,1,2] [--only null,shift] [--data-dir DIR] [--largest 2000]

Synthetic fleets have ten classes of ten latents. Fleets of real data have latents of a small network that was
trained on other samples of the same data, projected as in a run: digits always, MNIST and HAPT where
`--data-dir` has them. A row is a cell: the kind of fleet, its size and its privacy mode, the share of seeds
with a false group (for fleets whose devices are all alike), the mean and the lowest adjusted Rand index (for
the others), the number of groups found, and the seconds of processor time of one grouping. The last row
is the memory that grouping the largest fleet takes.
"""

import argparse
import json
import sys
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import adjusted_rand_score

from shoal.core.exchange.parts import Descriptor, FloatArray, LatentBounds, PrivacySettings
from shoal.core.exchange.privacy_modes import mode_of
from shoal.core.inference.describing import moments_of, project
from shoal.core.privacy.release import release, release_sums
from shoal.core.privacy.sums import sums_of
from shoal.core.privacy.terms import terms
from shoal.core.server_kit.fleet import groups
from shoal.core.server_kit.frozen_encoder import make_projector, public_projector
from shoal_lab.datasets import images, natural

CLASSES, DIMS, LATENTS = 10, 10, 64
NOISE_RADIUS = 6.0
"""Synthetic latents are clipped to this length before a release, in standard deviations of one sample."""

Samples = tuple[FloatArray, FloatArray]
"""Projected or raw latents, (n, width), and labels, (n,)."""


@dataclass(frozen=True)
class Cell:
    """A kind of fleet. make: from a random generator, the samples of each device, and its true group; None
    where devices differ by degrees and one group is as good as several."""

    name: str
    devices: int
    make: Callable[[np.random.Generator], tuple[list[Samples], list[int]]]
    privacy: str = "off"
    projector: Callable[[str], dict[str, np.ndarray]] | None = None


# -- synthetic fleets ----------------------------------------------------------------------------------------


def synthetic(
    devices: int,
    samples: int | Sequence[int],
    worlds: int = 1,
    shift: float = 0.0,
    classes_shifted: int = CLASSES,
    spread: float = 1.0,
    rank: float = 0.0,
    own: float = 0.0,
    shares: float = 0.0,
    label_noise: float = 0.0,
    tails: str = "normal",
) -> Callable[[np.random.Generator], tuple[list[Samples], list[int]]]:
    """Devices of `worlds` groups. samples: for each device, or sizes that are dealt in turn.

    shift: the distance of a class's mean between two worlds in each latent, in standard deviations. spread:
    the factor between the deviations of two worlds. rank: above 0, latents are correlated: their variances
    along the principal axes fall by this exponent. own: the standard deviation of each device's own effect.
    shares: above 0, the concentration of Dirichlet class shares. label_noise: the share of wrong labels.
    """

    def make(chance: np.random.Generator) -> tuple[list[Samples], list[int]]:
        weights = np.exp(-rank * np.arange(DIMS))
        turn = np.linalg.qr(chance.normal(size=(DIMS, DIMS)))[0] * np.sqrt(weights / weights.mean())
        base = 2.0 * chance.normal(size=(CLASSES, DIMS))
        places = [base.copy() for _ in range(worlds)]
        for world in range(1, worlds):
            places[world][:classes_shifted] += shift * chance.choice((-1, 1), (classes_shifted, DIMS))
        sizes = [samples] if isinstance(samples, int) else list(samples)
        fleet, truth = [], []
        for device in range(devices):
            world, count = device % worlds, sizes[(device // worlds) % len(sizes)]
            mix = chance.dirichlet(np.full(CLASSES, shares)) if shares else np.full(CLASSES, 1 / CLASSES)
            labels = chance.choice(CLASSES, count, p=mix)
            drawn = chance.normal(size=(count, DIMS))
            if tails == "heavy":
                drawn = chance.standard_t(4, size=(count, DIMS)) / np.sqrt(2.0)
            elif tails == "skewed":
                drawn = chance.exponential(size=(count, DIMS)) - 1.0
            effect = own * chance.normal(size=(CLASSES, DIMS))
            factor = spread if world % 2 else 1.0
            latents = places[world][labels] + effect[labels] + factor * (drawn @ turn.T)
            wrong = chance.random(count) < label_noise
            shown = np.where(wrong, chance.integers(0, CLASSES, count), labels)
            fleet.append((latents, shown))
            truth.append(world)
        return fleet, truth

    return make


# -- real data -----------------------------------------------------------------------------------------------


@cache
def encoded(dataset: str, folder: str) -> tuple[list[Samples], FloatArray]:
    """Latents of a data set in four worlds (for images, turned by 0, 90, 180 and 270 degrees), of a network
    that was trained on the first quarter of the samples in all worlds; and the bounds of the latents."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    inputs, labels = _raw(dataset, folder)
    order = np.random.default_rng(0).permutation(len(inputs))
    inputs, labels = inputs[order], labels[order]
    if inputs.ndim == 3:
        seen = [np.rot90(inputs, turn, (1, 2)).reshape(len(inputs), -1) for turn in range(4)]
    else:
        axis = np.random.default_rng(1).permutation(inputs.shape[1])
        seen = [inputs, inputs[:, axis]]
    quarter = len(inputs) // 4
    body = torch.nn.Sequential(
        torch.nn.Linear(seen[0].shape[1], 128),
        torch.nn.ReLU(),
        torch.nn.Linear(128, LATENTS),
        torch.nn.ReLU(),
    )
    head = torch.nn.Linear(LATENTS, CLASSES + 2)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], 1e-3)
    x = torch.tensor(np.concatenate([world[:quarter] for world in seen]), dtype=torch.float32)
    y = torch.tensor(np.tile(labels[:quarter], len(seen)))
    for _ in range(max(2, 30_000 // len(x))):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(head(body(x[batch])), y[batch]).backward()
            optimizer.step()
    with torch.no_grad():
        found = [
            body(torch.tensor(world[quarter:].copy(), dtype=torch.float32)).double().numpy() for world in seen
        ]
    bounds = np.stack([np.min(found, axis=(0, 1)), np.max(found, axis=(0, 1))])
    return [(latents, labels[quarter:]) for latents in found], bounds


def _raw(dataset: str, folder: str) -> tuple[FloatArray, FloatArray]:
    if dataset == "hapt":
        people = [stage for person in natural.load("hapt", folder, 30) for stage in person.stages]
        inputs = np.concatenate([np.asarray(data.x).reshape(len(data), -1) for data in people])
        return inputs / inputs.std(), np.concatenate([np.asarray(data.y) for data in people])
    train, _ = images.load(dataset, folder or None)
    pixels = np.asarray(train.x, np.float64)
    return pixels / pixels.max(), np.asarray(train.y)


def real(
    dataset: str, folder: str, devices: int, samples: int, kind: str
) -> Callable[[np.random.Generator], tuple[list[Samples], list[int]]]:
    """Devices with samples of a data set. kind: iid; px, four worlds; py, three sets of classes; pyx, two
    ways to name the classes; pxy, two worlds and two sets of classes each; dirichlet, shares of classes."""

    def make(chance: np.random.Generator) -> tuple[list[Samples], list[int]]:
        worlds, _ = encoded(dataset, folder)
        count = int(worlds[0][1].max()) + 1
        fleet, truth = [], []
        for device in range(devices):
            world, classes, names = 0, np.arange(count), np.arange(count)
            if kind == "px":
                world = device % len(worlds)
            elif kind == "py":
                classes = classes[classes % 3 != device % 3]
            elif kind == "pyx":
                names = np.roll(names, device % 2)
            elif kind == "pxy":
                world, classes = device % 2, classes[classes % 2 == device // 2 % 2]
            latents, labels = worlds[world]
            weights = np.isin(labels, classes).astype(float)
            if kind == "dirichlet":
                weights = chance.dirichlet(np.full(count, 1.0))[labels] / np.bincount(labels)[labels]
            chosen = chance.choice(len(labels), samples, replace=False, p=weights / weights.sum())
            fleet.append((latents[chosen], names[labels[chosen]]))
            truth.append(
                {
                    "iid": 0,
                    "dirichlet": 0,
                    "px": device % len(worlds),
                    "py": device % 3,
                    "pyx": device % 2,
                }.get(kind, device % 4)
            )
        return fleet, truth

    return make


# -- measuring -----------------------------------------------------------------------------------------------


def described(cell: Cell, fleet: Sequence[Samples], chance: np.random.Generator) -> list[Descriptor]:
    """What the devices release in the cell's privacy mode."""
    mode = mode_of(cell.privacy)
    guarantee = mode.guarantee or (1.0, 1e-6)
    settings = PrivacySettings(cell.privacy, *guarantee) if mode.calibrated else PrivacySettings(cell.privacy)
    projector = cell.projector(cell.privacy) if cell.projector else None
    found = []
    for latents, labels in fleet:
        points = project([latents], projector) if projector else latents
        if not mode.calibrated:
            found.append(release(moments_of(points, labels, CLASSES + 2), settings, "0" * 64, chance))
            continue
        radius = float(projector["radius"]) if projector else NOISE_RADIUS
        agreed = terms(settings, len(labels), CLASSES + 2)
        known = labels.astype(int) if agreed.classes else None
        exact = sums_of([(points, known)], radius, points.shape[1], agreed.classes)
        found.append(release_sums(exact, settings, agreed, "0" * 64, chance.bytes))
    return found


def measure(cell: Cell, seeds: Sequence[int]) -> dict[str, object]:
    """The figures of a cell."""
    indices, counts, seconds = [], [], []
    for seed in seeds:
        chance = np.random.default_rng([seed, cell.devices])
        fleet, truth = cell.make(chance)
        descriptors = described(cell, fleet, chance)
        begun = time.process_time()
        labels = groups(descriptors)
        seconds.append(time.process_time() - begun)
        counts.append(int(labels.max()) + 1)
        indices.append(float(adjusted_rand_score(truth, labels)))
    alike = len(set(truth)) == 1
    return {
        "cell": cell.name,
        "devices": cell.devices,
        "privacy": cell.privacy,
        "false": float(np.mean(np.array(counts) > 1)) if alike else None,
        "ari": None if alike else float(np.mean(indices)),
        "lowest": None if alike else float(np.min(indices)),
        "groups": f"{min(counts)}-{max(counts)}",
        "seconds": float(np.median(seconds)),
    }


def cells(largest: int, folder: str) -> Iterator[Cell]:
    """All cells, those of fleets that are alike first."""
    sizes = [size for size in (10, 20, 50, 100, 200, 500, 1000, 2000) if size <= largest]
    skewed = (20, 80, 400, 800)
    for devices in sizes:
        for samples in (20, 60, 300, 6000):
            if devices * samples <= 1_200_000:
                yield Cell(f"null n={samples}", devices, synthetic(devices, samples))
    for devices in (10, 20, 100, 200):
        yield Cell("null sizes 20-800", devices, synthetic(devices, skewed))
        yield Cell("null rank 4.4", devices, synthetic(devices, 300, rank=0.45))
        yield Cell("null rank 2.5", devices, synthetic(devices, 300, rank=0.9))
        yield Cell("null heavy tails", devices, synthetic(devices, 200, tails="heavy"))
        yield Cell("null skewed latents", devices, synthetic(devices, 200, tails="skewed"))
        yield Cell("null label noise 20 %", devices, synthetic(devices, 200, label_noise=0.2))
        yield Cell("null own effects 0.1", devices, synthetic(devices, 300, own=0.1))
        yield Cell("null Dirichlet 1.0", devices, synthetic(devices, 300, shares=1.0))
    for privacy in ("balanced", "strict"):
        for devices in (10, 50, 100):
            for samples in (300, 2000):
                yield Cell(f"null n={samples}", devices, synthetic(devices, samples), privacy)
    for devices in [size for size in (10, 40, 200, 2000) if size <= largest]:
        yield Cell("shift 0.5, 4 worlds", devices, synthetic(devices, 200, 4, 0.5))
        yield Cell("shift 1.0 in 3 classes", devices, synthetic(devices, 300, 2, 1.0, 3))
        yield Cell("shift 0.5, sizes 20-800", devices, synthetic(devices, skewed, 4, 0.5))
        yield Cell("shift 0.6, rank 4.4", devices, synthetic(devices, 300, 3, 0.6, rank=0.45))
        yield Cell("spread 1.5 only", devices, synthetic(devices, 400, 2, spread=1.5))
        yield Cell("shift 0.6, label noise", devices, synthetic(devices, 300, 3, 0.6, label_noise=0.2))
    yield Cell("shift 0.6, 20 worlds", 200, synthetic(200, 200, 20, 0.6))
    yield Cell("shift 0.8, 10 worlds of one", 10, synthetic(10, 300, 10, 0.8))
    for privacy in ("balanced", "strict"):
        for devices in (10, 40, 100):
            yield Cell("shift 1.0, 4 worlds", devices, synthetic(devices, 2000, 4, 1.0), privacy)
    yield from _real_cells(folder)


def _real_cells(folder: str) -> Iterator[Cell]:
    sets = ["digits", *(["mnist", "hapt"] if folder else [])]
    for dataset in sets:

        def projector(privacy: str, dataset: str = dataset) -> dict[str, np.ndarray]:
            if mode_of(privacy).calibrated:
                return dict(public_projector(LATENTS, DIMS))
            low, high = encoded(dataset, folder)[1]
            return dict(make_projector(LatentBounds(low, high), LATENTS, DIMS))

        many = {"digits": (10, 20), "mnist": (10, 50, 100, 200), "hapt": (10, 30)}[dataset]
        for devices in many:
            for samples in (60, 200):
                for kind in ("iid", "dirichlet", "px", "py", "pyx", "pxy"):
                    make = real(dataset, folder, devices, samples, kind)
                    yield Cell(f"{dataset} {kind} n={samples}", devices, make, "off", projector)
        if dataset == "mnist":
            for privacy in ("balanced", "strict"):
                for kind in ("iid", "px", "pxy"):
                    make = real(dataset, folder, 40, 1500, kind)
                    yield Cell(f"{dataset} {kind} n=1500", 40, make, privacy, projector)


def memory(devices: int) -> float:
    """The MB that grouping takes beyond the descriptors themselves, at its peak."""
    chance = np.random.default_rng(0)
    cell = Cell("memory", devices, synthetic(devices, 60, 5, 0.8))
    fleet = described(cell, cell.make(chance)[0], chance)
    tracemalloc.start()
    groups(fleet)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="0,1,2,3,4,5,6,7,8,9", help="comma-separated")
    parser.add_argument("--only", default="", help="run only cells whose names contain one of these words")
    parser.add_argument("--data-dir", default="", help="the folder with mnist and hapt")
    parser.add_argument("--largest", type=int, default=2000, help="the largest number of devices")
    parser.add_argument("--json", type=Path, help="write the rows to this file too")
    options = parser.parse_args()
    words = [word for word in options.only.split(",") if word]
    rows = []
    print(f"{'cell':32}{'devices':>8}{'privacy':>10}{'false':>8}{'ARI':>7}{'lowest':>8}{'groups':>8}{'s':>8}")
    for cell in cells(options.largest, options.data_dir):
        if words and not any(word in cell.name for word in words):
            continue
        row = measure(cell, [int(seed) for seed in options.seeds.split(",")])
        rows.append(row)
        shown = ["-" if row[key] is None else f"{row[key]:.2f}" for key in ("false", "ari", "lowest")]
        print(
            f"{row['cell']:32}{row['devices']:>8}{row['privacy']:>10}{shown[0]:>8}{shown[1]:>7}{shown[2]:>8}"
            f"{row['groups']:>8}{row['seconds']:>8.2f}",
            flush=True,
        )
    if not words:
        print(f"memory of grouping {options.largest} devices: {memory(options.largest):.0f} MB")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    sys.exit(0)


if __name__ == "__main__":
    main()
