"""What devices send in fewer bytes, and what that costs in accuracy: every encoding, and a trainable subset.

    python -m benchmarks.encoding --data-dir DATA [--dataset mnist] [--algorithm flux] [--level 5]
        [--seeds 43,44] [--rounds 10] [--devices 10] [--samples 6000] [--head 'head.*'] [--json FILE]

Each device has a part of `--samples` samples of a data set, drawn at random, shifted as in the papers. Bytes
are those of one report and of one task, in a round after the first. Prints JSON.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np

import shoal
from shoal.core.data.dataset import Dataset
from shoal.core.device_kit.learner import initial_weights
from shoal.core.exchange.encoding.updates import ENCODINGS, shape_of
from shoal.core.exchange.tensors import layout, manifest_of
from shoal.core.server_kit.aggregation.encoded import split
from shoal.simulation.learners import learner_of
from shoal_lab import fleets
from shoal_lab.datasets import images


def cases(head: str) -> list[dict[str, str]]:
    own = [{"encoding": each} for each in ENCODINGS]
    return [*own, *({**each, "trainable": head} for each in own if each["encoding"] in ("full", "int8"))]


def _some(data: Dataset, number: int) -> Dataset:
    """That many samples, drawn at random: files may be in the order of their classes."""
    return data.subset(np.sort(np.random.default_rng(0).permutation(len(data))[:number]))


def measure(arguments: argparse.Namespace, seeds: list[int]) -> list[dict[str, Any]]:
    train, test = images.load(arguments.dataset, arguments.data_dir)
    few = _some(train, arguments.samples), _some(test, arguments.samples // 6)
    fleets = {
        seed: fleets.px(few, level=arguments.level, devices=arguments.devices, seed=seed) for seed in seeds
    }
    model = initial_weights(learner_of(None, fleet=fleets[seeds[0]]), 0)
    whole, found = layout(manifest_of(model))[1], []
    for case in cases(arguments.head):
        own, _ = split(model, case.get("trainable", ""))
        accuracies, began = [], time.perf_counter()
        for seed, fleet in fleets.items():
            settings = {"rounds": arguments.rounds, "learning_rate": arguments.rate, "batch_size": 16, **case}
            result = shoal.simulate(arguments.algorithm, fleet, seed=seed, **settings)
            accuracies.append(100 * statistics.mean(result.accuracy.values()))
        found.append(
            {
                **case,
                "bytes_of_a_report": layout(shape_of(manifest_of(own), case["encoding"]))[1],
                "bytes_of_a_task": layout(manifest_of(own))[1],
                "bytes_of_the_model": whole,
                "accuracy": statistics.mean(accuracies),
                "by_seed": dict(zip(seeds, accuracies, strict=True)),
                "seconds": time.perf_counter() - began,
            }
        )
        print(json.dumps(found[-1]), flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--algorithm", default="flux")
    parser.add_argument("--level", type=int, default=5)
    parser.add_argument("--seeds", default="43,44")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rate", type=float, default=0.02, help="learning rate")
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--samples", type=int, default=6000, help="of all devices together")
    parser.add_argument("--head", default="head.*", help="names of the tensors that train in the last cases")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    arguments = parser.parse_args()
    found = measure(arguments, [int(seed) for seed in arguments.seeds.split(",")])
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
