"""What a device keeps of its own from task to task: a personal model, and a few numbers beside it.

It is checked when it is read again, since it may belong to another network or be gone; then the device starts
from the beginning.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from shoal.core.device_kit.context import DeviceContext
from shoal.core.errors import BadPayload
from shoal.core.exchange.tensors import check_finite, check_manifest, manifest_of
from shoal.core.types import Array, Tensors

MODEL, NUMBERS = "model/", "numbers/"
NOTHING = np.empty((0, 0))


@dataclass(frozen=True, eq=False)
class Personal:
    """model: this device's, in the network's own order. numbers: by name, float64 of any shape."""

    model: Tensors
    numbers: Mapping[str, Array] = field(default_factory=dict)


def remember(context: DeviceContext, personal: Personal) -> None:
    """Keep it for the next task of this run. Raises DeviceFault if it is larger than allowed."""
    model = {MODEL + name: array for name, array in personal.model.items()}
    context.remember(model | {NUMBERS + name: array for name, array in personal.numbers.items()})


def recall(context: DeviceContext, model: Tensors, **numbers: tuple[int, ...]) -> Personal | None:
    """What was remembered, if its model is of the same network as `model`, it has the `numbers` in these
    shapes, and all of it is finite; otherwise None.
    """
    if context.memory is None:
        return None
    found = Personal(_under(MODEL, context.memory), _under(NUMBERS, context.memory))
    if any(found.numbers.get(name, NOTHING).shape != shape for name, shape in numbers.items()):
        return None
    try:
        check_manifest(manifest_of(found.model), manifest_of(model), "what is remembered")
        check_finite(context.memory)
    except BadPayload:
        return None
    return found


def number(value: float) -> Array:
    """One of the numbers beside a model."""
    return np.array(value, np.float64)


def _under(prefix: str, tensors: Tensors) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in tensors.items() if name.startswith(prefix)}
