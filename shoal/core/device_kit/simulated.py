"""A device as a simulation has it: a device half at a bench, with what it remembers from task to task."""

from collections.abc import Callable, MutableMapping

from shoal.core.algorithm import DeviceHalf
from shoal.core.device_kit.context import DeviceContext
from shoal.core.exchange.messages import Message
from shoal.core.types import DeviceId, Tensors

Memories = MutableMapping[DeviceId, Tensors]
"""What each device remembers of the run. A run that is resumed needs those that it had."""


class Simulated:
    """Takes a task and its seed, gives the answer. What is remembered counts once there is an answer.

    keep: takes what is to be remembered off the heap, as `shoal.core.engine.simulate.Keep` does.
    """

    def __init__(
        self,
        device_half: DeviceHalf,
        context: DeviceContext,
        device: DeviceId,
        memories: Memories,
        keep: Callable[[Tensors], Tensors] = lambda tensors: tensors,
    ) -> None:
        self._device_half, self._context, self._device = device_half, context, device
        self._memories, self._keep = memories, keep

    def __call__(self, message: Message, seed: int) -> Message:
        context = self._context.for_task(seed, self._memories.get(self._device))
        answer = self._device_half.perform(message, context)
        if context.remembered is not None:
            self._memories[self._device] = self._keep(context.remembered)
        return answer
