"""How many bytes of blobs went to and fro, counted in memory and written down now and then."""

from collections import Counter
from collections.abc import Iterable

from fedserver.store.records import Traffic
from shoal.core.types import DeviceId, RunId


class Meter:
    """What was counted since the last `take`."""

    def __init__(self) -> None:
        self._up: Counter[tuple[RunId, DeviceId]] = Counter()
        self._down: Counter[tuple[RunId, DeviceId]] = Counter()

    def up(self, run: RunId, device: DeviceId, size: int) -> None:
        self._up[run, device] += size

    def down(self, run: RunId, device: DeviceId, size: int) -> None:
        self._down[run, device] += size

    def give_back(self, taken: Iterable[Traffic]) -> None:
        """What was taken could not be written down: it is counted again."""
        for each in taken:
            self.up(each.run, each.device, each.up)
            self.down(each.run, each.device, each.down)

    def take(self) -> list[Traffic]:
        """All of it; counting starts anew."""
        keys = sorted({*self._up, *self._down})
        taken = [Traffic(device, run, self._up[run, device], self._down[run, device]) for run, device in keys]
        self._up.clear()
        self._down.clear()
        return taken
