"""Statistics of a fleet beside those of its data in one place: in the open, by secure sums, with noise.

    python -m benchmarks.pooled_statistics [--seeds 47 48 49] [--epsilon 5]

Twelve devices with 200 samples of two features: normal, in two groups, and exponential. A row has the largest
differences of all seeds: of the mean, in deviations; of the deviation, in percent; and of the ranks of the
quantiles.
"""

import argparse
from typing import Any

import numpy as np

import shoal
from shoal.core.data.histogram import QUANTILES

DEVICES, SAMPLES = 12, 200
FEATURES = ("normal", "exponential")


def rows(seed: int, device: int) -> np.ndarray:
    """(200, 2)."""
    chance = np.random.default_rng((seed, device))
    normal = chance.normal(4.0 * (device % 2), 1.0, SAMPLES)
    return np.stack([normal, chance.exponential(90.0, SAMPLES)], axis=1).astype(np.float32)


def differences(seed: int, options: dict[str, Any]) -> np.ndarray:
    """(features, 3)."""
    parts = [rows(seed, number) for number in range(DEVICES)]
    fleet = shoal.Fleet({f"d{n:02}": (x, x[:, 1] > 60.0, x, x[:, 1] > 60.0) for n, x in enumerate(parts)})
    found = shoal.simulate("statistics", fleet, seed=seed, **options).statistics["global"]
    pooled = np.concatenate(parts).astype(np.float64)
    assert found.count == len(pooled)
    differ = []
    for feature, true in zip(found.features, pooled.T, strict=True):
        ranks = np.array([np.mean(true < at) for at in feature.quantiles])
        differ.append(
            (
                abs(feature.mean - true.mean()) / true.std(),
                100.0 * abs(feature.deviation / true.std() - 1.0),
                np.abs(ranks - QUANTILES).max(),
            )
        )
    return np.array(differ)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[47, 48, 49])
    parser.add_argument("--epsilon", type=float, default=5.0)
    asked = parser.parse_args()
    ways: dict[str, dict[str, Any]] = {
        "in the open": {},
        "secure sums": {"secure_aggregation": True},
        f"epsilon {asked.epsilon:g}": {"dp_epsilon": asked.epsilon},
    }
    print("| | feature | mean, deviations | deviation, % | ranks |\n|---|---|---|---|---|")
    for way, options in ways.items():
        largest = np.max([differences(seed, options) for seed in asked.seeds], axis=0)
        for name, (mean, deviation, ranks) in zip(FEATURES, largest, strict=True):
            print(f"| {way} | {name} | {mean:.4f} | {deviation:.1f} | {ranks:.3f} |", flush=True)


if __name__ == "__main__":
    main()
