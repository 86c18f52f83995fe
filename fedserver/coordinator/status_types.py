"""What people are shown: as `proto/fed/v1/operator_service.proto` has it, where each field is explained."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedserver.store.records import RunSpec
from shoal.core.exchange.payload import BlobRef, Weights
from shoal.core.privacy.report import CentralNoise, Statement
from shoal.core.types import DeviceId, ModelKey, RunId

STAGES = ("waiting", "open", "reducing", "finished", "failed", "stopped")
PRESENCES = ("absent", "idle", "working")


@dataclass(frozen=True)
class RunSummary:
    """What a run is and where it stands, in one line of a list.

    stage: one of STAGES. time_left: seconds; None: no limit. created: seconds since 1970. cluster_count: the
    clusters that have devices. accuracy: mean held-out accuracy over the devices, each as measured last, 0 to
    1; None: not measured yet.
    """

    run: RunId
    name: str
    algorithm: str
    preset: str
    stage: str
    round: int
    title: str = ""
    waiting_for: str = ""
    waiting_devices: tuple[DeviceId, ...] = ()
    time_left: float | None = None
    created: float | None = None
    cluster_count: int = 0
    accuracy: float | None = None

    @property
    def over(self) -> bool:
        return self.stage in ("finished", "failed", "stopped")


@dataclass(frozen=True)
class DeviceFigures:
    """What is known of a device in a run. accuracy: 0 to 1; None: not measured yet."""

    device: DeviceId
    cluster: ModelKey = ""
    accuracy: float | None = None
    loss: float | None = None
    examples: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


@dataclass(frozen=True)
class RunStatus:
    """abandoned: round -> why it gave no result. missing: of the last round. models: once it is over.

    released: what devices have released in this run. central: what noise of the server promises.
    spec: what the operator asked for: parameters, seed, policy, learner. accuracies: round -> mean held-out
    accuracy, of the rounds in which devices measured it.
    """

    summary: RunSummary
    clusters: Mapping[ModelKey, tuple[DeviceId, ...]] = field(default_factory=dict)
    devices: tuple[DeviceFigures, ...] = ()
    abandoned: Mapping[int, str] = field(default_factory=dict)
    missing: Mapping[DeviceId, str] = field(default_factory=dict)
    models: Mapping[ModelKey, Weights] = field(default_factory=dict)
    released: Mapping[DeviceId, Statement] = field(default_factory=dict)
    central: CentralNoise | None = None
    spec: RunSpec | None = None
    accuracies: Mapping[int, float] = field(default_factory=dict)


@dataclass(frozen=True)
class ClusterVersions:
    """A cluster, and its model as it was when each round opened that is kept; the last is the current one."""

    key: ModelKey
    members: tuple[DeviceId, ...]
    versions: Mapping[int, BlobRef]


@dataclass(frozen=True)
class DeviceStatus:
    """presence: one of PRESENCES. last_seen: seconds ago; None: not since the server started.

    lease: run, round and attempt of the task that it works on.
    """

    device: DeviceId
    presence: str
    last_seen: float | None = None
    software: str = ""
    lease: tuple[RunId, int, int] | None = None


@dataclass(frozen=True)
class ServerStatus:
    """The daemon as it is now. runs: those that are not over. notices: what keeps it from its work.

    released: what devices have released, over all runs.
    """

    version: str
    devices: tuple[DeviceStatus, ...]
    runs: tuple[RunSummary, ...]
    notices: tuple[str, ...] = ()
    released: Mapping[DeviceId, Statement] = field(default_factory=dict)
