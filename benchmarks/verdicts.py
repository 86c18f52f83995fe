"""How often a run's verdict says otherwise than the truth.

    python -m benchmarks.verdicts --out FILE [--data-dir DIR] [--sets digits,cancer] [--seeds 47,...,51]

Each run is a small fleet of FedAvg or FLUX. From the seed follow whether its devices have all classes, two or
one each, how many samples they have, and whether anything can be learned: in some runs labels are shuffled,
training is one short round, or its rate is far too low or too high. The verdict sees the few test samples of
each device. The truth is measured on hundreds or thousands of samples of each device's distribution, which
the run never sees: the mean gain over the commonest class of the device's cluster, or the explained variance
where labels are numbers. `judged` is the verdict that a server gives, which sees no labels.

A verdict is false if it is "learned" where the true gain is not above 0, or "nothing was learned" where it is
at least two points. Each run is one line of FILE; what is there is not run again.
"""

import argparse
import json
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import datasets as bundled

from shoal.core.data.seeds import generator
from shoal.core.errors import ShoalError
from shoal.core.verdict import LITTLE, Reported, judged
from shoal.simulation.fleet import Fleet
from shoal.simulation.simulate import SimulationResult, simulate
from shoal_lab.datasets import images, natural

Rows = tuple[np.ndarray, np.ndarray]
MOST = 3000
"""Samples by which the truth is measured, at most."""
MAX_CLASSES = 4
"""Classes that a fleet has, so that few samples can show something."""
TRAININGS: dict[str, dict[str, Any]] = {
    "nothing set": {},
    "one round": {"rounds": 1, "epochs": 1, "batch_size": 32},
    "rate too low": {"learning_rate": 1e-6, "batch_size": 16, "rounds": 4},
    "rate too high": {"learning_rate": 30.0, "batch_size": 16, "rounds": 4, "optimizer": "sgd"},
}


def digits(folder: Path | None) -> Rows:
    x, y = bundled.load_digits(return_X_y=True)
    return x / 16.0, y


def picture(name: str) -> Callable[[Path | None], Rows]:
    def read(folder: Path | None) -> Rows:
        train, _ = images.load(name, folder)
        assert train.y is not None
        return train.x[:20000].reshape(-1, 784)[:, ::3] / 255.0, train.y[:20000]

    return read


def table(load: Callable[..., Rows]) -> Callable[[Path | None], Rows]:
    return lambda folder: load(return_X_y=True)


def elec2(folder: Path | None) -> Rows:
    parts = [each.stages[0] for each in natural.load("elec2", folder, 8)]
    return np.concatenate([each.x for each in parts]), np.concatenate([each.y for each in parts])


def demand(folder: Path | None) -> Rows:
    """The demand for electricity from the time of day, prices and the demand next door: numbers."""
    x, _ = elec2(folder)
    return np.delete(x, 2, axis=1), x[:, 2].astype(float)


SETS: dict[str, Callable[[Path | None], Rows]] = {
    "digits": digits,
    "cancer": table(bundled.load_breast_cancer),
    "diabetes": table(bundled.load_diabetes),
    "mnist": picture("mnist"),
    "fashion-mnist": picture("fashion-mnist"),
    "elec2": elec2,
    "demand": demand,
}


