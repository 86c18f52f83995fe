"""Groups in fleets of three to six devices with 40 to 100 digits each, as FLUX finds them with nothing set.

    python -m benchmarks.small_fleets [--seeds 47,48,49] [--seen 8]

A row is a kind of fleet: how many of its runs found more than one group where all devices are alike, and the
mean adjusted Rand index where every other device holds its images turned (px), names its classes otherwise
(pyx), or has some classes upside down (pxy). `benchmarks.grouping` has larger fleets, whose descriptors come
from a network that has not seen the devices' samples; here it was trained by them. --seen: `SEEN` of
`shoal.core.server_kit.fleet.evidence`, to try others.
"""

import argparse

import numpy as np
from sklearn.datasets import load_digits
from sklearn.metrics import adjusted_rand_score

import shoal
from shoal.core.server_kit.fleet import evidence
from shoal.core.types import Array

KINDS = ("alike", "px", "pyx", "pxy")


def changed(kind: str, x: Array, y: Array) -> tuple[Array, Array]:
    """The data of the devices of the second group."""
    if kind == "px":
        return np.rot90(x, 1, (1, 2)).copy(), y
    if kind == "pyx":
        return x, 9 - y
    x, some = x.copy(), y % 3 == 0
    x[some] = np.rot90(x[some], 2, (1, 2))
    return x, y


def measure(kind: str, devices: int, samples: int, seed: int) -> float:
    """1.0 for a false group among devices that are alike, else 0.0; or the adjusted Rand index."""
    digits = load_digits()
    order = np.random.default_rng(seed).permutation(len(digits.target))
    rows = order[: devices * samples].reshape(devices, samples)
    parts = [((digits.images[each] / 16).astype(np.float32), digits.target[each]) for each in rows]
    truth = [0 if kind == "alike" else device % 2 for device in range(devices)]
    fleet = {
        f"d{device}": changed(kind, *part) if truth[device] else part for device, part in enumerate(parts)
    }
    clusters = shoal.simulate("flux", fleet, seed=seed).clusters
    found = [clusters[f"d{device}"] for device in range(devices)]
    if kind == "alike":
        return float(len({*found}) > 1)
    return float(adjusted_rand_score(truth, found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", default="47,48,49", help="comma-separated")
    parser.add_argument("--seen", type=float, default=evidence.SEEN)
    options = parser.parse_args()
    evidence.SEEN = options.seen
    for kind in KINDS:
        found = [
            measure(kind, devices, samples, int(seed))
            for devices in (3, 4, 6)
            for samples in (40, 60, 100)
            for seed in options.seeds.split(",")
        ]
        print(f"{kind:6} {len(found)} runs, mean {np.mean(found):.3f}", flush=True)


if __name__ == "__main__":
    main()
