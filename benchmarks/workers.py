"""What worker processes gain: the same simulation by one worker and by more, in turns.

LeNet-5 on random images, which speed takes no notice of: FedAvg, 2 epochs in batches of 64. The ratio is
taken turn by turn, so that a machine that slows down slows both. The models must have the same bits.

    python -m benchmarks.workers [--workers 2] [--devices 20] [--samples 640] [--rounds 3] [--turns 3]
"""

import argparse
import hashlib
import statistics

import numpy as np
import torch

import shoal
from shoal.simulation.simulate import SimulationResult, simulate


def fleet_of(devices: int, samples: int) -> shoal.Fleet:
    chance = np.random.default_rng(42)
    shape = (samples, 1, 28, 28)
    return shoal.Fleet(
        {
            f"device-{number:04}": (
                chance.random(shape, dtype=np.float32),
                chance.integers(0, 10, samples),
            )
            for number in range(devices)
        }
    )


def played(fleet: shoal.Fleet, rounds: int, workers: int) -> tuple[float, str]:
    """Seconds of the rounds, without the final measurement of accuracies, and a hash of the model."""
    found: SimulationResult = simulate(
        "fedavg",
        fleet,
        model="lenet5",
        workers=workers,
        rounds=rounds,
        epochs=2,
        batch_size=64,
        evaluate=False,
    )
    bits = hashlib.sha256()
    for _, array in sorted(found.models["global"].items()):
        bits.update(array.tobytes())
    return sum(each.seconds for each in found.history), bits.hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.workers", description=__doc__)
    for name, value in (("workers", 2), ("devices", 20), ("samples", 640), ("rounds", 3), ("turns", 3)):
        parser.add_argument(f"--{name}", type=int, default=value)
    given = parser.parse_args()
    torch.set_num_threads(1)
    fleet, ratios = fleet_of(given.devices, given.samples), []
    for turn in range(given.turns):
        (one, bits), (more, others) = (played(fleet, given.rounds, count) for count in (1, given.workers))
        if bits != others:
            raise SystemExit("the models differ")
        ratios.append(one / more)
        print(f"turn {turn + 1}: 1 worker {one:.2f} s, {given.workers} workers {more:.2f} s")
    print(f"{given.workers} workers: {statistics.median(ratios):.2f} times as fast, the same bits")


if __name__ == "__main__":
    main()
