"""A small real fleet for tests: rotated digits on devices that take turns in one small network."""

from collections.abc import Callable

import numpy as np

from fedcore.algorithm import Algorithm
from fedcore.data import images
from fedcore.data.dataset import Dataset
from fedcore.data.pixels import rotate, unit
from fedcore.data.views import Views
from fedcore.local.bench import Bench
from fedcore.local.learner import Learner, builtin
from fedcore.local.simulated import Memories, Simulated
from fedcore.local.weights import initial_weights
from fedcore.messages import Message
from fedcore.types import DeviceId, Tensors


def learner() -> Learner:
    return builtin("mlp", {"inputs": 64, "hidden": (32,), "classes": 10})


def first_model() -> Tensors:
    return initial_weights(learner(), 42)


def data(device: int, angles: tuple[int, ...] = (0, 90), samples: int = 90) -> Dataset:
    """Digits of one device alone; device i turns its images by the i-th angle, and round again."""
    train, _ = images.load("digits")
    own = train.subset(slice(device * samples, (device + 1) * samples))
    turned = rotate(own.x, angles[device % len(angles)])
    return Dataset(unit(turned), own.y)


def fleet(
    algorithm: Algorithm,
    devices: int = 6,
    angles: tuple[int, ...] = (0, 90),
    memories: Memories | None = None,
) -> dict[DeviceId, Callable[[Message, int], Message]]:
    """Devices for `fedcore.simulate`, in the algorithm's own device half. memories: what they remember."""
    local, shared = algorithm.local(), learner()
    network, remembered = shared.module(seed=0), {} if memories is None else memories

    def device(number: int) -> Simulated:
        noise = np.random.default_rng(number)
        bench = Bench(shared, Views.of(data(number, angles)), "cpu", 0, noise, model=network)
        return Simulated(local, bench, f"d{number}", remembered)

    return {f"d{number}": device(number) for number in range(devices)}
