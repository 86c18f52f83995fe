"""Have devices moved away from the data that the groups were made of? From the losses of their training.

Each task of training measures the model that came on samples that the device does not train on. While data
stay as they are, that loss hardly rises from one round to the next, as a model changes little in a round, and
the loss of the training itself falls. Where the data have moved, both jump at once. (A model that overfits
slowly raises only the first, and training that diverges is found in `aggregation.divergence`.)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from shoal.core.exchange.messages import Trained
from shoal.core.types import DeviceId

MIN_RISE, MIN_RISE_OF_FIRST = 0.25, 0.05
"""A loss jumps if it rises from one round to the next by more than the first share of itself and the second
of the device's first held-out loss: what is left of a loss after much training rises and falls by many times
itself. Chosen at seeds 40 to 42: of ten devices whose rotations are drawn again, 7 or 8 jump, and of ten with
100 images of MNIST each, which stay, one or two in a whole run."""
MAX_MOVED = 0.5
"""Where more devices than this share have moved, the groups are no longer groups of data."""


@dataclass(frozen=True)
class Losses:
    """Of one device: first, held_out: its first and its last held-out loss since the groups were formed;
    training: the last one of its training."""

    first: float
    held_out: float
    training: float


@dataclass(frozen=True)
class Moving:
    """What is known since the groups were formed. losses: by device. moved: the devices whose losses have
    jumped."""

    losses: Mapping[DeviceId, Losses] = field(default_factory=dict)
    moved: tuple[DeviceId, ...] = ()

    def heard(self, updates: Mapping[DeviceId, Trained]) -> "Moving":
        """After a round of training.

        Example:
            >>> from shoal.core.exchange.messages import HeldOut
            >>> def round(*losses: float) -> dict[str, Trained]:
            ...     return {"a": Trained({}, 9, losses[0], held_out=HeldOut(0.5, losses[1], 9))}
            >>> calm = Moving().heard(round(0.5, 1.0)).heard(round(0.3, 0.8))
            >>> [calm.heard(round(*each)).moved for each in ((0.2, 0.9), (0.2, 1.4), (0.6, 1.4))]
            [(), (), ('a',)]
        """
        losses, moved = dict(self.losses), {*self.moved}
        for device, update in updates.items():
            if update.held_out is None:
                continue
            now, before = update.held_out.loss, losses.get(device)
            if before is None:
                losses[device] = Losses(now, now, update.loss)
                continue
            rises = (now - before.held_out, before.held_out), (update.loss - before.training, before.training)
            if all(rise > MIN_RISE * abs(was) + MIN_RISE_OF_FIRST * abs(before.first) for rise, was in rises):
                moved.add(device)
            losses[device] = replace(before, held_out=now, training=update.loss)
        return Moving(losses, tuple(sorted(moved)))

    def without(self, device: DeviceId) -> "Moving":
        """The same without what is known of one device."""
        losses = {each: found for each, found in self.losses.items() if each != device}
        return Moving(losses, tuple(each for each in self.moved if each != device))

    @property
    def most(self) -> bool:
        """Whether the data of most devices have moved that could be asked."""
        return len(self.moved) > MAX_MOVED * len(self.losses)
