"""What the robust rules cost: time and peak memory of each against the plain mean, in one run.

Updates lie in files, as reports do on the server, and are read a part of a tensor at a time. Each measurement
is a process of its own, since a process never forgets its peak. The rules take turns, so that a machine that
slows down slows all. A tenth of the updates is far too long, so that cutting is part of what is timed. Memory
must not grow with the cohort: two sizes are measured.

    python -m benchmarks.robust_memory [--megabytes 64] [--cohorts 10 40] [--turns 3] [--json FILE]
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fedserver.store.content.in_file import FileTensors
from shoal.core.exchange.tensors import manifest_of, pack
from shoal.core.server_kit.aggregation.robust import RULES, Update, combine
from shoal.core.types import Tensors

TENSORS = 8
KIB_PER_MB = 1e6 / 1024


def model(megabytes: int, seed: int, scale: float) -> Tensors:
    """Tensors of float32, one of them half of it all, with an integer beside."""
    chance, total = np.random.default_rng(seed), megabytes * 250_000
    sizes = [total // 2, *[total // 2 // (TENSORS - 1)] * (TENSORS - 1)]
    tensors = {f"layer{i}": scale * chance.standard_normal(size, np.float32) for i, size in enumerate(sizes)}
    return {**tensors, "steps": np.array(seed, np.int64)}


def measure(folder: Path, rule: str, cohort: int, megabytes: int) -> dict[str, float]:
    """Combine once, in this process: seconds, and by how many megabytes its peak grew."""
    base = model(megabytes, 0, 0.0)
    manifest = manifest_of(base)
    updates = {
        f"d{i:04}": Update(FileTensors(folder / f"{i}", manifest), 10.0 + i % 3) for i in range(cohort)
    }
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    combine(rule, base, updates)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"seconds": seconds, "megabytes": (peak - before) / KIB_PER_MB}


def in_a_process(*arguments: object) -> dict[str, float]:
    line = [sys.executable, __file__, "--measure", *map(str, arguments)]
    found: dict[str, float] = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=64, help="size of the model")
    parser.add_argument("--cohorts", type=int, nargs="+", default=[10, 40], help="numbers of updates")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--measure", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        folder, rule, cohort, megabytes = options.measure
        print(json.dumps(measure(Path(folder), rule, int(cohort), int(megabytes))))
        return
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for i in range(max(options.cohorts)):
            with (folder / f"{i}").open("wb") as file:
                for piece in pack(model(options.megabytes, i + 1, 50.0 if i % 10 == 9 else 1.0)):
                    file.write(piece)
        for cohort in options.cohorts:
            turns = [
                {rule: in_a_process(folder, rule, cohort, options.megabytes) for rule in RULES}
                for _ in range(options.turns)
            ]
            for rule in RULES:
                rows.append(
                    {
                        "rule": rule,
                        "cohort": cohort,
                        "seconds": statistics.median(turn[rule]["seconds"] for turn in turns),
                        "times the mean": statistics.median(
                            turn[rule]["seconds"] / turn["mean"]["seconds"] for turn in turns
                        ),
                        "megabytes": max(turn[rule]["megabytes"] for turn in turns),
                    }
                )
    print(f"a model of {options.megabytes} MB, {os.cpu_count()} cores, median of {options.turns} turns")
    print(f"{'rule':9} {'cohort':>6} {'seconds':>8} {'x mean':>7} {'peak, MB':>9} {'in models':>9}")
    for row in rows:
        print(
            f"{row['rule']:9} {row['cohort']:6} {row['seconds']:8.2f} {row['times the mean']:7.2f} "
            f"{row['megabytes']:9.0f} {row['megabytes'] / options.megabytes:9.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
