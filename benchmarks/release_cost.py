"""What a release costs a device: processor time and memory, from projected latents to what leaves.

    python -m benchmarks.release_cost [--samples 6000] [--dims 10] [--turns 9] [--json FILE]

For 0 (label-free), 10 and 100 classes: the terms, the sums and the noise, each timed apart, as the median of
the turns; memory is the peak of what Python and numpy allocate during one release.
"""

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import numpy as np

from shoal.core.exchange.parts import Descriptor, PrivacySettings
from shoal.core.privacy.release import release_sums
from shoal.core.privacy.sums import sums_of
from shoal.core.privacy.terms import terms

SETTINGS = PrivacySettings("explicit", 20.0, 1e-6)  # so that 100 classes are released too
Value = TypeVar("Value")


def measure(samples: int, dims: int, classes: int, turns: int) -> dict[str, float]:
    chance = np.random.default_rng(0)
    latents = chance.normal(size=(samples, dims)) / np.sqrt(dims)
    labels = chance.integers(0, max(classes, 1), samples)
    spent: dict[str, list[float]] = {"terms": [], "sums": [], "noise": []}

    def timed(what: str, work: Callable[[], Value]) -> Value:
        started = time.process_time()
        value = work()
        spent[what].append(time.process_time() - started)
        return value

    def one() -> Descriptor:
        agreed = timed("terms", lambda: terms(SETTINGS, samples, classes))
        assert agreed.classes == classes
        exact = timed("sums", lambda: sums_of([(latents, labels)], 1.0, dims, classes))
        return timed("noise", lambda: release_sums(exact, SETTINGS, agreed, "0" * 64))

    numbers = one().statistics.values.size  # type: ignore[union-attr]
    for _ in range(turns):
        one()
    milliseconds = {what: 1000 * statistics.median(times) for what, times in spent.items()}
    tracemalloc.start()
    one()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "classes": classes,
        "numbers": numbers,
        **{f"{what}_ms": value for what, value in milliseconds.items()},
        "total_ms": sum(milliseconds.values()),
        "peak_mib": peak / (1 << 20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--samples", type=int, default=6000)
    parser.add_argument("--dims", type=int, default=10)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    rows = [measure(asked.samples, asked.dims, classes, asked.turns) for classes in (0, 10, 100)]
    print(
        f"{asked.samples} samples of {asked.dims} dimensions, CPU time as the median of {asked.turns} turns"
    )
    for row in rows:
        print("  ".join(f"{name} {value:.4g}" for name, value in row.items()))
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