def drawn(name: str, seed: int, folder: Path | None) -> tuple[dict[str, Any], Fleet, dict[str, Rows]]:
    """What the seed makes of a data set: in words, the fleet, and each device's samples for the truth."""
    x, y = SETS[name](folder)
    chance, numbers = generator(seed, "verdicts", name), y.dtype.kind == "f"
    order = chance.permutation(len(x))
    x, y = x[order].astype(np.float32), y[order]
    kept = chance.permutation(len(np.unique(y)))[:MAX_CLASSES] if not numbers else None
    if kept is not None:
        inside = np.isin(y, kept)
        x, y = x[inside], np.searchsorted(np.sort(kept), y[inside])
    ways = [*TRAININGS, "nothing set", "nothing set", "shuffled"]
    training = ways[chance.integers(len(ways))]
    if training == "shuffled":
        y = chance.permutation(y)
    devices, samples, shown = (int(chance.integers(*span)) for span in ((3, 9), (16, 41), (8, 61)))
    classes = 0 if kept is None else int(chance.choice([len(kept), len(kept), 2, 1]))
    fleet, hidden, free = {}, {}, np.arange(len(x)) >= len(x) // 2
    for number in range(devices):
        own = np.ones(len(x), bool)
        if kept is not None and classes < len(kept):
            own = np.isin(y, chance.choice(len(kept), classes, replace=False))
        rest = np.flatnonzero(own & free)[: samples + shown]
        if len(rest) < samples + 5:  # so small a set has no more of these classes
            continue
        free[rest] = False
        mine, test, apart = rest[:samples], rest[samples:], np.flatnonzero(own[: len(x) // 2])[:MOST]
        fleet[f"device-{number}"] = (x[mine], y[mine], x[test], y[test])
        hidden[f"device-{number}"] = (x[apart], y[apart])
    if not numbers:
        hidden = as_numbered(hidden, fleet)
    facts = {
        "training": training, "devices": len(fleet), "samples": samples, "test": shown, "classes": classes,
        "algorithm": str(chance.choice(["fedavg", "flux"])),
    }  # fmt: skip
    return facts, Fleet(fleet, regression=numbers), hidden


def as_numbered(hidden: dict[str, Rows], fleet: Mapping[str, tuple[np.ndarray, ...]]) -> dict[str, Rows]:
    """The samples for the truth, their classes numbered as in a fleet: without those that no device has."""
    there = np.unique(np.concatenate([part for _, y, _, shown in fleet.values() for part in (y, shown)]))
    found = {}
    for name, (x, y) in hidden.items():
        known = np.isin(y, there)
        found[name] = (x[known], np.searchsorted(there, y[known]))
    return found


def tried(name: str, seed: int, folder: Path | None) -> dict[str, Any]:
    """One run: what it was, both verdicts, and the true gain."""
    facts, fleet, hidden = drawn(name, seed, folder)
    changes = TRAININGS.get(facts["training"], {})
    try:
        result = simulate(facts["algorithm"], fleet, seed=seed, **{"rounds": 6, **changes})
    except ShoalError as error:
        return {"set": name, "seed": seed, **facts, "failed": str(error)}
    found = result.verdict
    assert found is not None
    losses = [each.loss for each in result.history if each.trained and each.loss is not None]
    server = judged(reports(result), losses, bool(changes))
    assert server is not None
    return {
        "set": name, "seed": seed, **facts, "learned": found.learned, "judged": server.learned,
        "gain": found.gain, "error": found.error, "true": true_gain(result, hidden), "text": str(found),
    }  # fmt: skip


def reports(result: SimulationResult) -> list[Reported]:
    """What devices report to a server, which sees no labels."""
    found = []
    for name, accuracy in result.accuracy.items():
        y = result.fleet[name].test.y
        assert y is not None
        classes = 0 if y.dtype.kind == "f" else result.fleet.classes
        commonest = float(np.bincount(y).max() / len(y)) if classes else 0.0
        found.append(Reported(accuracy, result.clusters[name], len(y), commonest, classes))
    return found


def true_gain(result: SimulationResult, hidden: dict[str, Rows]) -> float:
    """The mean over devices, on samples that the run has not seen."""
    gains = []
    for key in {*result.clusters.values()}:
        module = result.module(key)
        names = [name for name, cluster in result.clusters.items() if cluster == key]
        labels = [result.fleet[name].stage(0).y for name in names]
        for name in names:
            x, y = hidden[name]
            with torch.no_grad():
                said = module(torch.from_numpy(result.layout.apply(x))).numpy()
            if y.dtype.kind == "f":
                gains.append(1.0 - float(np.square(said.reshape(-1) - y).mean() / y.var()))
                continue
            shares = [
                np.bincount(each, minlength=MAX_CLASSES) / len(each) for each in labels if each is not None
            ]
            commonest = int(np.sum(shares, axis=0).argmax())
            gains.append(float((said.argmax(axis=1) == y).mean() - (y == commonest).mean()))
    return float(np.mean(gains))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--sets", default=",".join(SETS))
    parser.add_argument("--seeds", default="47,48,49,50,51", help="comma-separated")
    given = parser.parse_args()
    lines = given.out.read_text().splitlines() if given.out.exists() else []
    known = {(row["set"], row["seed"]): row for row in map(json.loads, lines)}
    rows = []
    for seed in map(int, given.seeds.split(",")):
        for name in given.sets.split(","):
            if (name, seed) not in known:
                known[name, seed] = tried(name, seed, given.data_dir)
                with given.out.open("a") as file:
                    file.write(json.dumps(known[name, seed]) + "\n")
            rows.append(known[name, seed])
    done = [row for row in rows if "failed" not in row]
    print(f"{len(done)} runs, and {len(rows) - len(done)} that failed and said so")
    print(f"{'':<10}{'learned':>9}{'nothing':>9}{'unknown':>9}{'false learned':>15}{'false nothing':>15}")
    for by in ("learned", "judged"):
        counts = Counter(row[by] for row in done)
        false = [row for row in done if row[by] is True and row["true"] <= 0.0]
        missed = [row for row in done if row[by] is False and row["true"] >= LITTLE]
        said = "".join(f"{counts[each]:>9}" for each in (True, False, None))
        print(f"{by:<10}{said}{len(false):>15}{len(missed):>15}")
        for row in (*false, *missed):
            print(f"    {row}")


if __name__ == "__main__":
    main()
