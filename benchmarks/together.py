"""What it gains on a GPU that a round's devices train together: the same run both ways, in turns.

LeNet-5 on random images, which speed takes no notice of: FedAvg, 2 epochs in batches of 64. Printed are
seconds of the fastest round, and how far apart weights are, relative to how far training has moved them. On a
processor (--device cpu) devices train together only here. With --products, devices train together both ways,
first with convolutions in groups, then with products in their place.

    python -m benchmarks.together [--device cuda] [--devices 10,50] [--samples 2000] [--rounds 3] [--products]
"""

import argparse

import numpy as np
import torch

from shoal.core.device_kit.learner import initial_weights
from shoal.core.device_kit.training import products
from shoal.core.device_kit.training.products import NARROW
from shoal.core.types import Tensors
from shoal.simulation import together
from shoal.simulation.fleet import Fleet
from shoal.simulation.simulate import SimulationResult, simulate

ALONE, GROUPS, PRODUCTS = "one after the other", "together in groups", "together"


def fleet_of(devices: int, samples: int) -> Fleet:
    """Random images of LeNet-5's size, (samples, 1, 28, 28), and classes 0 to 9, on each device."""
    chance = np.random.default_rng(42)
    shape = (samples, 1, 28, 28)
    return Fleet(
        {
            f"device-{number:04}": (chance.random(shape, dtype=np.float32), chance.integers(0, 10, samples))
            for number in range(devices)
        }
    )


def played(fleet: Fleet, rounds: int, device: str, way: str) -> tuple[float, SimulationResult]:
    """Seconds of the fastest round, since the first one prepares the GPU."""
    together.GPUS = set() if way == ALONE else {device}
    products.NARROW = 0 if way == GROUPS else NARROW
    found = simulate(
        "fedavg",
        fleet,
        model="lenet5",
        device=device,
        rounds=rounds,
        epochs=2,
        batch_size=64,
        optimizer="sgd",  # Adam's steps are as long where gradients are but rounding
        learning_rate=0.005,
        evaluate=False,
    )
    return min(each.seconds for each in found.history if each.trained), found


def apart(first: Tensors, second: Tensors) -> float:
    """The norm of the difference."""
    return float(np.sqrt(sum(np.square(first[name] - second[name]).sum() for name in first)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.together", description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--devices", default="10,50")
    for name, value in (("samples", 2000), ("rounds", 3), ("turns", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--products", action="store_true")
    given = parser.parse_args()
    ways = (GROUPS if given.products else ALONE, PRODUCTS)
    print(torch.cuda.get_device_name() if given.device == "cuda" else given.device)
    for devices in map(int, given.devices.split(",")):
        fleet, seconds = fleet_of(devices, given.samples), dict[str, list[float]]({way: [] for way in ways})
        for _ in range(given.turns):
            results = {}
            for way, times in seconds.items():
                found, results[way] = played(fleet, given.rounds, given.device, way)
                times.append(found)
        models, first = [results[way].models["global"] for way in ways], results[ways[0]]
        moved = apart(models[0], initial_weights(first.learner, first.model_seed))
        one, all_ = (min(times) for times in seconds.values())
        print(
            f"{devices} devices: {one:.3f} s a round {ways[0]}, {all_:.3f} s {ways[1]}, "
            f"{one / all_:.1f} times as fast; weights are {apart(*models) / moved:.1e} apart"
        )


if __name__ == "__main__":
    main()
