"""What averaging remembers from round to round: references, suspicions, and how training goes."""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from shoal.core.server_kit.aggregation.divergence import LossHistory
from shoal.core.server_kit.aggregation.robust import Spread
from shoal.core.types import DeviceId, ModelKey

T = TypeVar("T")

STRIKES = 3
"""A device whose updates were left out in this many rounds in a row is quarantined; see `Guard.strikes`."""


@dataclass(frozen=True)
class Moves:
    """How many devices went from each model to each other one, and what follows for what is known of models:
    one device that comes and goes at will must not decide that it no longer holds.

    before, after: how many devices each model had, and has. between: how many went from the first of two
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


@dataclass(frozen=True)
class Guard:
    """What averaging remembers from round to round: one field of an algorithm's state.

    references: for each model, the norm with which the updates of its last round were compared; see `robust`.
    of_round: for each model, remarks on the updates that were bounded in its last round.
    strikes: for each model, in how many rounds in a row the update of a device was left out. From `STRIKES`
    on, the device is quarantined: its updates do not count in this model, as long as the model exists. A
    roll back to an earlier round ends that, and so does `readmitted`. That the device leaves the model does
    not, as it may come back. histories: of the losses of each model. spreads: of the models whose last round
    was a mean of updates.
    """

    references: Mapping[ModelKey, float] = field(default_factory=dict)
    of_round: Mapping[ModelKey, tuple[str, ...]] = field(default_factory=dict)
    strikes: Mapping[ModelKey, Mapping[DeviceId, int]] = field(default_factory=dict)
    histories: Mapping[ModelKey, LossHistory] = field(default_factory=dict)
    spreads: Mapping[ModelKey, Spread] = field(default_factory=dict)

    @property
    def quarantined(self) -> dict[DeviceId, str]:
        """The devices whose updates do not count, and why."""
        many = f"in {STRIKES} rounds in a row, so they do not count"
        why = f"its updates to {{}} pointed away from those of most others {many}"
        return {
            device: why.format(key)
            for key, counts in sorted(self.strikes.items())
            for device, count in sorted(counts.items())
            if count >= STRIKES
        }

    @property
    def remarks(self) -> tuple[str, ...]:
        """What an operator should know. The run's log shows each remark when it is new."""
        of_rounds = [text for _, texts in sorted(self.of_round.items()) for text in texts]
        held = [f"{device} is quarantined: {why}" for device, why in self.quarantined.items()]
        histories = [text for key, each in sorted(self.histories.items()) for text in each.remarks(key)]
        return (*held, *histories, *of_rounds)

    @property
    def facts(self) -> dict[str, int]:
        """How many devices are quarantined, and how often models went back, if there are any."""
        falls = sum(each.falls for each in self.histories.values())
        found = {"quarantined": len(self.quarantined), "fallbacks": falls}
        return {name: count for name, count in found.items() if count}

    def rate(self, key: ModelKey) -> float:
        """What is left of the learning rate for this model, after its training has fallen."""
        return self.histories[key].rate if key in self.histories else 1.0

    def split(self, key: ModelKey, keys: Iterable[ModelKey]) -> "Guard":
        """The guard after the model `key` was replaced by the models `keys`, which inherit its reference, and
        what is left of its learning rate.

        Quarantine ends, since a device that was alone among all devices may have found its cluster.
        """
        return self.moved(dict.fromkeys(keys, key), {}, {})

    def moved(
        self,
        sources: Mapping[ModelKey, ModelKey],
        before: Mapping[DeviceId, ModelKey],
        after: Mapping[DeviceId, ModelKey],
    ) -> "Guard":
        """The guard after devices moved, and models continue others.

        sources: for each model that there is now, the one that it continues. before, after: the model of each
        device. A device that comes and goes must not free those in quarantine or hide a fall: a model with
        nearly the same devices keeps its history, and strikes stay in a model that goes on, and go along
        where most of its devices go.
        """
        moves = Moves.of(before, after)
        histories = {
            key: self.histories[old] if moves.same(old, key) else self.histories[old].among_others()
            for key, old in sources.items()
            if old in self.histories
        }
        strikes: dict[ModelKey, dict[DeviceId, int]] = {}
        for old, counts in self.strikes.items():
            for key in sources:
                if key == old == sources[key] or moves.mostly(old, key):
                    known = strikes.setdefault(key, {})
                    known |= {device: max(count, known.get(device, 0)) for device, count in counts.items()}
        references = {key: self.references[old] for key, old in sources.items() if old in self.references}
        of_round = {key: texts for key, texts in self.of_round.items() if sources.get(key) == key}
        return Guard(references, of_round, strikes, histories)

    def only(self, keys: Container[ModelKey]) -> "Guard":
        """The guard of these models, after the others were removed."""

        def of(known: Mapping[ModelKey, T]) -> dict[ModelKey, T]:
            return {key: value for key, value in known.items() if key in keys}

        return Guard(of(self.references), of(self.of_round), of(self.strikes), of(self.histories))

    def back(self, key: ModelKey, earlier: "Guard") -> "Guard":
        """The guard after one model went back to what it was when `earlier` was the guard.

        What was learned of the later model must not count against the earlier one: its loss would look like a
        fall, and the later model would return.
        """

        def of(now: Mapping[ModelKey, T], then: Mapping[ModelKey, T]) -> dict[ModelKey, T]:
            others = {each: value for each, value in now.items() if each != key}
            return others | ({key: then[key]} if key in then else {})

        return Guard(
            of(self.references, earlier.references),
            of(self.of_round, earlier.of_round),
            of(self.strikes, earlier.strikes),
            of(self.histories, earlier.histories),
        )

    def readmitted(self, devices: Iterable[DeviceId]) -> "Guard":
        """The guard after an operator ended the quarantine of these devices, in every model."""
        names = set(devices)
        strikes = {
            key: {device: count for device, count in counts.items() if device not in names}
            for key, counts in self.strikes.items()
        }
        return replace(self, strikes=strikes)

    def fallen(self, before: "Guard") -> set[ModelKey]:
        """The models that fell in this round, and not those that begin again. before: the guard before it."""
        falls = {key: history.falls for key, history in before.histories.items()}
        return {
            key
            for key, history in self.histories.items()
            if history.fell and history.falls > falls.get(key, 0)
        }

    def held(self, key: ModelKey) -> set[DeviceId]:
        """The devices that are quarantined in this model."""
        return {device for device, count in self.strikes.get(key, {}).items() if count >= STRIKES}
