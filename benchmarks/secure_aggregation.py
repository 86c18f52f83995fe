"""Secure aggregation with 100 devices and LeNet-5, of which a fifth drops out: is the sum exact, what does a
round cost, and what does noise of the devices cost in accuracy.

    python -m benchmarks.secure_aggregation --data-dir DATA [--devices 100] [--repeats 2]
    python -m benchmarks.secure_aggregation --data-dir DATA --epsilon 8 [--clip 0.4] [--rate 0.015]

Each device has `--samples` digits of MNIST. In every round of training a fifth of the devices, others each
time, has its keys shared and then does not answer. The first form compares the processor time of one round,
plain and secure by turns, the bytes that a device which stays is sent and sends in it, and the sum of the
masked updates with that of the same updates in fixed point.
The second form trains plainly, with each device counted once, and with noise, and prints both accuracies; as
masks change no bit of a sum (the first form), it adds the noise of the devices to their whole numbers and
leaves the masks away, and says on standard error how far it is: three curves of 20 rounds take more than ten
minutes. epsilon is for all samples of a device, at delta 1e-6. Prints JSON.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from secrets import token_bytes
from typing import Any

import numpy as np
import torch

from shoal.core import algorithm
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.evaluation.evaluate import evaluate
from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.device_kit.samples import convert
from shoal.core.engine.rounds import RoundPolicy
from shoal.core.engine.simulate import simulate
from shoal.core.errors import Unavailable
from shoal.core.exchange import wire
from shoal.core.exchange.messages import Message, Train
from shoal.core.exchange.payload import BlobRef, Weights, encode
from shoal.core.exchange.summing import SUM, Masked, TrainMasked
from shoal.core.exchange.tensors import digest, manifest_of, nbytes
from shoal.core.privacy.accountant import Unmetered
from shoal.core.privacy.cost import rho_for, sigma_of
from shoal.core.privacy.noise.bulk import draw_many
from shoal.core.privacy.secure.cohort import threshold
from shoal.core.privacy.secure.fixed_point import moved_by, scale_of, steps_of, to_words, variance_of, vector
from shoal.core.server_kit.standard import training
from shoal.core.types import DeviceId, Tensors
from shoal.simulation.simulated import Simulated
from shoal_lab.datasets import images

DELTA, AWAY = 1e-6, 0.2
FAR = 100.0
"""A norm that no update reaches. With a much larger one, steps of 32 bits would be too coarse."""


class Fleet:
    """Devices with digits of their own, which take turns in one network."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        train, self.test = images.load("mnist", arguments.data_dir)
        order = np.random.default_rng(arguments.seed).permutation(len(train))
        self.learner = builtin("lenet5", {"classes": 10})
        self.network = self.learner.module(seed=0)
        self.names = [f"d{number:03d}" for number in range(arguments.devices)]
        size = arguments.samples
        self.contexts = {
            name: self._context(train.subset(order[number * size : (number + 1) * size]), number)
            for number, name in enumerate(self.names)
        }
        self.first = initial_weights(self.learner, arguments.seed)
        self.seconds = 0.0

    def _context(self, data: Dataset, number: int) -> DeviceContext:
        noise = np.random.default_rng(number)
        views = Views.of(Dataset(_scaled(data), data.y), None, 0.0)
        return DeviceContext(self.learner, views, "cpu", 0, noise, self.network, Unmetered(noise.bytes))

    def away(self, number: int) -> set[DeviceId]:
        """Who drops out of a round of training."""
        chance = np.random.default_rng((self.arguments.seed, number))
        gone = chance.choice(len(self.names), int(AWAY * len(self.names)), replace=False)
        return {self.names[index] for index in gone}

    def accuracy(self, model: Tensors) -> float:
        context = next(iter(self.contexts.values()))
        samples = convert(Dataset(_scaled(self.test), self.test.y), context.device)
        return evaluate(self.learner, context.load(model), samples)[0]


def _scaled(data: Dataset) -> Any:
    return (data.x.reshape(-1, 1, 28, 28) / np.float32(255)).astype(np.float32)


Watch = Callable[[DeviceId, Message, int, Message], None]
"""Called with a device, its task, the seed of it and the answer."""


def one_round(fleet: Fleet, secure: bool, watch: Watch = lambda name, message, seed, answer: None) -> Tensors:
    """A run of FedAvg of one round. Returns the model; `fleet.seconds` is then its processor time."""
    card, arguments = algorithm.discover()["fedavg"], fleet.arguments
    half, device_half = card.server(), card.device()
    parameters = card.configure(
        "default",
        {
            "rounds": 1,
            "epochs": arguments.epochs,
            "learning_rate": arguments.rate,
            "batch_size": arguments.batch,
            "evaluate": False,
            "inputs": "raw",
            "aggregation": "mean",
            "secure_aggregation": secure,
            "central_clip": arguments.clip,
        },
    )
    memories: dict[DeviceId, Tensors] = {}
    away = fleet.away(1)

    def call(name: DeviceId) -> Callable[[Message, int], Message]:
        usual = Simulated(device_half, fleet.contexts[name], name, memories)

        def perform(message: Message, seed: int) -> Message:
            if isinstance(message, Train | TrainMasked) and name in away:
                raise Unavailable("it dropped out")
            answer = usual(message, seed)
            watch(name, message, seed, answer)
            return answer

        return perform

    policy = RoundPolicy(minimum=threshold(len(fleet.names)))
    began = time.process_time()
    calls = {name: call(name) for name in fleet.names}
    outcome = simulate(half, half.start(fleet.first, parameters), calls, policy, arguments.seed)
    fleet.seconds = time.process_time() - began
    assert not outcome.failed, outcome.reason
    return dict(outcome.state.models["global"])


