"""What the database holds, row by row. Clock times are seconds since 1970, and only for people."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from shoal.core.engine.rounds import RoundPolicy
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
    """What an operator asked for. algorithm: or one of its variants. parameters: changes to the preset.

    learner, learner_options: which learner the devices are to have; a note for people.
    """

    name: str
    algorithm: str
    preset: str = "default"
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    policy: RoundPolicy = field(default_factory=RoundPolicy)
    seed: int = 0
    learner: str = ""
    learner_options: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True)
class RunRecord:
    """Where a run stands on disk.

    round: the one that is open or will open next. asked: the devices of an open round, else none.
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


@dataclass(frozen=True)
class RoundRecord:
    """A round that is over. abandoned: why it gave no result, "" when it did. seconds: from open to saved.

    accuracy: mean held-out accuracy over the devices that measured it, 0 to 1; None: no device did.
    """

    round: int
    title: str
    asked: int
    reported: int
    missing: Mapping[DeviceId, str]
    abandoned: str
    seconds: float
    accuracy: float | None = None


@dataclass(frozen=True)
class ReportRecord:
    """A report that counts. data: its payload as on the wire, decoded only while it is used."""

    run: RunId
    round: int
    device: DeviceId
    attempt: int
    data: bytes

    @classmethod
    def of(cls, run: RunId, round: int, device: DeviceId, attempt: int, payload: Payload) -> "ReportRecord":
        return cls(run, round, device, attempt, payload_to_bytes(payload))

    @property
    def payload(self) -> Payload:
        return payload_from_bytes(self.data)

    @property
    def blobs(self) -> tuple[str, ...]:
        return tuple(weights.blob.sha256 for weights in self.payload.weights())


@dataclass(frozen=True)
class DeviceRecord:
    """A device that has called. software: as it said itself."""

    device: DeviceId
    software: str
    first_seen: float
    last_seen: float


@dataclass(frozen=True)
class LogLine:
    """Something that happened in a run. number: grows over all runs. device: "" for the run itself."""

    number: int
    at: float
    device: DeviceId
    text: str


@dataclass(frozen=True)
class Traffic:
    """Bytes of blobs that a device sent in a run, and fetched."""

    device: DeviceId
    run: RunId
    up: int
    down: int


@dataclass(frozen=True)
class ReleaseRecord:
    """What a device released in a run. release: its SHA-256; or what it was, without a guarantee.

    rho, curve: what it cost, for one sample (`shoal.core.privacy.cost`); 0 and none without a guarantee.
    delta, group_size: as asked.
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
