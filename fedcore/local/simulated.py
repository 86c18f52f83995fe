"""A device as a simulation has it: a device half at a bench, with what it remembers from task to task."""

from collections.abc import Callable, MutableMapping

from fedcore.algorithm import Local
from fedcore.local.bench import Bench
from fedcore.messages import Message
from fedcore.types import DeviceId, Tensors

Memories = MutableMapping[DeviceId, Tensors]
"""What each device remembers of the run. A run that is resumed needs those that it had."""


class Simulated:
    """Takes a task and its seed, gives the answer. What is remembered counts once there is an answer.

    keep: takes what is to be remembered off the heap, as `fedcore.simulate.Keep` does.
    """

    def __init__(
        self,
        local: Local,
        bench: Bench,
        device: DeviceId,
        memories: Memories,
        keep: Callable[[Tensors], Tensors] = lambda tensors: tensors,
    ) -> None:
        self._local, self._bench, self._device = local, bench, device
        self._memories, self._keep = memories, keep

    def __call__(self, message: Message, seed: int) -> Message:
        bench = self._bench.for_task(seed, self._memories.get(self._device))
        answer = self._local.perform(message, bench)
        if bench.remembered is not None:
            self._memories[self._device] = self._keep(bench.remembered)
        return answer
