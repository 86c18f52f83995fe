"""What the engine, the messages and the checks cost: a simulated FedAvg round against a bare PyTorch loop.

Both train LeNet-5 with the same optimizer on the same images, 10 devices for 2 epochs in batches of 64, and
average the result; the loop has no engine, no messages, no checks. They take turns, and the ratio is taken
turn by turn, so that a machine that slows down slows both. The images are random: speed takes no notice.

    python -m benchmarks.simulate_overhead [--devices 10] [--samples 640] [--turns 7] [--json FILE]
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

from shoal.core.algorithm import find
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, builtin, initial_weights
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.exchange.messages import Message

EPOCHS, BATCH, RATE, MOMENTUM = 2, 64, 0.005, 0.9


def bare_round(learner: Learner, data: list[Dataset]) -> None:
    """One FedAvg round as a researcher would write it down."""
    network = learner.module(seed=42)
    start = {name: value.clone() for name, value in network.state_dict().items()}
    total: dict[str, torch.Tensor] = {}
    for one in data:
        network.load_state_dict(start)
        x, y = torch.from_numpy(one.x), torch.from_numpy(one.y)
        optimizer = torch.optim.SGD(network.parameters(), lr=RATE, momentum=MOMENTUM, fused=True)
        network.train()
        for _ in range(EPOCHS):
            for rows in torch.randperm(len(x)).split(BATCH):
                optimizer.zero_grad(set_to_none=True)
                F.cross_entropy(network(x[rows]), y[rows]).backward()
                optimizer.step()
        for name, value in network.state_dict().items():
            total[name] = total.get(name, 0) + value.double() / len(data)


def simulated_round(learner: Learner, data: list[Dataset]) -> Callable[[], None]:
    """The same through the simulator: its fleet is made once, a round is what is timed."""
    card, _ = find("fedavg")
    server_half, device_half = card.server(), card.device()
    parameters = card.configure(
        "default",
        {
            "rounds": 1,
            "epochs": EPOCHS,
            "batch_size": BATCH,
            "learning_rate": RATE,
            "momentum": MOMENTUM,
            "evaluate": False,
        },
    )
    network = learner.module(seed=42)
    nothing = data[0].subset(slice(0))

    def device(one: Dataset) -> Callable[[Message, int], Message]:
        context = DeviceContext(
            learner, Views(one, nothing, None), "cpu", 0, np.random.default_rng(0), network
        )
        return lambda message, seed: device_half.perform(message, context.for_task(seed, None, message))

    devices = {f"device-{number:02}": device(one) for number, one in enumerate(data)}
    policy = RoundPolicy(minimum=len(data))

    def run() -> None:
        state = server_half.start(initial_weights(learner, 42), parameters)
        outcome = simulate(server_half, state, devices, policy, seed=1)
        assert not outcome.failed
        assert outcome.state.progress == 1

    return run


def seconds(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", type=int, default=10)
    parser.add_argument("--samples", type=int, default=640)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    chance = np.random.default_rng(0)
    data = [
        Dataset(
            chance.random((arguments.samples, 1, 28, 28), np.float32),
            chance.integers(0, 10, arguments.samples),
        )
        for _ in range(arguments.devices)
    ]
    learner = builtin("lenet5", {"channels": 1, "size": 28, "classes": 10})
    simulated = simulated_round(learner, data)
    bare_round(learner, data)
    simulated()
    turns = [(seconds(lambda: bare_round(learner, data)), seconds(simulated)) for _ in range(arguments.turns)]
    ratios = [ours / bare for bare, ours in turns]
    result = {
        "bare_seconds": statistics.median(bare for bare, _ in turns),
        "simulated_seconds": statistics.median(ours for _, ours in turns),
        "ratio": statistics.median(ratios),
        "ratio_lowest": min(ratios),
        "ratio_highest": max(ratios),
        "devices": arguments.devices,
        "samples": arguments.samples,
        "goal": 1.10,
    }
    print(json.dumps(result, indent=2))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
