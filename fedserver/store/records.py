"""The records of the database. Clock times are in seconds since 1970, and are only displayed."""

import functools
import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum

from shoal.core.engine.policy import RoundPolicy
from shoal.core.engine.round.attendance import Memory
from shoal.core.exchange.payload import Payload
from shoal.core.exchange.wire import payload_from_bytes, payload_to_bytes
from shoal.core.privacy.cost import Cost
from shoal.core.types import DeviceId, RunId, Scalar


class Standing(Enum):
    """Whether a run goes on, and if not, why not."""

    ACTIVE = "active"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"


@dataclass(frozen=True)
class RunSpec:
    """What an operator asked for.

    algorithm: the name of an algorithm or of a variant. parameters: changes to the preset. learner,
    learner_options: the learner that devices should configure; the server only displays them. learner_seed:
    of the weights that the operator's shell made of it; None if it made none.

    software, initial: written by the server at the start of the run: its version, and the SHA-256 of the
    initial weights that it got; "" if a device is asked for them.

    graph, graph_bytes: the SHA-256 and the size of the network for devices without a learner; "" and 0: there
    is none. graph_by: the device that traced the graph, with the first weights; "" where an operator gave it.
    labels: only devices that have all of these labels take part.

    evaluate: nothing is trained; devices measure the models of this release, or for "" the initial weights.

    base: the release from which it goes on, or a channel; "" for none. every: seconds after which another run
    like this one starts, from what the channel has then; 0 for never. release, series: written by the server:
    the release that was meant, and the name of the first run of those that follow each other; "" for none.
    """

    name: str
    algorithm: str
    preset: str = "default"
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    policy: RoundPolicy = field(default_factory=RoundPolicy)
    seed: int = 0
    learner: str = ""
    learner_options: Mapping[str, Scalar] = field(default_factory=dict)
    learner_seed: int | None = None
    software: str = ""
    initial: str = ""
    graph: str = ""
    graph_bytes: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    evaluate: str | None = None
    base: str = ""
    every: float = 0.0
    release: str = ""
    series: str = ""
    graph_by: DeviceId = ""

    @property
    def lends_graph(self) -> bool:
        """Whether devices without a learner may have its graph. One that a device made is for files only."""
        return bool(self.graph) and not self.graph_by

    @property
    def digest(self) -> str:
        """The SHA-256 of everything that a run starts from, apart from its name. Two runs with the same
        digest, on the same devices with the same data, train the same models, unless noise is added."""
        found = {**asdict(self), "name": "", "graph_by": ""}
        if self.graph_by:  # it was made later, of what the run started from
            found |= {"graph": "", "graph_bytes": 0}
        return hashlib.sha256(json.dumps(found, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class RunRecord:
    """A run as it is stored.

    round: the one that is open or will open next. asked: the devices of the open round; empty if none is
    open. stepped_in: the groups of devices that the open round asked later. opened: when the latest round was
    opened; 0 if none was. memory: what the run remembers of its devices. paused: why no round opens until an
    operator resumes the run; "" if it is not paused. ended: when the run was over; 0 if it is not.
    """

    run: RunId
    spec: RunSpec
    created: float
    standing: Standing
    reason: str
    round: int
    asked: tuple[DeviceId, ...]
    title: str
    abandoned_in_a_row: int
    stepped_in: tuple[tuple[DeviceId, ...], ...] = ()
    opened: float = 0.0
    memory: Memory = field(default_factory=Memory)
    paused: str = ""
    ended: float = 0.0


@dataclass(frozen=True)
class ReportRecord:
    """A report that counts. data: the wire bytes of its payload, which are decoded only when they are
    used."""

    run: RunId
    round: int
    device: DeviceId
    attempt: int
    data: bytes

    @classmethod
    def of(cls, run: RunId, round: int, device: DeviceId, attempt: int, payload: Payload) -> "ReportRecord":
        return cls(run, round, device, attempt, payload_to_bytes(payload))

    @functools.cached_property
    def payload(self) -> Payload:
        return payload_from_bytes(self.data)

    @property
    def blobs(self) -> tuple[str, ...]:
        return tuple(weights.blob.sha256 for weights in self.payload.weights())


@dataclass(frozen=True)
class DeviceRecord:
    """A device that has called. software: the version that it reported."""

    device: DeviceId
    software: str
    first_seen: float
    last_seen: float


@dataclass(frozen=True)
class LogLine:
    """Something that happened in a run. number: counts the lines of all runs. device: "" for the run
    itself."""

    number: int
    at: float
    device: DeviceId
    text: str


@dataclass(frozen=True)
class Traffic:
    """How many bytes of blobs a device has sent (up) and fetched (down) in a run."""

    device: DeviceId
    run: RunId
    up: int
    down: int


VOTE = "vote "
"""What the name of a vote's release begins with: its cost is a curve, as that of training is."""


@dataclass(frozen=True)
class ReleaseRecord:
    """Something that a device released in a run.

    release: its SHA-256, of a vote or a randomized answer after VOTE, or its kind if it has no privacy
    guarantee. rho, curve: its privacy cost for one sample (`shoal.core.privacy.cost`); 0 and empty without a
    guarantee. delta, group_size: as requested.
    """

    run: RunId
    device: DeviceId
    release: str
    rho: float = 0.0
    delta: float = 0.0
    group_size: int = 1
    curve: tuple[float, ...] = ()

    @property
    def cost(self) -> Cost:
        return Cost(self.rho, self.curve)

    @property
    def is_vote(self) -> bool:
        """Whether it is a newcomer's vote, or what it says of its data."""
        return self.release.startswith(VOTE)


@dataclass(frozen=True)
class Move:
    """What a channel was given. release: its name; "" for none any more. pinned: whether the channel stays
    there when a run has better models. at: seconds since 1970. why: for people."""

    channel: str
    release: str
    pinned: bool = False
    at: float = 0.0
    why: str = ""


@dataclass(frozen=True)
class Rollout:
    """A rollout. old, new: the names of releases. share: of the devices, above 0 and at most 1. margin: by
    how much the accuracy may be lower in a cluster. pinned: whether the channel stays at the new release.
    began, ended: seconds since 1970; 0 while it goes on. outcome: PROMOTED, STOPPED or WITHDRAWN of
    `shoal.core.rollout`; "" while it goes on. why: for people.
    """

    rollout: str
    channel: str
    old: str
    new: str
    share: float
    margin: float
    began: float
    pinned: bool = False
    ended: float = 0.0
    outcome: str = ""
    why: str = ""
