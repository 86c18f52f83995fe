"""The mean loss of each round of training of a run. After the first look, only later rounds are read."""

from fedserver.store.store import Storage
from shoal.core.server_kit.history.records import TRAIN
from shoal.core.types import RunId


class Losses:
    """Of one run, in memory."""

    def __init__(self) -> None:
        self._last, self._found = 0, list[float]()

    async def of(self, storage: Storage, run: RunId) -> list[float]:
        """Round by round, oldest first."""
        while rounds := await storage.call(storage.journal.timeline.read, run, self._last, devices=False):
            for each in rounds:
                if each.round <= self._last:  # another call has read it meanwhile
                    continue
                self._last = each.round
                if each.measured_on == TRAIN and each.loss is not None:
                    self._found.append(each.loss)
        return self._found
