"""FLUX compared with itself on few data: ten devices with 144 digits each, every shift at every level.

    python -m benchmarks.flux_on_digits [--shifts px,py] [--levels 1,2] [--seeds 42] [--methods default]

The methods are FedAvg; FLUX's preset `paper`, also with the number of clusters given (`flux-prior`); and its
default, also with newcomers placed by distance. The table has means over levels and seeds: the accuracy, in
percent, of the models of the devices' own clusters (known) and of those that they get as newcomers that show
36 images without labels (test); the adjusted Rand index of the groups; and how often newcomers get a model
other than their own cluster's. Without labels, devices cannot be distinguished under `pyx`.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from shoal_lab.experiment import Experiment, run

METHODS: Mapping[str, tuple[str, str, Mapping[str, Any]]] = {
    "FedAvg": ("fedavg", "default", {}),
    "paper": ("flux", "paper", {}),
    "K given": ("flux-prior", "paper", {}),
    "by distance": ("flux", "default", {"placing": "distance"}),
    "default": ("flux", "default", {}),
}
TRAINING = {"learning_rate": 0.05, "batch_size": 16}
COLUMNS = ("known", "test", "ari", "elsewhere")


def measure(method: str, shift: str, level: int, seed: int) -> dict[str, float]:
    """The figures of one run."""
    algorithm, preset, changes = METHODS[method]
    found = run(
        Experiment(
            algorithm,
            preset,
            shift=shift,
            level=level,
            rounds=20,
            seed=seed,
            threads=1,
            changes={**TRAINING, **changes},
        )
    )
    accuracy = found["accuracy"]
    elsewhere = [row["placed"] != row["cluster"] for row in accuracy["per_device"]]
    return {
        "known": accuracy["known"],
        "test": accuracy["test"],
        "ari": found["ari"],
        "elsewhere": 100.0 * float(np.mean(elsewhere)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--shifts", default="px,py,pyx,pxy")
    parser.add_argument("--levels", default="1,2,3,4,5,6,7,8")
    parser.add_argument("--seeds", default="42")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    levels, seeds = ([int(part) for part in text.split(",")] for text in (asked.levels, asked.seeds))
    rows: list[Mapping[str, Any]] = []
    print(f"| shift | method | {' | '.join(COLUMNS)} |\n|---|---|{'---|' * len(COLUMNS)}")
    for shift in asked.shifts.split(","):
        for name in asked.methods.split(","):
            cells = []
            for level in levels:
                for seed in seeds:
                    cells.append(measure(name, shift, level, seed))
                    rows.append({"shift": shift, "method": name, "level": level, "seed": seed, **cells[-1]})
                    print(rows[-1], file=sys.stderr)
            means = {column: float(np.mean([cell[column] for cell in cells])) for column in COLUMNS}
            known, test, ari, elsewhere = means.values()
            print(
                f"| `{shift}` | {name} | {known:.1f} | {test:.1f} | {ari:.2f} | {elsewhere:.0f} % |",
                flush=True,
            )
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
