"""How many devices went from each model to each other one, and what follows for what is known of models.

One device that comes and goes at will must not decide that what is known of a model no longer holds.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.types import DeviceId, ModelKey


@dataclass(frozen=True)
class Moves:
    """before, after: how many devices each model had, and has. between: how many went from the first of two
    models to the second, or stayed in it."""

    before: Mapping[ModelKey, int]
    after: Mapping[ModelKey, int]
    between: Mapping[tuple[ModelKey, ModelKey], int]

    @classmethod
    def of(cls, before: Mapping[DeviceId, ModelKey], after: Mapping[DeviceId, ModelKey]) -> "Moves":
        """From the model of each device, before and after. New devices may have come."""
        between = Counter((before[device], key) for device, key in after.items() if device in before)
        return cls(Counter(before.values()), Counter(after.values()), between)

    def same(self, old: ModelKey, new: ModelKey) -> bool:
        """Whether the losses in the model `new` can be compared with the earlier ones in `old`.

        At least half of the devices are known from there, so that the median loss stays in their range. At
        most a third is gone, or one device: that one may have come, poisoned the model, and left.
        """
        stayed = self.between.get((old, new), 0)
        gone = self.before.get(old, 0) - stayed
        return 2 * stayed >= self.after.get(new, 0) > 0 and (gone <= 1 or gone <= stayed / 2)

    def mostly(self, old: ModelKey, new: ModelKey) -> bool:
        """Whether more than half of the devices of `old` are in `new`."""
        return 2 * self.between.get((old, new), 0) > self.before.get(old, 0)