def bytes_of_a_device(fleet: Fleet, secure: bool) -> dict[str, int]:
    """What a device that stays is sent in a round, and sends: messages as on the wire, with their tensors."""
    found, away = {"down": 0, "up": 0}, fleet.away(1)
    stays = next(name for name in fleet.names if name not in away)

    def add(name: DeviceId, message: Message, seed: int, answer: Message) -> None:
        if name == stays:
            found["down"] += _size(message)
            found["up"] += _size(answer)

    one_round(fleet, secure, watch=add)
    return found


def _size(message: Message) -> int:
    payload = encode(
        message, lambda tensors: Weights(manifest_of(tensors), BlobRef(digest(tensors), nbytes(tensors)))
    )
    return len(wire.payload_to_bytes(payload)) + sum(each.blob.size for each in payload.weights())


def cost_of_masks(fleet: Fleet) -> dict[str, Any]:
    """Whether the sum is exact, processor times by turns, and bytes."""
    plain, secure = [], []
    for _ in range(fleet.arguments.repeats):
        one_round(fleet, secure=False)
        plain.append(fleet.seconds)
        one_round(fleet, secure=True)
        secure.append(fleet.seconds)
    return {
        "equal": is_exact(fleet),
        "plain_seconds_a_round": min(plain),
        "secure_seconds_a_round": min(secure),
        "times_plain": min(secure) / min(plain),
        "plain_bytes_of_a_device": bytes_of_a_device(fleet, secure=False),
        "secure_bytes_of_a_device": bytes_of_a_device(fleet, secure=True),
    }


def is_exact(fleet: Fleet) -> bool:
    """One round: the model, and that of the same updates summed in fixed point without a mask."""
    card, clip = algorithm.discover()["fedavg"].device(), fleet.arguments.clip
    scale, total, count = scale_of(clip, 0.0, len(fleet.names)), np.zeros(1, np.int64), 0

    def add(name: DeviceId, message: Message, seed: int, answer: Message) -> None:
        nonlocal total, count
        if isinstance(message, TrainMasked):
            assert isinstance(answer, Masked)
            context = fleet.contexts[name].for_task(seed)
            again: Any = card.perform(Train(message.model, message.settings, message.cluster), context)
            own = steps_of(vector(message.model, again.model, clip), scale)
            assert answer.sum is not None
            assert not np.array_equal(answer.sum[SUM].view(np.uint32), to_words(own))
            total, count = total + own, count + 1

    found = one_round(fleet, secure=True, watch=add)
    expected = moved_by(fleet.first, to_words(total), scale, count)
    return all(np.array_equal(found[name], expected[name]) for name in expected)


def cost_of_noise(fleet: Fleet) -> dict[str, Any]:
    """Accuracy with the noise of all devices, beside accuracy without."""
    arguments, devices = fleet.arguments, len(fleet.names)
    noise = sigma_of(rho_for(arguments.epsilon, DELTA) / arguments.rounds)
    found: dict[str, Any] = {"epsilon": arguments.epsilon, "central_noise": noise, "curves": {}}
    for kind, clip, multiplier in (
        ("plain", FAR, 0.0),
        ("clipped", arguments.clip, 0.0),
        ("with noise", arguments.clip, noise),
    ):
        if kind not in arguments.curves:
            continue
        model, curve = dict(fleet.first), []
        for number in range(1, arguments.rounds + 1):
            model = _round(fleet, model, number, clip, multiplier, devices)
            curve.append(round(100 * fleet.accuracy(model), 2))
            print(f"{kind}: round {number}: {curve[-1]} %", file=sys.stderr, flush=True)
        found["curves"][kind] = curve
        found[kind] = curve[-1]
    if {"plain", "with noise"} <= {*found}:
        found["lost"] = found["plain"] - found["with noise"]
    return found


def _round(
    fleet: Fleet, model: Tensors, number: int, clip: float, noise: float, devices: int
) -> dict[str, Any]:
    card, arguments = algorithm.discover()["fedavg"].device(), fleet.arguments
    parameters = algorithm.discover()["fedavg"].configure(
        "default",
        {"epochs": arguments.epochs, "learning_rate": arguments.rate, "batch_size": arguments.batch},
    )
    scale, gone, count = scale_of(clip, noise, devices), fleet.away(number), 0
    total: Any = 0
    for index, name in enumerate(fleet.names):
        if name in gone:
            continue
        context = fleet.contexts[name].for_task(1000 * number + index)
        trained: Any = card.perform(Train(model, training(parameters), "global"), context)
        steps = steps_of(vector(model, trained.model, clip), scale)
        if noise:
            variance: Fraction = variance_of(clip, noise, devices)
            steps = steps + draw_many(variance, len(steps), token_bytes)
        total, count = total + steps, count + 1
    return moved_by(model, to_words(total), scale, count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--samples", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--clip", type=float, default=3.0)
    parser.add_argument("--epsilon", type=float, default=0.0)
    parser.add_argument("--curves", nargs="+", default=["plain", "clipped", "with noise"])
    parser.add_argument("--seed", type=int, default=42)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    fleet = Fleet(arguments)
    found = cost_of_noise(fleet) if arguments.epsilon else cost_of_masks(fleet)
    settings = {name: str(value) for name, value in vars(arguments).items() if name != "data_dir"}
    print(json.dumps({**settings, **found}, indent=2))


if __name__ == "__main__":
    main()
