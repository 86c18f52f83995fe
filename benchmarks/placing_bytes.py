"""What a placement costs: bytes and seconds, for 4, 10 and 50 clusters.

    python -m benchmarks.placing_bytes [--model lenet5] [--clusters 4,10,50] [--samples 40] [--repeats 3]

The ways: `whole`, in which all models travel as they are; `compact`, the default, in few bits; `vote`, in
which one model travels after a private vote. A row has the bytes that a newcomer fetches, also in models; the
seconds in which the server makes the question and hashes its blobs, which for `whole` and `compact` is once
for all newcomers of a round; and those in which the device computes its choice. Transfers are not in them.
The models are random ones, since neither bytes nor seconds depend on what they have learned;
`benchmarks.placing` has the accuracy. Seconds are the median of the repeats, with one thread.
"""

import argparse
import time
from collections.abc import Callable
from statistics import median
from typing import Any, TypeVar

import numpy as np
import torch

from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import builtin, initial_weights
from shoal.core.exchange.choosing import Choose, ClusterDensities
from shoal.core.exchange.choosing.compact import compact
from shoal.core.exchange.choosing.vote import vote_on
from shoal.core.exchange.messages import Message
from shoal.core.exchange.payload import tensors_of
from shoal.core.exchange.tensors import digest, nbytes, weighted_mean
from shoal.core.inference import newcomer
from shoal.core.privacy.accountant import Unmetered
from shoal.core.types import Tensors

CLASSES, DIMS = 10, 10
INPUTS = {"lenet5": (1, 28, 28), "resnet9": (3, 32, 32), "mlp": (784,)}
T = TypeVar("T")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="lenet5", choices=INPUTS)
    parser.add_argument("--clusters", default="4,10,50")
    parser.add_argument("--samples", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    learner = builtin(asked.model, {})
    x = np.random.default_rng(1).random((asked.samples, *INPUTS[asked.model]), np.float32)
    context = DeviceContext(
        learner, Views.of(Dataset(x)), "cpu", 0, np.random.default_rng(0),
        account=Unmetered(np.random.default_rng(2).bytes),
    )  # fmt: skip
    common = initial_weights(learner, 0)
    one = nbytes(common)
    context.network.load(common)
    latents = context.network.latents(x[:1]).shape[1]
    print(f"{asked.model}: {one:,} bytes, {latents} latents; {asked.samples} samples")
    print(f"{'clusters':>8}{'way':>10}{'bytes':>14}{'models':>9}{'server, s':>11}{'device, s':>11}")
    for count in map(int, asked.clusters.split(",")):
        question = choice(common, count, latents, learner_weights(asked.model, count))
        for way, (asking, given) in ways(question).items():
            made, server = timed(lambda: hashed(asking()), asked.repeats)  # noqa: B023 - called at once
            perform: Any = newcomer.choose if isinstance(made, Choose) else newcomer.perform
            _, device = timed(lambda: perform(made, context), asked.repeats)  # noqa: B023
            fetched = bytes_of(made) + given * one
            print(f"{count:>8}{way:>10}{fetched:>14,}{fetched / one:>9.2f}{server:>11.3f}{device:>11.3f}")


def ways(question: Choose) -> dict[str, tuple[Callable[[], Message], int]]:
    """For each way: what the server asks, and how many whole models it gives afterwards."""
    described = question.described
    assert described is not None
    return {
        "whole": (lambda: question, 0),
        "compact": (lambda: compact(question), 0),
        "vote": (lambda: vote_on(question.keys[:-1], described, 1.0), 1),
    }


def choice(common: Tensors, count: int, latents: int, models: list[Tensors]) -> Choose:
    """Among models that differ from the common one as those of clusters do."""
    chance = np.random.default_rng(3)
    shape = (count, 1 + CLASSES, DIMS)
    clusters = {"shares": np.ones(shape[:2]), "means": chance.normal(size=shape), "variances": np.ones(shape)}
    projector = {"mean": np.zeros(latents), "components": chance.normal(size=(DIMS, latents))}
    described = ClusterDensities(common, projector, clusters)
    names = " ".join((*(f"c{number}" for number in range(count)), "global"))
    mean = weighted_mean((model, 1.0) for model in models)
    parts = described.encoder, described.projector, described.clusters
    return Choose((*models, mean), names, (1.0,) * count, *parts)


def learner_weights(model: str, count: int) -> list[Tensors]:
    """Of `count` clusters."""
    return [initial_weights(builtin(model, {}), number) for number in range(count)]


def hashed(message: Message) -> Message:
    """With the SHA-256 of all its tensors, by which they are stored and fetched."""
    for _, tensors in tensors_of(message):
        digest(tensors)
    return message


def bytes_of(message: Message) -> int:
    return sum(nbytes(tensors) for _, tensors in tensors_of(message))


def timed(work: Callable[[], T], repeats: int) -> tuple[T, float]:
    """The result, and the median of the seconds."""
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        found = work()
        seconds.append(time.perf_counter() - began)
    return found, median(seconds)


if __name__ == "__main__":
    main()
