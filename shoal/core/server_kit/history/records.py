"""What a run's history has for each round that is over.

All of it is what the server knows anyway: figures that devices reported, and descriptors that they released.
Nothing more leaves a device for the sake of the history.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from shoal.core.types import DeviceId, ModelKey

TRAIN, HELD_OUT, TEST = "train", "held_out", "test"
"""The part of a device's data that a loss or an accuracy is of: seen while training, or measured."""
GROUPED, SPLIT, MERGED, MOVED, JOINED = "grouped", "split", "merged", "moved", "joined"
ABANDONED, ROLLED_BACK, REMARK = "abandoned", "rolled_back", "remark"
PAUSED, RESUMED, CHANGED = "paused", "resumed", "changed"
KINDS = (
    *(GROUPED, SPLIT, MERGED, MOVED, JOINED),
    *(ABANDONED, ROLLED_BACK, REMARK, PAUSED, RESUMED, CHANGED),
)
"""The kinds of events; `RunEvent` explains them."""


@dataclass(frozen=True)
class RunEvent:
    """Something that happened in a round, or between the round before and it.

    kind: one of KINDS. grouped: one model became several. split, merged: a cluster became several, or several
    became one. moved: devices changed from a cluster to another, as they do when their data drift. joined:
    late devices were given a cluster, or began one. abandoned, rolled_back: the round has no result. remark:
    what the algorithm says about how its models were made, such as an update that was left out. paused,
    resumed, changed: by an operator. text: the event in words, with the reason. clusters: the clusters that
    it is about, those that it came from first; of a roll back, the only one that went back.
    """

    kind: str
    text: str
    clusters: tuple[ModelKey, ...] = ()


@dataclass(frozen=True)
class Position:
    """Where a device's released descriptor lies on a map of two dimensions.

    x, y: along the two directions in which the devices' descriptors differ most, in units of the typical
    uncertainty of a descriptor: devices farther apart than a few units differ by more than chance. xx, xy,
    yy: the covariance of the position, from privacy noise and the number of samples; its ellipse is the
    uncertainty. The directions are those of the round: positions of two rounds cannot be compared.
    """

    x: float
    y: float
    xx: float = 0.0
    xy: float = 0.0
    yy: float = 0.0


@dataclass(frozen=True)
class DeviceRound:
    """A device in a round.

    cluster: after the round; "" if it has none. examples: samples behind loss and accuracy, 0 if it reported
    neither. loss, accuracy (0 to 1): None if it did not report them. bytes_up, bytes_down: of blobs, since
    the round before. worked: seconds from its task until its report was accepted, waited: from then until
    the round was over; None if unknown, as after a restart of the server. missing: why its report does not
    count; "" if it does.
    """

    device: DeviceId
    cluster: ModelKey = ""
    examples: int = 0
    loss: float | None = None
    accuracy: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    worked: float | None = None
    waited: float | None = None
    missing: str = ""


@dataclass(frozen=True)
class ClusterRound:
    """A cluster after a round.

    key: such as "c0". model: SHA-256 of its model. devices: how many belong to it. loss, accuracy: the
    trimmed means over those of its devices that reported them in this round, each counted once; None if none
    did. parents: the clusters before the round that its devices or its model came from; its own key if it
    went on. remarks: what the guard of averaging says about its updates in this round: those that it left out
    or clipped.
    """

    key: ModelKey
    model: str = ""
    devices: int = 0
    loss: float | None = None
    accuracy: float | None = None
    parents: tuple[ModelKey, ...] = ()
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class Digest:
    """What a view of a whole run needs of the devices of a round, which are most of a history.

    assigned: the devices whose cluster is another one than in the rounds before, with that cluster. Now and
    then it has every device that was asked, also where nothing has changed, so that it can be understood
    without the oldest rounds. slowest: the device that worked longest, "" if no time is known. worked: for
    how many seconds. mapped: whether the round has positions.
    """

    assigned: Mapping[DeviceId, ModelKey] = field(default_factory=dict)
    slowest: DeviceId = ""
    worked: float | None = None
    mapped: bool = False


@dataclass(frozen=True)
class RoundHistory:
    """A round that is over.

    round: its number, from 1; rounds without training have numbers, too, and so has each roll back. title:
    what it was for. ended: seconds since 1970. seconds: from its opening until it was over. asked, reported:
    how many devices. abandoned: why it has no result; "" if it has one. progress: the rounds of training that
    are complete after it. measured_on: TRAIN, HELD_OUT or TEST, the part that losses and accuracies are of;
    "" if there are none. In a round of training, TRAIN, losses are of training, and accuracies those of the
    models that it began with, on the held-out parts. loss, accuracy: trimmed means over the devices that
    reported them, each counted once. bytes_up, bytes_down: of blobs, of all devices, since the round before.

    devices: those that were asked, sorted; empty if they were not requested, or are no longer stored.
    left_out: how many more there were than are stored. positions: of all devices that have released a
    descriptor, in the rounds in which that changed; empty otherwise. digest: a few facts of these,
    where they were not requested; None otherwise. back_to: of a roll back, the round that opened with what
    the run goes on with; 0 for any other round.
    """

    round: int
    title: str = ""
    ended: float = 0.0
    seconds: float = 0.0
    asked: int = 0
    reported: int = 0
    abandoned: str = ""
    progress: int = 0
    measured_on: str = ""
    loss: float | None = None
    accuracy: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    clusters: tuple[ClusterRound, ...] = ()
    events: tuple[RunEvent, ...] = ()
    devices: tuple[DeviceRound, ...] = ()
    left_out: int = 0
    positions: Mapping[DeviceId, Position] = field(default_factory=dict)
    digest: Digest | None = None
    back_to: int = 0

    @property
    def missing(self) -> Mapping[DeviceId, str]:
        """The devices that were asked and whose reports do not count, and why."""
        return {each.device: each.missing for each in self.devices if each.missing}

    @property
    def began(self) -> int:
        """How many rounds of training were complete when it opened: its accuracies are of the models then."""
        return self.progress - (self.measured_on == TRAIN)


def digest_of(found: RoundHistory, before: Mapping[DeviceId, ModelKey]) -> Digest:
    """The digest of a round whose devices are known. before: the cluster of each device, as last assigned."""
    assigned = {
        each.device: each.cluster for each in found.devices if each.cluster != before.get(each.device, "")
    }
    worked, slowest = max(
        ((each.worked, each.device) for each in found.devices if each.worked is not None), default=(None, "")
    )
    return Digest(assigned, slowest, worked, bool(found.positions))
