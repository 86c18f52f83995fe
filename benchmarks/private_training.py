"""What DP-SGD costs on one device: accuracy on digits at several epsilons, and time beside plain training.

    python -m benchmarks.private_training [--rounds 10] [--seeds 3]

One device with 1,200 of the 1,797 digits (960 to train on) trains a small network for all its rounds; the
others are for testing. delta is 1e-5. Prints JSON; times are ratios of processor time within one run.
"""

import argparse
import json
import time
from typing import Any

import numpy as np
import torch

from shoal.core.data.views import Views
from shoal.core.device_kit import standard
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.exchange.messages import (
    Evaluate,
    Evaluated,
    PrivateTraining,
    Train,
    Trained,
    TrainingSettings,
)
from shoal.core.privacy.accountant import Unmetered
from shoal.core.privacy.cost import Cost, total
from shoal.simulation import images

DELTA, EPSILONS = 1e-5, (0.0, 1.0, 3.0, 8.0)
PLAIN = TrainingSettings(epochs=2, batch_size=128, learning_rate=0.05, momentum=0.5)
PRIVATE = TrainingSettings(epochs=2, batch_size=128, learning_rate=0.3, momentum=0.5)


def trained(epsilon: float, rounds: int, seed: int) -> dict[str, float]:
    """One device's accuracy after its rounds, the epsilon that it spent, and its processor seconds."""
    data, test = images.digits()
    chance = np.random.default_rng(seed)
    views = Views.of(data.subset(chance.permutation(len(data))[:1200]), test)
    learner = builtin("mlp", {"inputs": 64, "hidden": (64,), "classes": 10})
    context = DeviceContext(learner, views, "cpu", seed, chance, account=Unmetered(chance.bytes))
    asked = PrivateTraining(epsilon=epsilon, delta=DELTA, rounds=rounds) if epsilon else None
    model, spent, seconds = initial_weights(learner, seed), [], 0.0
    for number in range(rounds + 1):  # the first is to warm up
        started = time.process_time()
        task = Train(model, PRIVATE if asked else PLAIN, private=asked)
        answer = standard.perform(task, context.for_task(number))
        assert isinstance(answer, Trained)
        if number:
            seconds += time.process_time() - started
            model = dict(answer.model)
            spent.append(Cost(curve=answer.curve or ()))
    measured = standard.perform(Evaluate(model, part="test"), context)
    assert isinstance(measured, Evaluated)
    return {"accuracy": measured.accuracy, "epsilon": total(spent).epsilon(DELTA), "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for epsilon in EPSILONS:
        found = [trained(epsilon, arguments.rounds, seed) for seed in range(arguments.seeds)]
        means = {name: float(np.mean([each[name] for each in found])) for name in found[0]}
        rows.append({"asked": epsilon or None, **means})
    plain = rows[0]["seconds"]
    for row in rows:
        row["times_plain"] = row.pop("seconds") / plain
    print(json.dumps({"delta": DELTA, "rounds": arguments.rounds, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
