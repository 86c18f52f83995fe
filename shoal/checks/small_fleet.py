"""A small real fleet: rotated digits on a few devices that take turns in one small network.

A run on it takes about a second, so that rules and attacks can be tried on real training.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from torch import Tensor
from torch.nn.functional import avg_pool2d

from shoal.core.algorithm import Algorithm
from shoal.core.data.dataset import Dataset
from shoal.core.data.views import Views
from shoal.core.device_kit.context import DeviceContext
from shoal.core.device_kit.learner import Learner, builtin, initial_weights
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId, Tensors
from shoal.simulation import images
from shoal.simulation.images import rotate, unit
from shoal.simulation.simulated import Memories, Simulated

Device = Callable[[Message, int], Message]
DEVICES = 6


def learner() -> Learner:
    """A small network; its frozen encoder sees the images at half their size."""
    return replace(builtin("mlp", {"inputs": 64, "hidden": (32,), "classes": 10}), encoder=halved)


def halved(x: Tensor) -> Tensor:
    return avg_pool2d(x, 2).flatten(1)


def first_model() -> Tensors:
    return initial_weights(learner(), 42)


@cache
def digits() -> tuple[Dataset, Dataset]:
    """The training and the test part, read once per process: nothing here changes an array in place."""
    return images.digits()


def data(device: int, angles: tuple[int, ...] = (0, 90), samples: int = 90) -> Dataset:
    """Digits that only this device has; device i turns its images by the i-th angle, and round again."""
    train, _ = digits()
    own = train.subset(slice(device * samples, (device + 1) * samples))
    turned = rotate(own.x, angles[device % len(angles)])
    return Dataset(unit(turned), own.y)


def digits_of(device: int, count: int, classes: Sequence[int] = range(10)) -> Dataset:
    """That many of a device's digits, of these classes."""
    own = data(device, (0,))
    assert own.y is not None
    return own.subset(np.flatnonzero(np.isin(own.y, classes))[:count])


def fleet(
    algorithm: Algorithm,
    devices: int = DEVICES,
    angles: tuple[int, ...] = (0, 90),
    memories: Memories | None = None,
) -> dict[DeviceId, Device]:
    """Devices for `shoal.core.engine.simulate`, in the algorithm's own device half. memories: what they
    remember."""
    return contexts(algorithm, [Views.of(data(number, angles)) for number in range(devices)], None, memories)


def contexts(
    algorithm: Algorithm,
    views: Sequence[Views],
    shared: Learner | None = None,
    memories: Memories | None = None,
) -> dict[DeviceId, Device]:
    """The same, of data of your own. shared: another learner than the small network."""
    device_half, shared = algorithm.device(), shared or learner()
    network, remembered = shared.module(seed=0), {} if memories is None else memories

    def device(number: int, own: Views) -> Simulated:
        context = DeviceContext(shared, own, "cpu", 0, np.random.default_rng(number), model=network)
        return Simulated(device_half, context, f"d{number}", remembered)

    return {f"d{number}": device(number, own) for number, own in enumerate(views)}
